// What could break: a checkpoint that is announced too early, twice, or never.
#include "core/ps/decide/checkpoint_announcer.h"

#include <gtest/gtest.h>

#include <optional>

namespace ciranda::ps {
namespace {

// Has a place for a checkpoint, or none.
class Keeper final : public CheckpointKeeper {
 public:
  std::optional<Checkpoint> announce() override {
    if (!has_place) return std::nullopt;
    return ++latest;
  }
  void begin(Checkpoint) override {}
  void add(const Change&, const Journal::Data&) override {}
  void close() override {}
  void withdraw(Checkpoint) override {}

  Checkpoint latest = 0;
  bool has_place = true;
};

TEST(CheckpointAnnouncer, AnnouncesAfterSoManyPushes) {
  Keeper keeper;
  CheckpointAnnouncer announcer(3, 0);
  announcer.after_push(3, 0);
  EXPECT_EQ(announcer.latest(), 0u);  // nobody keeps any
  announcer.keep(&keeper, 0);
  announcer.after_push(1, 0);
  announcer.after_push(2, 0);
  EXPECT_EQ(announcer.latest(), 0u);
  announcer.after_push(3, 0);
  EXPECT_EQ(announcer.latest(), 1u);
  announcer.after_push(3, 0);  // not applied
  announcer.after_push(5, 0);
  EXPECT_EQ(announcer.latest(), 1u);
  announcer.after_push(6, 0);
  EXPECT_EQ(announcer.latest(), 2u);
}

TEST(CheckpointAnnouncer, AnnouncesAfterSoLongFromTheFirstPush) {
  Keeper keeper;
  CheckpointAnnouncer announcer(0, 100);
  announcer.keep(&keeper, 0);
  announcer.after_push(1, 1'000);
  announcer.after_push(2, 1'099);
  EXPECT_EQ(announcer.latest(), 0u);
  announcer.after_push(3, 1'100);
  EXPECT_EQ(announcer.latest(), 1u);
  announcer.after_push(4, 1'199);
  EXPECT_EQ(announcer.latest(), 1u);
}

TEST(CheckpointAnnouncer, WhatIsDueIsAnnouncedWhenThereIsAPlace) {
  Keeper keeper;
  CheckpointAnnouncer announcer(2, 0);
  announcer.keep(&keeper, 0);
  keeper.has_place = false;
  announcer.after_push(1, 0);
  announcer.after_push(2, 0);
  EXPECT_EQ(announcer.latest(), 0u);
  keeper.has_place = true;
  announcer.after_push(3, 0);
  EXPECT_EQ(announcer.latest(), 1u);
  announcer.after_push(4, 0);
  EXPECT_EQ(announcer.latest(), 1u);
}

TEST(CheckpointAnnouncer, ARestoredServerGoesOnInTheSameSteps) {
  Keeper keeper;
  keeper.latest = 4;
  CheckpointAnnouncer announcer(10, 0);
  announcer.keep(&keeper, 4);
  EXPECT_EQ(announcer.latest(), 4u);
  announcer.after_push(48, 0);
  EXPECT_EQ(announcer.latest(), 4u);
  announcer.after_push(50, 0);
  EXPECT_EQ(announcer.latest(), 5u);
}

}  // namespace
}  // namespace ciranda::ps
