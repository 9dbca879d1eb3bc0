// What could break: a server that waits for another one, a worker that seems dead while it waits,
// an end without its reason.
#include "core/ps/io/server_links.h"

#include <unistd.h>

#include <thread>

#include "ps/io/links.h"

namespace ciranda::ps {
namespace {

using testing::connect_ends;
using testing::Ends;
using testing::Way;

// The worker's ends of two servers, whose own ends stay with the test.
struct Two {
  explicit Two(Way way, ServerLinks::Pace pace = {}) {
    std::vector<std::unique_ptr<ServerLink>> links;
    for (int server = 0; server < 2; ++server) {
      Ends ends = connect_ends(way, memory, server, 2);
      links.push_back(std::move(ends.worker));
      servers.push_back(std::move(ends.server));
    }
    worker = ServerLinks(std::move(links), pace);
  }
  const WorkerMemory memory = {};
  std::vector<std::unique_ptr<WorkerLink>> servers;
  ServerLinks worker;
};

class ServerLinksOf : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(, ServerLinksOf, ::testing::Values(Way::kHere, Way::kElsewhere),
                         testing::name_of);

TEST_P(ServerLinksOf, EachAnswerIsThatOfItsServer) {
  Two two(GetParam());
  ASSERT_TRUE(two.servers[1]->send(Averaged{.mean = 1.0}).ok());
  ASSERT_TRUE(two.servers[1]->send(Averaged{.mean = 2.0}).ok());
  ASSERT_TRUE(two.servers[0]->send(Averaged{.mean = 3.0}).ok());
  EXPECT_EQ(std::get<Averaged>(two.worker.next(0).value()).mean, 3.0);
  EXPECT_EQ(std::get<Averaged>(two.worker.next(1).value()).mean, 1.0);
  EXPECT_EQ(std::get<Averaged>(two.worker.next(1).value()).mean, 2.0);
}

TEST_P(ServerLinksOf, TheServersHearThatItLivesWhileItWaits) {
  Two two(GetParam(), {.beat_ns = 1'000'000});
  ASSERT_TRUE(two.worker.send(1, Enter{}).ok());
  std::thread server([&] {
    for (int beats = 0; beats < 3;) {
      auto heard = two.servers[1]->receive();
      ASSERT_TRUE(heard.ok());
      if (heard.value()) beats += std::holds_alternative<Beat>(*heard.value()) ? 1 : 0;
      ::usleep(200);
    }
    ASSERT_TRUE(two.servers[0]->send(Averaged{}).ok());
  });
  EXPECT_TRUE(two.worker.next(0).ok());
  server.join();
}

// Which would hang up on it: a connection begins with Enter.
TEST_P(ServerLinksOf, NoServerHearsThatItLivesBeforeWhoItIs) {
  Two two(GetParam(), {.beat_ns = 1});
  ASSERT_TRUE(two.worker.send(0, Enter{}).ok());
  two.worker.beat_if_due();
  ASSERT_TRUE(two.worker.send(1, Enter{}).ok());
  const auto next = [&](int server) {
    for (;;) {
      two.worker.advance(ServerLinks::kNobody);
      auto heard = two.servers[static_cast<std::size_t>(server)]->receive();
      EXPECT_TRUE(heard.ok());
      if (heard.value()) return std::move(*heard.value());
    }
  };
  EXPECT_TRUE(std::holds_alternative<Enter>(next(0)));
  EXPECT_TRUE(std::holds_alternative<Beat>(next(0)));
  EXPECT_TRUE(std::holds_alternative<Enter>(next(1)));
}

TEST_P(ServerLinksOf, ALostServerIsNamedWithWhatItSaidLast) {
  Two two(GetParam());
  two.servers[1].reset();
  const auto lost = two.worker.next(1);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().text, "server 1 is lost");
  EXPECT_EQ(lost.error().rank, 1);

  Two other(GetParam());
  ASSERT_TRUE(other.servers[0]->send(Refused{.code = ErrorCode::kMismatch, .text = "why"}).ok());
  other.servers[0].reset();
  Status sent;
  while (sent) sent = other.worker.send(0, Pull{});
  EXPECT_EQ(sent.error().text, "server 0: why");
  EXPECT_EQ(sent.error().code, ErrorCode::kMismatch);
}

TEST_P(ServerLinksOf, OneThatIsLostIsNamedWhereItIsWantedAndStopsNoOther) {
  Two two(GetParam());
  ASSERT_TRUE(two.servers[1]->send(Averaged{.mean = 1.0}).ok());
  two.servers[1].reset();
  std::thread server([&] {
    ::usleep(10'000);
    ASSERT_TRUE(two.servers[0]->send(Averaged{.mean = 2.0}).ok());
  });
  EXPECT_EQ(std::get<Averaged>(two.worker.next(0).value()).mean, 2.0);
  server.join();
  EXPECT_EQ(std::get<Averaged>(two.worker.next(1).value()).mean, 1.0);
  const auto lost = two.worker.next(1);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().rank, 1);
}

TEST_P(ServerLinksOf, LeavingIsHeardByAll) {
  Two two(GetParam());
  std::thread servers([&] {
    for (auto& server : two.servers) {
      std::optional<Message> heard;
      while (!heard) {
        auto next = server->receive();
        ASSERT_TRUE(next.ok());
        heard = std::move(next).value();
        ::usleep(100);
      }
      EXPECT_TRUE(std::holds_alternative<Leave>(*heard));
      server.reset();
    }
  });
  two.worker.leave();
  servers.join();
}

}  // namespace
}  // namespace ciranda::ps
