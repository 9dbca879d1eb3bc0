// What could break: a coordinator that waits for ever, is told of a failure late or twice, or does
// not find its tasks again.
#include "core/ps/decide/task_protocol.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace ciranda::ps {
namespace {

class TaskProtocolTest : public ::testing::Test {
 protected:
  static constexpr Worker kCoordinator = 2;

  void say(Worker from, const Message& message) {
    const Status taken = protocol_.take(from, message, left_, answers_);
    ASSERT_TRUE(taken.ok()) << taken.error().text;
  }
  void schedule(TaskId task, int copies = 1) {
    say(kCoordinator, Schedule{.task = task, .copies = copies, .call = std::to_string(task)});
  }
  // The only answer.
  template <typename T>
  T answer(Worker to) {
    const TaskProtocol::Answers answers = std::exchange(answers_, {});
    if (answers.size() != 1 || answers[0].to != to ||
        !std::holds_alternative<T>(answers[0].message)) {
      ADD_FAILURE() << answers.size() << " answers, or another one";
      return {};
    }
    return std::get<T>(answers[0].message);
  }

  TaskProtocol protocol_{2};
  TaskProtocol::Left left_;
  TaskProtocol::Answers answers_;
};

TEST_F(TaskProtocolTest, AQuestionIsAnsweredAtOnceOrInTime) {
  schedule(1);
  say(kCoordinator, AskTask{.task = 1});
  EXPECT_EQ(answer<TaskStatus>(kCoordinator), TaskStatus{.task = 1});
  say(kCoordinator, AskTask{.task = 1, .waits = true});
  say(0, TakeTask{});
  EXPECT_EQ(answer<Given>(0).call, "1");
  say(0, TakeTask{.done = 1, .text = "42"});
  EXPECT_EQ(answer<TaskStatus>(kCoordinator),
            (TaskStatus{.task = 1, .done = true, .settled = 1, .text = "42"}));
  EXPECT_EQ(protocol_.take(kCoordinator, AskTask{.task = 2}, left_, answers_).error().text,
            "there is no task 2 of 1");
}

TEST_F(TaskProtocolTest, AFailureIsToldBeforeWhatIsWaitedForIsDone) {
  schedule(1);
  schedule(2);
  say(0, TakeTask{});
  EXPECT_EQ(answer<Given>(0).task, 1u);
  say(1, TakeTask{});
  EXPECT_EQ(answer<Given>(1).task, 2u);
  say(kCoordinator, AskTask{.task = 1, .waits = true, .failures = 0});
  say(1, TakeTask{.done = 2, .failed = true, .text = "why"});
  EXPECT_EQ(answer<TaskStatus>(kCoordinator),
            (TaskStatus{.task = 2, .done = true, .failed = true, .text = "why"}));
  say(kCoordinator, AskTask{.task = 1, .waits = true, .failures = 1});
  EXPECT_TRUE(answers_.empty());
  say(kCoordinator, AskTask{.task = 1, .waits = true});
  EXPECT_TRUE(answers_.empty());
}

TEST_F(TaskProtocolTest, ASlowTaskIsGivenTwiceAndTheFirstOutcomeCounts) {
  schedule(1, /*copies=*/2);
  say(0, TakeTask{});
  EXPECT_EQ(answer<Given>(0).task, 1u);
  say(1, TakeTask{});
  EXPECT_EQ(answer<Given>(1).task, 1u);
  say(1, TakeTask{.done = 1, .text = "fast"});
  say(0, TakeTask{.done = 1, .text = "slow"});
  say(kCoordinator, AskTask{.task = 1});
  EXPECT_EQ(answer<TaskStatus>(kCoordinator).text, "fast");
}

// A server that keeps its state in memory alone has come back with less of it.
TEST_F(TaskProtocolTest, WhatItDoesNotKnowAnyMoreIsDoneAgain) {
  say(0, TakeTask{.done = 1, .text = "forgotten"});
  EXPECT_TRUE(answers_.empty());
  schedule(1);
  EXPECT_EQ(answer<Given>(0).task, 1u);
}

TEST_F(TaskProtocolTest, WhatWasWrittenMakesItAgain) {
  struct Kept final : Journal {
    std::vector<Change> changes;
    void write(const Change& change, const Data&) override { changes.push_back(change); }
  } kept;
  schedule(1);
  std::vector<std::byte> saved;
  protocol_.save(saved);
  protocol_.keep_journal(&kept);
  schedule(1);  // is known
  schedule(2);
  say(0, TakeTask{.done = 2, .failed = true, .text = "why"});
  say(1, TakeTask{.done = 2, .text = "later"});
  say(kCoordinator, CloseTasks{.tasks = 2});
  EXPECT_EQ(std::get<TaskStatus>(answers_.back().message), TaskStatus{.settled = 0});
  EXPECT_EQ(kept.changes.size(), 3u);
  TaskProtocol again(2);
  ASSERT_TRUE(again.restore(saved).ok());
  for (const Change& change : kept.changes) {
    const Status repeated = again.repeat(change);
    ASSERT_TRUE(repeated.ok()) << repeated.error().text;
  }
  std::vector<std::byte> one;
  std::vector<std::byte> other;
  protocol_.save(one);
  again.save(other);
  EXPECT_EQ(one, other);
  EXPECT_EQ(again.repeat({.kind = Change::Kind::kLeft}).error().code, ErrorCode::kMalformed);
}

}  // namespace
}  // namespace ciranda::ps
