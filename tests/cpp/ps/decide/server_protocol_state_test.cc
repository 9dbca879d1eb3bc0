// What could break: a server that comes back and takes a worker for a stranger, applies a push
// twice, loses one unnoticed, or waits for ever for who is gone.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ps/decide/server_protocol.h"
#include "ps/decide/kept.h"
#include "ps/decide/models.h"
#include "ps/decide/server_protocols.h"

namespace ciranda::ps {
namespace {

using testing::kLeaseNs;
using testing::kSync;

class ServerProtocolStateTest : public testing::ServerProtocols {
 protected:
  void take_snapshot() { kept_.emplace(*protocol_); }
  // The server is killed, and comes back with its snapshot and what was written since.
  void restart(bool with_changes = true) {
    protocol_ = std::make_unique<ServerProtocol>(options_);
    const Status made = kept_->make_again(*protocol_, now_ns_, with_changes);
    ASSERT_TRUE(made.ok()) << made.error().text;
  }

  std::optional<testing::Kept> kept_;
};

TEST_F(ServerProtocolStateTest, AWorkerWhoseConnectionIsLostCallsAgain) {
  start(1);
  const Enter entry = this->entry(0);
  const ServerProtocol::Caller first = join(entry);
  answer<Ready>(first);
  push(first, 0, 1);
  answer<Ack>(first);
  push(first, 0, 2);  // whose answer does not come through
  const ServerProtocol::Caller again = come_back(entry, 1);
  answer<Ack>(first);
  EXPECT_EQ(refusal(first), "worker 0 has reconnected");
  EXPECT_EQ(answer<Ready>(again).version, 2u);
  push(again, 0, 2);
  EXPECT_EQ(answer<Ack>(again).outcome, Outcome::kDuplicate);
  EXPECT_EQ(parameter(again), -2.0f);
  EXPECT_EQ(protocol_->stats().lost, 0u);
}

TEST_F(ServerProtocolStateTest, AServerGoesOnWhereItWas) {
  start(2);
  const Enter entry0 = entry(0);
  const Enter entry1 = entry(1, /*life=*/7);
  const ServerProtocol::Caller worker0 = join(entry0);
  answer<Ready>(worker0);
  take_snapshot();
  const ServerProtocol::Caller worker1 = join(entry1);
  answer<Ready>(worker1);
  push(worker1, 1, 1);
  push(worker0, 0, 1, 4.0f);
  restart();
  const ServerProtocol::Caller stranger = call();
  say(stranger, entry(1, 7));
  EXPECT_EQ(refusal(stranger), "worker 1 is connected already; give each process its own number");
  const ServerProtocol::Caller older = call();
  say(older, entry(1, 6));
  EXPECT_EQ(refusal(older), "worker 1 has been restarted since this process started");
  const ServerProtocol::Caller again1 = come_back(entry1, 0);
  EXPECT_EQ(answer<Ready>(again1).version, 2u);
  EXPECT_EQ(parameter(again1), 0.0f);  // nobody writes there unasked
  push(again1, 1, 1);
  EXPECT_EQ(answer<Ack>(again1).outcome, Outcome::kDuplicate);
  EXPECT_EQ(parameter(again1), -5.0f);
  push(again1, 1, 2);
  EXPECT_EQ(answer<Ack>(again1).outcome, Outcome::kApplied);
  EXPECT_EQ(parameter(again1), -6.0f);
  EXPECT_EQ(protocol_->stats().lost, 0u);
  EXPECT_EQ(protocol_->stats().workers[0].pushes, 1u);
  EXPECT_EQ(protocol_->stats().workers[1].pushes, 2u);
}

TEST_F(ServerProtocolStateTest, WhatARestartHasLostIsCounted) {
  start(1);
  const Enter entry = this->entry(0);
  const ServerProtocol::Caller first = join(entry);
  take_snapshot();
  for (std::uint64_t seq = 1; seq <= 3; ++seq) push(first, 0, seq);
  restart(/*with_changes=*/false);
  const ServerProtocol::Caller again = come_back(entry, 3);
  EXPECT_EQ(protocol_->stats().lost, 3u);
  push(again, 0, 4);  // it goes on
  EXPECT_EQ(parameter(again), -1.0f);
}

TEST_F(ServerProtocolStateTest, AServerWithoutItsStateIsRefused) {
  start(1);
  const Enter entry = this->entry(0);
  const ServerProtocol::Caller again = come_back(entry, 3);
  EXPECT_EQ(refusal(again),
            "the server was restarted without the parameters that worker 0 trains; let servers "
            "keep them with ciranda run --ps-dir or ciranda-ps --dir");
}

TEST_F(ServerProtocolStateTest, WhoDoesNotComeBackIsWaitedForAsLongAsALease) {
  start(3, kSync);
  const Enter entry0 = entry(0);
  join(entry0);
  join(entry(1));
  const ServerProtocol::Caller worker2 = join(entry(2));
  take_snapshot();
  say(worker2, Leave{});
  restart();
  const ServerProtocol::Caller again = come_back(entry0, 0);
  answer<Ready>(again);
  push(again, 0, 1);
  pass(kLeaseNs - 1);
  EXPECT_TRUE(waits(again));
  EXPECT_EQ(protocol_->next_lease_ns(), now_ns_ + 1);
  say(again, Beat{});
  pass(1);
  EXPECT_EQ(answer<Ack>(again).outcome, Outcome::kApplied);
  EXPECT_GT(protocol_->next_lease_ns(), now_ns_);
}

TEST_F(ServerProtocolStateTest, WhoHasLeftHasLeft) {
  start(2);
  const ServerProtocol::Caller worker0 = join(entry(0));
  const ServerProtocol::Caller worker1 = join(entry(1));
  say(worker0, Leave{});
  take_snapshot();
  say(worker1, Leave{});
  restart(/*with_changes=*/false);
  EXPECT_FALSE(protocol_->all_have_left());
  restart();
  EXPECT_TRUE(protocol_->all_have_left());
}

TEST_F(ServerProtocolStateTest, WhatIsOfAnotherServerIsRefused) {
  start(1);
  join(entry(0));
  take_snapshot();
  std::vector<std::byte> saved = kept_->saved();
  const auto refused = [&](auto change) {
    ServerProtocolOptions other = options_;
    change(other);
    const Status restored = ServerProtocol(other).restore(saved, now_ns_);
    return restored ? "" : restored.error().text;
  };
  EXPECT_EQ(refused([](ServerProtocolOptions& other) { other.job_id = "other"; }),
            "it belongs to job 'job', and this job is 'other'; give --resume to continue it");
  EXPECT_EQ(refused([](ServerProtocolOptions& other) { other.servers = 2; }),
            "it belongs to server 0 of 1 with 1 workers, and this server is server 0 of 2 with 1");
  for (std::size_t size = 0; size < saved.size(); ++size) {
    EXPECT_FALSE(ServerProtocol(options_).restore(std::span(saved).first(size), now_ns_).ok());
  }
  saved.front() = std::byte{9};
  EXPECT_EQ(refused([](ServerProtocolOptions&) {}), "it was written by another version of ciranda");
}

}  // namespace
}  // namespace ciranda::ps
