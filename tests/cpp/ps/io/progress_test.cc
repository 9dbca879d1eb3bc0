// What could break: a push whose number another push has had, an earlier push that a server is
// told wrongly about when it comes back, a checkpoint that is marked twice or not at all.
#include "core/ps/io/progress.h"

#include <gtest/gtest.h>

#include <vector>

namespace ciranda::ps {
namespace {

using Numbers = std::vector<std::uint64_t>;

// Sends a push at `begin_ns`, which both servers answer 10 ns later.
void push(PushProgress& pushes, Ack one, Ack other, std::uint64_t begin_ns = 0) {
  one.seq = other.seq = pushes.next({}).seq;
  pushes.sent(/*bytes=*/8, begin_ns);
  pushes.hear(0, one);
  pushes.hear(1, other);
  pushes.answered(begin_ns, begin_ns + 10);
}

TEST(PushProgress, NumbersFollowThoseThatAnyServerHasDecided) {
  PushProgress pushes(2);
  pushes.enter({.decided = 7, .decided_rows = 3});
  pushes.enter({.decided = 6, .decided_rows = 4});
  EXPECT_EQ(pushes.declare(5), (Declare{.model_bytes = 5, .decided = 7}));
  EXPECT_EQ(pushes.next({}).seq, 8u);
  EXPECT_EQ(pushes.next_of_rows(), 5u);
  EXPECT_EQ(pushes.next_of_rows(), 6u);
}

TEST(PushProgress, ClockIsOneMoreThanTheLargestThatAServerHasCounted) {
  PushProgress pushes(2);
  pushes.hear(0, Ready{.version = 3, .clock = 4});
  pushes.hear(1, Ready{.version = 5, .clock = 2});
  EXPECT_EQ(pushes.next({}).clock, 5u);
  push(pushes, {.version = 6, .clock = 5}, {.version = 9, .clock = 8});
  EXPECT_EQ(pushes.next({}).clock, 9u);
  EXPECT_EQ(pushes.next({}).seq, 2u);
  EXPECT_EQ(pushes.versions(), (Numbers{6, 9}));
}

TEST(PushProgress, ServerThatComesBackLearnsWhichPushesAreOver) {
  PushProgress pushes(2);
  EXPECT_FALSE(pushes.declare_again(0, 5));
  pushes.hear(0, Ready{});
  EXPECT_FALSE(pushes.declare_again(1, 5));  // it has given no parameters
  pushes.hear(1, Ready{});
  push(pushes, {}, {});
  EXPECT_EQ(pushes.declare_again(1, 5),
            (Declare{.model_bytes = 5, .decided = 1, .returns = true, .answered = 1}));
  pushes.sent(8, 0);
  pushes.hear(0, Ack{.seq = 2});
  EXPECT_EQ(pushes.declare_again(0, 5),
            (Declare{.model_bytes = 5, .decided = 1, .returns = true, .answered = 2}));
  EXPECT_EQ(pushes.declare_again(1, 5),
            (Declare{.model_bytes = 5, .decided = 1, .returns = true, .answered = 1}));
}

TEST(PushProgress, OutcomeIsTheLargestOfAllServersAndIsTakenOnce) {
  PushProgress pushes(2);
  push(pushes, {.outcome = Outcome::kLate}, {.outcome = Outcome::kStale});
  EXPECT_EQ(pushes.take_outcome(), Outcome::kLate);
  EXPECT_EQ(pushes.take_outcome(), Outcome::kApplied);
  push(pushes, {}, {.outcome = Outcome::kStale});
  push(pushes, {}, {});
  EXPECT_EQ(pushes.take_outcome(), Outcome::kApplied);
}

TEST(PushProgress, CountsPushesAndWhatTheyHaveWaited) {
  PushProgress pushes(2);
  push(pushes, {.held_ns = 3}, {.outcome = Outcome::kStale, .held_ns = 4}, 100);
  push(pushes, {.held_ns = 50}, {.held_ns = 1}, 200);  // no longer than the wait itself
  push(pushes, {}, {}, 300);
  pushes.pulled();
  const ClientStats& stats = pushes.stats();
  EXPECT_EQ(stats.outcomes[static_cast<std::size_t>(Outcome::kApplied)], 2u);
  EXPECT_EQ(stats.outcomes[static_cast<std::size_t>(Outcome::kStale)], 1u);
  EXPECT_EQ(stats.pushed_bytes, 24u);
  EXPECT_EQ(stats.waiting_ns, 30u);
  EXPECT_EQ(stats.held_ns, 14u);
  EXPECT_EQ(stats.pulls, 1u);
}

TEST(PushProgress, EachAnnouncedCheckpointIsMarkedOnce) {
  PushProgress pushes(2);
  pushes.hear(0, Ready{});
  EXPECT_FALSE(pushes.take_mark());
  EXPECT_FALSE(pushes.mark());
  push(pushes, {.checkpoint = 2}, {});
  EXPECT_EQ(pushes.announced(), 2u);
  EXPECT_EQ(pushes.take_mark(), Mark{.checkpoint = 2});
  EXPECT_FALSE(pushes.take_mark());
  push(pushes, {.checkpoint = 3}, {});
  EXPECT_EQ(pushes.mark(), Mark{.checkpoint = 2});  // the latest that servers were sent
  EXPECT_EQ(pushes.take_mark(), Mark{.checkpoint = 3});
}

TEST(TaskProgress, PushesAndPushesOfRowsAreCountedApart) {
  TaskProgress tasks;
  EXPECT_EQ(tasks.next_part(), TaskPart{});
  EXPECT_EQ(tasks.next_part(), TaskPart{});
  tasks.begin({.task = 4, .settled = 2});
  EXPECT_EQ(tasks.task(), 4u);
  EXPECT_EQ(tasks.next_part(), (TaskPart{.task = 4, .part = 1, .settled = 2}));
  EXPECT_EQ(tasks.next_part(), (TaskPart{.task = 4, .part = 2, .settled = 2}));
  EXPECT_EQ(tasks.next_part_of_rows(), (TaskPart{.task = 4, .part = 1, .settled = 2}));
  tasks.begin({.task = 5, .settled = 4});
  EXPECT_EQ(tasks.next_part(), (TaskPart{.task = 5, .part = 1, .settled = 4}));
}

TEST(TaskProgress, ServerThatKnowsFewerTasksGetsTheOthersAgain) {
  TaskProgress tasks;
  EXPECT_TRUE(tasks.scheduled_after(0).empty());
  for (const char* call : {"a", "b", "c"}) EXPECT_EQ(tasks.schedule(call, 2).call, call);
  EXPECT_EQ(tasks.scheduled(), 3u);
  ASSERT_EQ(tasks.scheduled_after(1).size(), 2u);
  EXPECT_EQ(tasks.scheduled_after(1)[0], (Schedule{.task = 2, .copies = 2, .call = "b"}));
  EXPECT_TRUE(tasks.scheduled_after(3).empty());
  EXPECT_TRUE(tasks.scheduled_after(9).empty());  // of a coordinator before this one
}

}  // namespace
}  // namespace ciranda::ps
