// What could break: a start on a host that is lost, a host's ranks that are waited for although
// they are lost, a process that is killed for what its connection does.
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/member/arbiter.h"

namespace ciranda::member {
namespace {

using Members = std::vector<Incarnation>;

// A job of two hosts with two ranks each: incarnations 1 and 2 on host 0, 3 and 4 on host 1.
class TwoHosts : public testing::Test {
 protected:
  static ArbiterOptions options() {
    return {.np = 4,
            .min_np = 2,
            .max_np = 4,
            .elastic_timeout_ns = 1000,
            .start_timeout_ns = 1000,
            .lease_ns = 100,
            .hosts = {{.slots = 2, .meet_at = "a:1"}, {.slots = 2, .meet_at = "b:2"}},
            .homes = {0, 0, 1, 1}};
  }

  // Two ranks on host 0, and spares on host 1.
  static ArbiterOptions two_and_spares(int spares) {
    ArbiterOptions two = options();
    two.np = two.max_np = 2;
    two.spares = spares;
    two.hosts[1].slots = spares;
    return two;
  }

  void keep(Actions actions) {
    for (Action& action : actions) actions_.push_back(std::move(action));
  }
  void say(Incarnation from, const FromRank& message) {
    keep(arbiter_.said(from, encode(message), now_));
  }
  void train() {
    keep(arbiter_.start(now_));
    for (const Incarnation each : Members{1, 2, 3, 4}) say(each, Ready{});
    for (const Incarnation each : Members{1, 2, 3, 4}) say(each, Formed{.epoch = 1});
  }
  // The newest epoch since the last call. Notes who has been told to leave.
  std::optional<NewEpoch> epoch() {
    std::optional<NewEpoch> newest;
    told_to_leave_.clear();
    for (const Action& action : actions_) {
      const Send* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      const FromArbiter message = decode_from_arbiter(send->bytes).value();
      if (const NewEpoch* next = std::get_if<NewEpoch>(&message)) newest = *next;
      if (std::holds_alternative<Over>(message)) told_to_leave_.push_back(send->incarnation);
    }
    actions_.clear();
    return newest;
  }
  template <typename Kind>
  std::vector<Kind> all() const {
    std::vector<Kind> found;
    for (const Action& action : actions_) {
      if (const Kind* each = std::get_if<Kind>(&action)) found.push_back(*each);
    }
    return found;
  }

