// What could break: workers that wait for each other or for one that is gone; a round that is
// taken in part or too early; a worker that returns behind the others.
#include "core/ps/decide/gate.h"

#include <gtest/gtest.h>

#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::kSync;

constexpr Mode kSspOf1{.kind = ModeKind::kSsp, .staleness = 1};

Ack ack_of(Worker worker, std::uint64_t seq) {
  return {.worker = worker, .seq = seq};
}

Push push_of(Worker worker, std::uint64_t clock) {
  return {.worker = worker, .seq = clock, .clock = clock};
}

void enter_all(Gate& gate, int workers) {
  for (Worker worker = 0; worker < workers; ++worker) gate.enter(worker);
}

std::vector<Worker> released(Gate& gate) {
  std::vector<Ack> acks;
  gate.release(acks);
  std::vector<Worker> workers;
  for (const Ack& ack : acks) workers.push_back(ack.worker);
  return workers;
}

// The workers of the round that is complete; none: it is not.
std::vector<Worker> round_of(Gate& gate) {
  std::vector<Worker> workers;
  for (const Push& push : gate.take_round(/*version=*/0)) workers.push_back(push.worker);
  return workers;
}

void push(Gate& gate, Worker worker, std::uint64_t clock) {
  gate.advance(worker, clock);
  gate.park(push_of(worker, clock));
}

TEST(Gate, OnlyBoundedStalenessHoldsAnAnswer) {
  const Mode async;
  const Gate open(async, 2);
  EXPECT_TRUE(open.may_go_on(100));
  Gate gate(kSspOf1, 2);
  EXPECT_TRUE(gate.may_go_on(1));
  EXPECT_FALSE(gate.may_go_on(2));  // worker 1 has not entered, but counts
  gate.advance(0, 2);
  EXPECT_FALSE(gate.may_go_on(2));
  gate.advance(1, 1);
  EXPECT_TRUE(gate.may_go_on(2));
}

TEST(Gate, AHeldAnswerIsReleasedOnceAndOnlyWhenTheSlowestHasMoved) {
  Gate gate(kSspOf1, 3);
  enter_all(gate, 3);
  gate.advance(0, 2);
  gate.hold(ack_of(0, 5), 2);
  EXPECT_TRUE(gate.holds(0, 5));
  EXPECT_FALSE(gate.holds(0, 4));
  EXPECT_EQ(gate.unanswered(0), 5u);
  gate.advance(1, 1);
  EXPECT_TRUE(released(gate).empty());
  gate.advance(2, 1);
  EXPECT_EQ(released(gate), std::vector<Worker>{0});
  EXPECT_TRUE(released(gate).empty());
  EXPECT_EQ(gate.unanswered(0), 0u);
}

TEST(Gate, NobodyWaitsForWhoIsGoneOrSilent) {
  Gate gate(kSspOf1, 3);
  enter_all(gate, 3);
  gate.advance(0, 2);
  gate.hold(ack_of(0, 2), 2);
  EXPECT_TRUE(gate.fall_silent(1));
  EXPECT_FALSE(gate.fall_silent(1));
  EXPECT_TRUE(released(gate).empty());
  gate.leave(2);
  EXPECT_FALSE(gate.fall_silent(2));
  EXPECT_EQ(released(gate), std::vector<Worker>{0});
}

TEST(Gate, WhoReturnsIsWhereTheSlowestIs) {
  Gate gate(kSspOf1, 3);
  enter_all(gate, 3);
  gate.advance(0, 7);
  gate.advance(1, 5);
  gate.leave(2);
  gate.enter(2);
  EXPECT_EQ(gate.clock(2), 5u);
  gate.fall_silent(0);
  gate.fall_silent(1);
  gate.leave(2);
  gate.enter(2);
  EXPECT_EQ(gate.clock(2), 5u);  // nobody counts: the slowest silent one decides
  gate.advance(2, 9);
  gate.hear(1);
  EXPECT_EQ(gate.clock(1), 9u);
  gate.advance(0, 12);
  gate.hear(0);
  EXPECT_EQ(gate.clock(0), 12u);  // it does not go back
}

TEST(Gate, WhoEntersAgainHasForgottenItsPush) {
  Gate gate(kSspOf1, 2);
  enter_all(gate, 2);
  gate.advance(0, 2);
  gate.hold(ack_of(0, 2), 2);
  gate.enter(0);
  EXPECT_EQ(gate.unanswered(0), 0u);
  gate.advance(1, 2);
  EXPECT_TRUE(released(gate).empty());
}

TEST(Gate, ARoundHasThePushesOfAllThatCount) {
  Gate gate(kSync, 3);
  EXPECT_TRUE(round_of(gate).empty());
  enter_all(gate, 3);
  push(gate, 2, 1);
  push(gate, 0, 1);
  EXPECT_TRUE(gate.is_parked(0));
  EXPECT_FALSE(gate.is_parked(1));
  EXPECT_TRUE(round_of(gate).empty());
  push(gate, 1, 1);
  EXPECT_EQ(round_of(gate), (std::vector<Worker>{0, 1, 2}));
  EXPECT_FALSE(gate.is_parked(0));
  EXPECT_EQ(gate.round_clock(), 1u);
  EXPECT_TRUE(round_of(gate).empty());
}

TEST(Gate, ARoundGoesWithoutBackupsAndWhoIsGoneButWithTheSilent) {
  constexpr Mode kBackup{.kind = ModeKind::kSync, .backup_workers = 1};
  Gate gate(kBackup, 4);
  enter_all(gate, 4);
  push(gate, 0, 1);
  gate.fall_silent(0);
  gate.leave(1);
  EXPECT_TRUE(round_of(gate).empty());
  push(gate, 2, 1);
  EXPECT_EQ(round_of(gate), (std::vector<Worker>{0, 2}));
}

TEST(Gate, ARoundDoesNotWaitForWhoWaitsForItElsewhere) {
  Gate gate(kSync, 2);
  enter_all(gate, 2);
  gate.advance(1, 1);  // its push of this clock is on its way
  push(gate, 0, 1);
  EXPECT_EQ(round_of(gate), std::vector<Worker>{0});
}

TEST(Gate, WhoComesLateIsInTheLatestRound) {
  Gate gate(kSync, 2);
  gate.enter(0);
  gate.fall_silent(1);
  push(gate, 0, 4);
  EXPECT_EQ(round_of(gate), std::vector<Worker>{0});
  gate.settle(1, 2);
  EXPECT_EQ(gate.clock(1), 4u);
  gate.settle(1, 6);
  EXPECT_EQ(gate.clock(1), 6u);
  gate.end_round(3);
  EXPECT_EQ(gate.round_clock(), 4u);
}

}  // namespace
}  // namespace ciranda::ps
