// What could break: an answer of another worker, or none; a task that is given to a worker that is
// gone, or whose pushes count again when another worker does it.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ps/decide/server_protocol.h"
#include "ps/decide/kept.h"
#include "ps/decide/models.h"
#include "ps/decide/server_protocols.h"

namespace ciranda::ps {
namespace {

using testing::kLeaseNs;

class ServerProtocolRequestsTest : public testing::ServerProtocols {
 protected:
  void start_coordinated(int workers) {
    start(workers);
    options_.has_coordinator = true;
    protocol_ = std::make_unique<ServerProtocol>(options_);
    coordinator_ = enter(workers);
  }
  // As a part of that task.
  void push_part(ServerProtocol::Caller caller, Worker worker, std::uint64_t seq, TaskPart part) {
    Push push = push_of(worker, seq);
    push.of = part;
    say(caller, push);
  }
  void schedule(TaskId task) {
    say(coordinator_, Schedule{.task = task, .call = "call " + std::to_string(task)});
  }

  ServerProtocol::Caller coordinator_ = -1;
};

TEST_F(ServerProtocolRequestsTest, AveragesAreOfTheLatestValues) {
  start(2);
  const ServerProtocol::Caller zero = enter(0);
  const ServerProtocol::Caller one = enter(1);
  say(zero, Average{.name = "loss", .value = 4.0});
  EXPECT_EQ(answer<Averaged>(zero), (Averaged{.mean = 4.0, .workers = 1}));
  say(one, Average{.name = "loss", .value = 2.0});
  EXPECT_EQ(answer<Averaged>(one), (Averaged{.mean = 3.0, .workers = 2}));
  say(zero, Average{.name = "loss", .value = 6.0});
  EXPECT_EQ(answer<Averaged>(zero), (Averaged{.mean = 4.0, .workers = 2}));
  for (int i = 0; i < 1023; ++i) {
    say(one, Average{.name = std::to_string(i)});
    answer<Averaged>(one);
  }
  say(one, Average{.name = "one too many"});
  EXPECT_EQ(refusal(one), "ps.average() was called with more than 1024 names");
}

TEST_F(ServerProtocolRequestsTest, StateStepsAndNumbersAreFetched) {
  start(1);
  model_.tables[0].rule.momentum = 0.5;
  const ServerProtocol::Caller zero = join(0);
  answer<Ready>(zero);
  Push pushed = push_of(0, 1);
  pushed.rules[0].momentum = 0.5;
  say(zero, pushed);
  EXPECT_EQ(answer<Ack>(zero).version, 1u);
  say(zero, AskStats{});
  const auto stats = answer<Stats>(zero);
  EXPECT_EQ(stats.version, 1u);
  EXPECT_EQ(stats.outcomes[0], 1u);
  EXPECT_EQ(stats.held_bytes, protocol_->shard()->held_bytes());
  say(zero, FetchState{.table = 0, .array = 0});
  answer<Fetched>(zero);
  say(zero, FetchSteps{});
  answer<Fetched>(zero);
}

TEST_F(ServerProtocolRequestsTest, TasksOfAWorkerThatIsGoneAreDoneByAnotherAndCountOnce) {
  start_coordinated(2);
  const ServerProtocol::Caller zero = join(0);
  const ServerProtocol::Caller one = join(1);
  answer<Ready>(zero);
  answer<Ready>(one);
  schedule(1);
  say(zero, TakeTask{});
  EXPECT_EQ(answer<Given>(zero), (Given{.task = 1, .call = "call 1"}));
  push_part(zero, 0, 1, {.task = 1, .part = 1});
  EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
  say(one, TakeTask{});
  EXPECT_TRUE(waits(one));
  say(coordinator_, AskTask{.task = 1, .waits = true});
  hang_up(zero);
  EXPECT_EQ(answer<Given>(one).task, 1u);
  push_part(one, 1, 1, {.task = 1, .part = 1});
  const Ack again = answer<Ack>(one);
  EXPECT_EQ(again.outcome, Outcome::kDuplicate);
  EXPECT_EQ(again.version, 1u);
  push_part(one, 1, 2, {.task = 1, .part = 2});
  EXPECT_EQ(answer<Ack>(one).outcome, Outcome::kApplied);
  EXPECT_TRUE(waits(coordinator_));
  say(one, TakeTask{.done = 1, .text = "3.5"});
  EXPECT_EQ(answer<TaskStatus>(coordinator_),
            (TaskStatus{.task = 1, .done = true, .settled = 1, .text = "3.5"}));
  say(coordinator_, CloseTasks{.tasks = 1});
  EXPECT_EQ(answer<TaskStatus>(coordinator_).settled, 1u);
  EXPECT_EQ(answer<Given>(one), (Given{.settled = 1}));
  EXPECT_EQ(protocol_->stats().workers.size(), 2u);
  EXPECT_EQ(protocol_->stats().workers[1].pushes, 1u);
}

TEST_F(ServerProtocolRequestsTest, TheTaskOfASilentWorkerIsGivenToAnotherAndWhoIsFirstCounts) {
  start_coordinated(2);
  const ServerProtocol::Caller zero = enter(0);
  const ServerProtocol::Caller one = enter(1);
  schedule(1);
  say(zero, TakeTask{});
  answer<Given>(zero);
  pass(kLeaseNs / 2);
  say(one, TakeTask{});
  pass(kLeaseNs - 1);
  EXPECT_EQ(answer<Given>(one).task, 1u);
  say(zero, TakeTask{.done = 1, .text = "first"});
  say(one, TakeTask{.done = 1, .text = "second"});
  say(coordinator_, AskTask{.task = 1});
  EXPECT_EQ(answer<TaskStatus>(coordinator_).text, "first");
}

TEST_F(ServerProtocolRequestsTest, NobodyWaitsForWhoHasLeft) {
  start_coordinated(2);
  const ServerProtocol::Caller zero = enter(0);
  schedule(1);
  say(coordinator_, AskTask{.task = 1, .waits = true});
  say(zero, Leave{});
  EXPECT_TRUE(waits(coordinator_));
  say(enter(1), Leave{});
  EXPECT_EQ(refusal(coordinator_),
            "all workers have left, but task 1 is not done; every worker must call ps.run()");
  EXPECT_FALSE(protocol_->all_have_left());

  start_coordinated(1);
  const ServerProtocol::Caller worker = enter(0);
  say(worker, TakeTask{});
  say(coordinator_, Leave{});
  EXPECT_EQ(refusal(worker), "the coordinator has ended before its work was done");
  EXPECT_FALSE(protocol_->all_have_left());
  say(enter(0, 2), Leave{});
  EXPECT_TRUE(protocol_->all_have_left());
}

TEST_F(ServerProtocolRequestsTest, ACoordinatorIsNoWorkerAndAWorkerNoCoordinator) {
  start_coordinated(2);
  const ServerProtocol::Caller zero = enter(0);
  say(zero, Schedule{.task = 1});
  EXPECT_EQ(refusal(zero), "worker 0 schedules tasks, as only the coordinator does");
  Life life = 1;
  for (const Message& message : {Message(TakeTask{}), Message(Declare{}), Message(Pull{}),
                                 Message(Average{.name = "loss"}), Message(push_of(2, 1))}) {
    const ServerProtocol::Caller caller = enter(2, ++life);
    say(caller, message);
    EXPECT_NE(refusal(caller), "") << message.index();
    EXPECT_TRUE(hung_up_on(caller));
  }
  start(1, {.kind = ModeKind::kSync});
  const ServerProtocol::Caller other = enter(0);
  say(other, TakeTask{});
  EXPECT_EQ(refusal(other),
            "there is no coordinator that gives out tasks; start the job with --coordinator");
  options_.has_coordinator = true;
  protocol_ = std::make_unique<ServerProtocol>(options_);
  const ServerProtocol::Caller waiting = enter(0);
  declare(waiting, 0.0f);
  EXPECT_EQ(refusal(waiting),
            "worker 0 would wait for other workers, which may have no task; use a mode without "
            "waiting, such as Async()");
}

TEST_F(ServerProtocolRequestsTest, ASilentCoordinatorStopsNobody) {
  start_coordinated(1);
  const ServerProtocol::Caller zero = join(0);
  answer<Ready>(zero);
  pass(kLeaseNs);
  say(zero, Beat{});
  say(coordinator_, Beat{});
  schedule(1);
  say(zero, TakeTask{});
  EXPECT_EQ(answer<Given>(zero).task, 1u);
}

TEST_F(ServerProtocolRequestsTest, ACoordinatorThatIsSilentBeforeTheFirstDeclarationStopsNobody) {
  start_coordinated(1);
  pass(kLeaseNs);
  const ServerProtocol::Caller zero = join(0);
  answer<Ready>(zero);
  push(zero, 0, 1);
  EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
}

TEST_F(ServerProtocolRequestsTest, AServerThatComesBackKnowsTheTasks) {
  start_coordinated(1);
  const Enter entry0 = entry(0);
  const ServerProtocol::Caller zero = join(entry0);
  answer<Ready>(zero);
  schedule(1);
  schedule(2);
  say(zero, TakeTask{});
  answer<Given>(zero);
  push_part(zero, 0, 1, {.task = 1, .part = 1});
  answer<Ack>(zero);
  testing::Kept kept(*protocol_);
  push_part(zero, 0, 2, {.task = 1, .part = 2});
  answer<Ack>(zero);
  say(zero, TakeTask{.done = 1, .text = "one"});
  answer<Given>(zero);
  schedule(3);
  protocol_ = std::make_unique<ServerProtocol>(options_);
  const Status made = kept.make_again(*protocol_, now_ns_);
  ASSERT_TRUE(made.ok()) << made.error().text;

  coordinator_ = call();
  say(coordinator_, entry(1, 2));
  EXPECT_EQ(answer<Welcome>(coordinator_).scheduled, 3u);
  schedule(1);  // it was started again, too
  say(coordinator_, AskTask{.task = 1});
  EXPECT_EQ(answer<TaskStatus>(coordinator_).text, "one");
  const ServerProtocol::Caller again = come_back(entry0, 2);
  answer<Ready>(again);
  say(again, TakeTask{});
  EXPECT_EQ(answer<Given>(again), (Given{.task = 2, .settled = 1, .call = "call 2"}));
  push_part(again, 0, 3, {.task = 1, .part = 3});  // of a task that is over: see below
  EXPECT_EQ(answer<Ack>(again).outcome, Outcome::kApplied);
  push_part(again, 0, 4, {.task = 2, .part = 1, .settled = 1});
  EXPECT_EQ(answer<Ack>(again).outcome, Outcome::kApplied);
  push_part(again, 0, 5, {.task = 1, .part = 4});  // this server knows by now that it is
  EXPECT_EQ(answer<Ack>(again).outcome, Outcome::kDuplicate);
  say(coordinator_, Schedule{.task = 2, .call = "another"});
  EXPECT_NE(refusal(coordinator_).find("task 2 is 'another', but was 'call 2'"), std::string::npos);

  options_.has_coordinator = false;
  protocol_ = std::make_unique<ServerProtocol>(options_);
  EXPECT_EQ(kept.make_again(*protocol_, now_ns_).error().text,
            "it belongs to a job with a coordinator, and this job has none");
}

}  // namespace
}  // namespace ciranda::ps