  std::uint64_t now_ = 0;
  Arbiter arbiter_{options()};
  Actions actions_;
  Members told_to_leave_;
};

TEST_F(TwoHosts, AnEpochNamesTheHostsAndWhereRank0Listens) {
  train();
  EXPECT_EQ(
      epoch(),
      (NewEpoch{.number = 1, .members = {1, 2, 3, 4}, .hosts = {0, 0, 1, 1}, .meet_at = "a:1"}));
}

TEST_F(TwoHosts, TheHostOfRank0IsLikeAnyOther) {
  train();
  actions_.clear();
  keep(arbiter_.host_lost(0, now_));
  EXPECT_TRUE(all<Start>().empty()) << "nothing starts on a host that is lost";
  EXPECT_TRUE(all<Kill>().empty());
  EXPECT_EQ(epoch(), (NewEpoch{.number = 2, .members = {3, 4}, .hosts = {1, 1}, .meet_at = "b:2"}));
  say(1, Formed{.epoch = 2});
  keep(arbiter_.exited(1, ExitKind::kSignal, now_));
  keep(arbiter_.host_lost(0, now_));
  EXPECT_TRUE(actions_.empty()) << "what a lost host says counts no more";
}

TEST_F(TwoHosts, ALostRankIsStartedAgainOnItsHost) {
  train();
  actions_.clear();
  keep(arbiter_.exited(4, ExitKind::kSignal, now_));
  EXPECT_EQ(all<Start>(), (std::vector<Start>{{5, 3, 1}}));
  EXPECT_EQ(epoch()->members, (Members{1, 2, 3}));
  keep(arbiter_.host_lost(1, now_));
  EXPECT_EQ(epoch()->members, (Members{1, 2}));
}

TEST_F(TwoHosts, AHostIsGivenUpThatAnotherOneCannotReach) {
  train();
  actions_.clear();
  now_ = 10;
  say(1, Unreachable{.who = 3, .epoch = 1});
  now_ += options().suspicion_ns - 1;
  keep(arbiter_.tick(now_));
  EXPECT_TRUE(actions_.empty()) << "rank 2 may be gone, or its host";
  ++now_;
  EXPECT_LE(arbiter_.deadline(), now_);
  keep(arbiter_.tick(now_));
  EXPECT_EQ(all<GiveUp>(), (std::vector<GiveUp>{{.host = 1, .by = 0}}));
  keep(arbiter_.tick(now_ + 1));
  EXPECT_EQ(all<GiveUp>().size(), 1U);
  keep(arbiter_.host_lost(1, now_));
  EXPECT_EQ(epoch()->members, (Members{1, 2}));
}

TEST_F(TwoHosts, ASuspicionEndsWithItsEpoch) {
  train();
  say(1, Unreachable{.who = 3, .epoch = 1});
  keep(arbiter_.exited(3, ExitKind::kSignal, now_));
  EXPECT_EQ(epoch()->members, (Members{1, 2, 4}));
  say(2, Unreachable{.who = 4, .epoch = 1});
  say(2, Unreachable{.who = 1, .epoch = 2});
  say(2, Unreachable{.who = 77, .epoch = 2});
  now_ += 2 * options().suspicion_ns;
  keep(arbiter_.tick(now_));
  EXPECT_TRUE(all<GiveUp>().empty()) << "of an older epoch, of its host, of nobody";
}

TEST_F(TwoHosts, ALostHostThatReturnsGetsItsProcessesBack) {
  train();
  keep(arbiter_.host_lost(0, now_));
  for (const Incarnation each : Members{3, 4}) say(each, Formed{.epoch = 2});
  actions_.clear();
  keep(arbiter_.host_returned(0, "c:3", now_));
  EXPECT_EQ(all<Start>(), (std::vector<Start>{{5, 0}, {6, 1}}));
  say(5, Ready{});
  for (const Incarnation each : Members{5, 3, 4}) say(each, Formed{.epoch = 3});
  say(6, Ready{});
  EXPECT_EQ(epoch(), (NewEpoch{.number = 4,
                               .planned = true,
                               .members = {6, 5, 3, 4},
                               .hosts = {0, 0, 1, 1},
                               .meet_at = "c:3"}));
  keep(arbiter_.host_returned(0, "d:4", now_));
  EXPECT_TRUE(actions_.empty()) << "it was not lost";
}

TEST_F(TwoHosts, AProcessThatWasDoneIsNotStartedAgainWithItsHost) {
  keep(arbiter_.start(now_));
  say(4, AtEnd{});
  keep(arbiter_.host_lost(1, now_));
  actions_.clear();
  keep(arbiter_.host_returned(1, "c:3", now_));
  EXPECT_EQ(all<Start>(), (std::vector<Start>{{5, 2, 1}}));
}

TEST_F(TwoHosts, TooFewThatAreLeftWaitForALostHost) {
  ArbiterOptions three = options();
  three.min_np = 3;
  Arbiter arbiter(three);
  (void)arbiter.start(0);
  keep(arbiter.host_lost(1, 0));
  keep(arbiter.said(1, encode(FromRank(Ready{})), 0));
  keep(arbiter.tick(999));
  EXPECT_EQ(all<End>(), std::vector<End>());
  keep(arbiter.tick(1000));
  ASSERT_EQ(all<End>().size(), 1U);
  EXPECT_EQ(all<End>().front().reason, EndReason::kTooFewRanks);
}

TEST_F(TwoHosts, NobodyWaitsForAHostOnWhichNothingMayStart) {
  ArbiterOptions three = options();
  three.min_np = 3;
  three.reset_limit = 0;
  Arbiter arbiter(three);
  (void)arbiter.start(0);
  keep(arbiter.host_lost(1, 0));
  EXPECT_EQ(all<End>(), std::vector<End>()) << "nobody was ready";
  keep(arbiter.said(1, encode(FromRank(Ready{})), 0));
  ASSERT_EQ(all<End>().size(), 1U);
  EXPECT_EQ(all<End>().front().reason, EndReason::kResetLimit);
}

// Formed of a lost host may have been on its way, and then the others have made a step.
TEST_F(TwoHosts, ALostHostIsSupposedToHaveFormed) {
  keep(arbiter_.start(now_));
  for (const Incarnation each : Members{1, 2, 3, 4}) say(each, Ready{});
  for (const Incarnation each : Members{1, 2}) say(each, Formed{.epoch = 1});
  keep(arbiter_.exited(1, ExitKind::kSignal, now_));
  keep(arbiter_.exited(2, ExitKind::kSignal, now_));
  actions_.clear();
  keep(arbiter_.host_lost(1, now_));
  ASSERT_EQ(all<End>().size(), 1U);
  EXPECT_EQ(all<End>().front().reason, EndReason::kNoState);
}

// Nobody has formed an epoch: the one after the death had no place for the dead.
TEST_F(TwoHosts, ADeadMemberIsNotSupposedToHaveFormedALaterEpoch) {
  keep(arbiter_.start(now_));
  for (const Incarnation each : Members{1, 2, 3, 4}) say(each, Ready{});
  keep(arbiter_.exited(2, ExitKind::kSignal, now_));
  say(3, Died{.who = 4});
  EXPECT_EQ(epoch()->members, (Members{1, 3}));
  keep(arbiter_.host_lost(1, now_));
  EXPECT_TRUE(all<End>().empty());
}

TEST_F(TwoHosts, WhoSaysNothingWhileItsHostBeatsIsKilled) {
  train();
  for (const Incarnation each : Members{1, 2, 3, 4}) say(each, Beat{});
  for (now_ = 20; now_ < 200; now_ += 20) {
    for (const Incarnation each : Members{1, 2, 3}) say(each, Beat{});
    keep(arbiter_.host_beats(0, now_));
    if (now_ <= 60) keep(arbiter_.host_beats(1, now_));
  }
  EXPECT_TRUE(all<Kill>().empty());
  keep(arbiter_.host_beats(1, now_));
  EXPECT_EQ(all<Kill>(), (std::vector<Kill>{{4}}));
}

TEST_F(TwoHosts, FreeSlotsOfAnotherHostTakeProcessesOfALostOne) {
  ArbiterOptions roomy = options();
  roomy.hosts[1].slots = 3;
  Arbiter arbiter(roomy);
  keep(arbiter.start(now_));
  actions_.clear();
  keep(arbiter.host_lost(0, now_));
  EXPECT_EQ(all<Start>(), (std::vector<Start>{{5, 0, 1}}));
  actions_.clear();
  keep(arbiter.exited(5, ExitKind::kSignal, now_));
  EXPECT_EQ(all<Start>(), (std::vector<Start>{{6, 0, 1}}));
  actions_.clear();
  keep(arbiter.host_returned(0, "c:3", now_));
  EXPECT_EQ(all<Start>(), (std::vector<Start>{{7, 1, 0}}));
}

TEST_F(TwoHosts, AHostThatJoinsGetsProcessesUpToMaxNp) {
  ArbiterOptions growing = options();
  growing.max_np = 6;
  growing.hosts_may_join = true;
  Arbiter arbiter(growing);
  keep(arbiter.start(now_));
  EXPECT_EQ(all<Start>().size(), 4U);
  actions_.clear();
  keep(arbiter.host_joins(3, "c:3", now_));
  EXPECT_EQ(all<Start>(), (std::vector<Start>{{5, 4, 2}, {6, 5, 2}}));
  for (const Incarnation each : Members{1, 2, 3, 4}) {
    keep(arbiter.said(each, encode(FromRank(Ready{})), now_));
  }
  for (const Incarnation each : Members{1, 2, 3, 4}) {
    keep(arbiter.said(each, encode(FromRank(Formed{.epoch = 1})), now_));
  }
  actions_.clear();
  keep(arbiter.said(5, encode(FromRank(Ready{})), now_));
  EXPECT_EQ(epoch(), (NewEpoch{.number = 2,
                               .planned = true,
                               .members = {1, 2, 3, 4, 5},
                               .hosts = {0, 0, 1, 1, 2},
                               .meet_at = "a:1"}));
}

TEST_F(TwoHosts, MembersWhoseHostLeavesAreToldToLeave) {
  train();
  actions_.clear();
  keep(arbiter_.host_leaves(0, now_));
  EXPECT_EQ(
      epoch(),
      (NewEpoch{
          .number = 2, .planned = true, .members = {3, 4}, .hosts = {1, 1}, .meet_at = "b:2"}));
  EXPECT_EQ(told_to_leave_, (Members{1, 2}));
  keep(arbiter_.host_leaves(0, now_));
  for (const Incarnation each : Members{3, 4}) say(each, Formed{.epoch = 2});
  ASSERT_EQ(all<News>().size(), 1U);
  EXPECT_TRUE(all<News>().front().lost.empty());
  actions_.clear();
  for (const Incarnation each : Members{1, 2}) {
    keep(arbiter_.exited(each, ExitKind::kClean, now_));
  }
  EXPECT_TRUE(actions_.empty()) << "nobody waits for them, and nothing starts in their slots";
  keep(arbiter_.host_returned(0, "c:3", now_));
  EXPECT_EQ(all<Start>(), (std::vector<Start>{{5, 0}, {6, 1}}));
}

TEST_F(TwoHosts, MembersStayWhoAreNeeded) {
  train();
  keep(arbiter_.exited(4, ExitKind::kSignal, now_));
  for (const Incarnation each : Members{1, 2, 3}) say(each, Formed{.epoch = 2});
  actions_.clear();
  keep(arbiter_.host_leaves(0, now_));
  EXPECT_EQ(epoch(), std::nullopt) << "one would be left, two are needed";
  say(5, Ready{});
  EXPECT_EQ(epoch()->members, (Members{5, 3}));
  EXPECT_EQ(told_to_leave_, (Members{1, 2}));
}

TEST_F(TwoHosts, TheLastHostWithMembersKeepsThemUntilOthersHoldTheState) {
  ArbiterOptions two = two_and_spares(2);
  two.min_np = 1;
  two.max_np = 3;
  Arbiter arbiter(two);
  const auto hear = [&](Incarnation from, const FromRank& message) {
    keep(arbiter.said(from, encode(message), now_));
  };
  keep(arbiter.start(now_));
  for (const Incarnation each : Members{1, 2}) hear(each, Ready{});
  for (const Incarnation each : Members{1, 2}) hear(each, Formed{.epoch = 1});
  actions_.clear();
  keep(arbiter.host_leaves(0, now_));
  EXPECT_EQ(epoch(), std::nullopt);
  hear(3, Ready{});
  EXPECT_EQ(epoch()->members, (Members{1, 2, 3}));
  for (const Incarnation each : Members{1, 2, 3}) hear(each, Formed{.epoch = 2});
  EXPECT_EQ(epoch()->members, (Members{3}));
  EXPECT_EQ(told_to_leave_, (Members{1, 2}));
}

TEST_F(TwoHosts, SparesOfAHostThatLeavesAreKilledAndNotStartedAgain) {
  Arbiter arbiter(two_and_spares(2));
  keep(arbiter.start(now_));
  keep(arbiter.said(3, encode(FromRank(Ready{})), now_));
  keep(arbiter.host_leaves(1, now_));
  EXPECT_EQ(all<Kill>(), (std::vector<Kill>{{3}, {4}}));
  actions_.clear();
  for (const Incarnation each : Members{3, 4}) {
    keep(arbiter.exited(each, ExitKind::kSignal, now_));
  }
  EXPECT_TRUE(actions_.empty());
}

TEST_F(TwoHosts, ManySparesOfAHostThatLeavesAreNoFailedStarts) {
  Arbiter arbiter(two_and_spares(20));
  keep(arbiter.start(now_));
  keep(arbiter.host_leaves(1, now_));
  for (const Kill& each : all<Kill>()) {
    keep(arbiter.exited(each.incarnation, ExitKind::kSignal, now_));
  }
  EXPECT_EQ(all<Kill>().size(), 20U);
  EXPECT_TRUE(all<End>().empty());
}

TEST_F(TwoHosts, AJobThatHasLostAllBeforeItsFirstEpochEnds) {
  keep(arbiter_.start(now_));
  keep(arbiter_.host_lost(0, now_));
  EXPECT_TRUE(all<End>().empty());
  keep(arbiter_.host_lost(1, now_));
  ASSERT_EQ(all<End>().size(), 1U);
  EXPECT_EQ(all<End>().front().reason, EndReason::kTooFewRanks);
}

TEST_F(TwoHosts, AHostMayBeLostWhileItLeaves) {
  train();
  say(1, AtEnd{.since = 1});
  actions_.clear();
  keep(arbiter_.host_leaves(1, now_));
  EXPECT_EQ(epoch(), std::nullopt) << "at the program's end its members stay";
  keep(arbiter_.host_lost(1, now_));
  EXPECT_EQ(epoch()->members, (Members{1, 2}));
}

// It had left its last loop with the others, so it has done its part when it comes to the end.
TEST_F(TwoHosts, AReleasedMemberThatComesToItsEndIsNotMissed) {
  train();
  keep(arbiter_.host_leaves(1, now_));
  for (const Incarnation each : Members{1, 2}) say(each, Formed{.epoch = 2});
  actions_.clear();
  for (const Incarnation each : Members{1, 2, 3}) say(each, AtEnd{.since = 1});
  EXPECT_EQ(epoch(), std::nullopt);
  EXPECT_TRUE(told_to_leave_.empty()) << "rank 3 may still do its part";
  say(4, AtEnd{.since = 1});
  EXPECT_EQ(epoch(), std::nullopt);
  EXPECT_EQ(told_to_leave_, (Members{1, 2}));
}

}  // namespace
}  // namespace ciranda::member
