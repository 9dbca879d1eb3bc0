// What could break: a stranger or an old process that is believed, the wrong worker's parameters as
// the first, a worker that waits for one that is gone.
#include "core/ps/decide/server_protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ps/decide/models.h"
#include "ps/decide/server_protocols.h"

namespace ciranda::ps {
namespace {

using testing::exact_rule;
using testing::kLeaseNs;
using testing::model_of;

constexpr Mode kUnboundedSsp{.kind = ModeKind::kSsp};

class ServerProtocolTest : public testing::ServerProtocols {};

TEST_F(ServerProtocolTest, AMessageOutOfOrderIsHungUpOn) {
  start(2);
  const auto refused = [&](ServerProtocol::Caller caller, Message message) {
    say(caller, std::move(message));
    EXPECT_TRUE(hung_up_on(caller));
    return refusal(caller);
  };
  EXPECT_EQ(refused(call(), Pull{}), "the first packet of a connection has to be Enter");
  EXPECT_EQ(refused(enter(0, 1), entry(0, 2)), "worker 0 enters twice");
  EXPECT_EQ(refused(enter(0, 2), Pull{}), "worker 0 has not declared its parameters");
  const ServerProtocol::Caller waiting = enter(1);
  declare(waiting, 0.0f);
  EXPECT_TRUE(waits(waiting));  // for worker 0's parameters
  EXPECT_EQ(refused(waiting, push_of(1, 1)), "worker 1 has not declared its parameters");
  auto joined = [&, life = Life{2}]() mutable {
    const ServerProtocol::Caller caller = join(0, ++life);
    answer<Ready>(caller);
    return caller;
  };
  EXPECT_EQ(refused(joined(), push_of(1, 1)), "worker 0 pushes for another worker");
  EXPECT_EQ(refused(joined(), push_of(0, 7)), "a push of worker 0 has the number 7 after 0");
  EXPECT_EQ(
      refused(joined(), Declare{}),
      "worker 0 has declared its parameters already; servers hold the parameters of one model");
  EXPECT_EQ(refused(joined(), Ready{}), "a worker sent a message that only servers send");
  EXPECT_EQ(refused(joined(), FetchState{}),
            "a worker asked for state that the optimizer does not have");
  EXPECT_EQ(refused(joined(), FetchState{.table = 2}),
            "a worker asked for state that the optimizer does not have");

  const ServerProtocol::Caller garbled = joined();
  ServerProtocol::Answers answers;
  protocol_->refuse(garbled, {.code = ErrorCode::kMalformed, .text = "no message"}, now_ns_,
                    answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].hangs_up);
}

TEST_F(ServerProtocolTest, AnOlderLifeIsNeverHeardAgain) {
  start(1);
  const ServerProtocol::Caller first = join(0, 3);
  answer<Ready>(first);
  push(first, 0, 1);
  answer<Ack>(first);
  const ServerProtocol::Caller same = call();
  say(same, entry(0, 3));
  EXPECT_EQ(refusal(same), "worker 0 is connected already; give each process its own number");

  const ServerProtocol::Caller second = call();
  say(second, entry(0, 4));
  EXPECT_EQ(answer<Welcome>(second).decided, 1u);
  EXPECT_EQ(refusal(first), "worker 0 has been restarted");
  push(first, 0, 2);  // was on its way
  EXPECT_TRUE(waits(first));
  const ServerProtocol::Caller older = call();
  say(older, entry(0, 2));
  EXPECT_EQ(refusal(older), "worker 0 has been restarted since this process started");

  declare(second, 50.0f, /*decided=*/2);  // another server has decided one more
  EXPECT_EQ(answer<Ready>(second).version, 1u);
  EXPECT_EQ(parameter(second), -1.0f);
  push(second, 0, 3);
  EXPECT_EQ(answer<Ack>(second).outcome, Outcome::kApplied);
}

TEST_F(ServerProtocolTest, TheFirstParametersAreThoseOfTheLowestWorkerThatHasNotLeft) {
  start(3);
  const ServerProtocol::Caller two = enter(2);
  const ServerProtocol::Caller one = enter(1);
  declare(two, 2.0f);
  declare(one, 1.0f);
  EXPECT_TRUE(waits(one) && waits(two));
  ServerProtocol::Caller zero = enter(0);
  hang_up(zero);  // is not to leave: it may come back
  EXPECT_TRUE(waits(one) && waits(two));
  zero = enter(0, 2);
  say(zero, Leave{});
  answer<Ready>(one);
  answer<Ready>(two);
  EXPECT_EQ(parameter(two), 1.0f);
  zero = enter(0, 3);
  declare(zero, 9.0f);
  answer<Ready>(zero);
  EXPECT_EQ(parameter(zero), 1.0f);
}

TEST_F(ServerProtocolTest, WhoDeclaresSomethingElseIsRefused) {
  start(2);
  const ServerProtocol::Caller first = join(0);
  answer<Ready>(first);
  auto refused = [&, life = Life{0}](const Model& model) mutable {
    const ServerProtocol::Caller caller = enter(1, ++life);
    say(caller, Declare{}, model);
    return refusal(caller);
  };
  Model other = model_;
  other.tables[1].slots[0].shape = {18};
  EXPECT_EQ(refused(other),
            "worker 1 trains another model than the workers before it: parameter 'p2' is [18] "
            "instead of [17]");
  EXPECT_EQ(refused({}),
            "parameters of 0 combinations of dtype and update rule; servers hold 1 to 64");
  without_memory_ = true;
  EXPECT_EQ(refused(model_), "no memory");
  without_memory_ = false;
  push(first, 0, 1);  // the protocol lives on
  EXPECT_EQ(answer<Ack>(first).outcome, Outcome::kApplied);
}

TEST_F(ServerProtocolTest, WhoIsGoneKeepsNobody) {
  start(3, kUnboundedSsp);
  const ServerProtocol::Caller two = enter(2);
  say(two, Leave{});  // before anybody has declared
  const ServerProtocol::Caller one = join(1);
  const ServerProtocol::Caller zero = join(0);
  answer<Ready>(zero);
  answer<Ready>(one);
  push(zero, 0, 1);
  EXPECT_TRUE(waits(zero));
  hang_up(one);
  EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
  push(one, 1, 1);  // was on its way
  EXPECT_TRUE(waits(one));
  EXPECT_EQ(protocol_->shard()->version(), 1u);
}

TEST_F(ServerProtocolTest, WhoIsGoneBeforeAnybodyHasDeclaredKeepsNobody) {
  start(2, kUnboundedSsp);
  hang_up(enter(1));
  const ServerProtocol::Caller zero = join(0);
  answer<Ready>(zero);
  push(zero, 0, 1);
  EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
}

TEST_F(ServerProtocolTest, WhoIsSilentBeforeItHasDeclaredKeepsNobody) {
  for (const bool is_first : {true, false}) {
    start(2, kUnboundedSsp);
    const ServerProtocol::Caller one = is_first ? enter(1) : -1;
    pass(kLeaseNs);
    const ServerProtocol::Caller zero = join(0);
    answer<Ready>(zero);
    const ServerProtocol::Caller late = is_first ? one : enter(1);
    pass(kLeaseNs - 1);
    say(zero, Beat{});
    pass(1);
    push(zero, 0, 1);
    EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
    declare(late, 0.0f);
    answer<Ready>(late);
    push(zero, 0, 2);
    EXPECT_TRUE(waits(zero));
    push(late, 1, 1);
    EXPECT_EQ(answer<Ack>(late).clock, 1u);
    push(late, 1, 2);
    EXPECT_EQ(answer<Ack>(zero).version, 4u);
  }
}

TEST_F(ServerProtocolTest, WhoIsSilentForALeaseKeepsNobody) {
  start(2, kUnboundedSsp);
  EXPECT_EQ(protocol_->next_lease_ns(), UINT64_MAX);
  const ServerProtocol::Caller zero = join(0);
  const ServerProtocol::Caller one = join(1);
  answer<Ready>(zero);
  answer<Ready>(one);
  EXPECT_EQ(protocol_->next_lease_ns(), now_ns_ + kLeaseNs);
  push(zero, 0, 1);
  pass(kLeaseNs / 2);
  say(zero, Beat{});
  EXPECT_EQ(protocol_->next_lease_ns(), now_ns_ + kLeaseNs / 2);
  pass(kLeaseNs / 2 - 1);
  EXPECT_TRUE(waits(zero));
  pass(1);
  EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
  say(one, Beat{});  // counts again
  push(zero, 0, 2);
  EXPECT_TRUE(waits(zero));
  push(one, 1, 1);
  EXPECT_EQ(answer<Ack>(one).version, 3u);
  EXPECT_TRUE(waits(zero));
  push(one, 1, 2);
  EXPECT_EQ(answer<Ack>(one).version, 4u);
  EXPECT_EQ(answer<Ack>(zero).version, 4u);
}

TEST_F(ServerProtocolTest, TheJobEndsWhenAllHaveLeft) {
  start(2);
  const ServerProtocol::Caller zero = enter(0);
  say(zero, Leave{});
  EXPECT_FALSE(protocol_->all_have_left());
  const ServerProtocol::Caller one = enter(1);
  hang_up(one);
  EXPECT_FALSE(protocol_->all_have_left());
  say(enter(1, 2), Leave{});
  EXPECT_TRUE(protocol_->all_have_left());
}

}  // namespace
}  // namespace ciranda::ps
