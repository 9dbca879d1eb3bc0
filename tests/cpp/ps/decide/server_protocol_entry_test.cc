// What could break: a worker of another job, or of another version, that is let in.
#include <gtest/gtest.h>

#include <string>

#include "ps/decide/server_protocols.h"

namespace ciranda::ps {
namespace {

using testing::kLeaseNs;

class ServerProtocolEntryTest : public testing::ServerProtocols {};

TEST_F(ServerProtocolEntryTest, OnlyWhoFitsMayEnter) {
  start(2, {}, /*servers=*/3);
  const auto refused = [&](auto change) {
    Enter message = entry(1);
    change(message);
    const ServerProtocol::Caller caller = call();
    say(caller, message);
    EXPECT_TRUE(hung_up_on(caller));
    return refusal(caller);
  };
  EXPECT_EQ(refused([](Enter& message) { message.version = 9; }),
            "worker 1 speaks version 9 of the servers' protocol, server 0 version 7; install the "
            "same ciranda for both");
  EXPECT_EQ(refused([](Enter& message) { message.job_id = "b"; }),
            "worker 1 belongs to job 'b', server 0 to job 'job'");
  EXPECT_EQ(refused([](Enter& message) { message.workers = 3; }),
            "worker 1 was started for 3 workers and 3 servers, server 0 for 2 and 3");
  EXPECT_EQ(refused([](Enter& message) { message.servers = 1; }),
            "worker 1 was started for 2 workers and 1 servers, server 0 for 2 and 3");
  EXPECT_NE(refused([](Enter& message) { message.server = 1; }), "");
  EXPECT_EQ(
      refused([](Enter& message) { message.worker = 2; }),
      "there is no worker 2, only 0 to 1; servers of a job with a coordinator are started with "
      "--coordinator");
  EXPECT_EQ(refused([](Enter& message) { message.worker = 3; }),
            "there is no worker 3, only 0 to 1");
  enter(1);
}

TEST_F(ServerProtocolEntryTest, WorkersOfTwoJobsDoNotShareServersThatWereStartedByHand) {
  start(2);
  ServerProtocol::Caller caller = -1;
  const auto try_to_enter = [&](Worker worker, const Origin& origin, Life life = 1) {
    Enter message = entry(worker, life);
    message.origin = origin;
    caller = call();
    say(caller, message);
    return hung_up_on(caller) ? refusal(caller) : "";
  };
  const Origin first{.job = "29500", .host = 1, .process = 10, .starter = 9};
  EXPECT_EQ(try_to_enter(0, first), "");
  // Neither beside those who are here, nor in the place of one of them.
  for (const Worker worker : {0, 1}) {
    EXPECT_EQ(try_to_enter(worker, {.job = "29501"}, /*life=*/2),
              "worker " + std::to_string(worker) +
                  " seems to belong to another job than worker 0, which is connected: its job is "
                  "'29501', not "
                  "'29500'; give each job its own servers, or, if both belong to one job, set "
                  "CIRANDA_JOB_ID to the same name for all its workers");
  }
  EXPECT_NE(try_to_enter(1, {.job = "29500", .host = 1, .process = 21, .starter = 20})
                .find("another process started it"),
            std::string::npos);
  // Of one starter, of worker 0 itself, of another host, of nobody knows where.
  Life life = 1;
  for (const Origin& origin :
       {Origin{.job = "29500", .host = 1, .process = 11, .starter = 9},
        Origin{.job = "29500", .host = 1, .process = 11, .starter = 10},
        Origin{.job = "29500", .host = 2, .process = 11, .starter = 20}, Origin()}) {
    EXPECT_EQ(try_to_enter(1, origin, life++), "");
    hang_up(caller);
  }
}

TEST_F(ServerProtocolEntryTest, WhoIsGoneOrSilentKeepsNoOtherJobAway) {
  start(1);
  Enter first = entry(0, 1);
  first.origin.job = "a";
  ServerProtocol::Caller caller = call();
  say(caller, first);
  answer<Welcome>(caller);
  pass(2 * kLeaseNs);
  Enter second = entry(0, 2);
  second.origin.job = "b";
  caller = call();
  say(caller, second);
  answer<Welcome>(caller);
  hang_up(caller);
  Enter third = entry(0, 3);
  third.origin.job = "c";
  caller = call();
  say(caller, third);
  answer<Welcome>(caller);
}

}  // namespace
}  // namespace ciranda::ps
