// What could break: an epoch without those who live, or with those who do not; a job that waits for
// ever, or ends although it could go on.
#include "core/member/arbiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace ciranda::member {
namespace {

constexpr std::uint64_t kTimeout = 1000;

// An arbiter, and what it has asked for since the last look at it.
class Job {
 public:
  explicit Job(ArbiterOptions options) : arbiter_(with_timeouts(options)) {
    keep(arbiter_.start(now));
  }

  void ready(Incarnation from) { say(from, Ready{}); }
  void formed(Incarnation from, EpochNumber epoch, std::uint64_t step = 7) {
    say(from, Formed{.epoch = epoch, .step = step});
  }
  void at_end(Incarnation from, EpochNumber since = 1) { say(from, AtEnd{.since = since}); }
  void beat(Incarnation from) { say(from, Beat{}); }
  void say(Incarnation from, const FromRank& message) {
    keep(arbiter_.said(from, encode(message), now));
  }
  void say_nonsense(Incarnation from) {
    keep(arbiter_.said(from, std::vector<std::byte>(3, std::byte{9}), now));
  }
  void exit(Incarnation who, ExitKind how = ExitKind::kSignal) {
    keep(arbiter_.exited(who, how, now));
  }
  void wait_until_deadline() {
    const auto deadline = arbiter_.deadline();
    ASSERT_TRUE(deadline.has_value());
    now = *deadline;
    keep(arbiter_.tick(now));
  }
  void tick(std::uint64_t time) {
    now = time;
    keep(arbiter_.tick(now));
  }
  std::optional<std::uint64_t> deadline() const { return arbiter_.deadline(); }
  bool waits_for_no_time() const { return !arbiter_.deadline().has_value(); }

  // The job's first processes are ready and form epoch 1.
  void train(Incarnation members) {
    for (Incarnation each = 1; each <= members; ++each) ready(each);
    for (Incarnation each = 1; each <= members; ++each) formed(each, 1);
    actions_.clear();
  }
  // The member is lost, and its successor joins the others.
  void replace(Incarnation lost, Incarnation successor, ExitKind how, std::uint64_t step = 7) {
    exit(lost, how);
    form(step);
    ready(successor);
    form(step);
  }
  // All members form the epoch that was sent. Returns them.
  std::vector<Incarnation> form(std::uint64_t step = 7) {
    const auto next = epoch();
    if (!next) return {};
    for (const Incarnation each : next->members) formed(each, next->number, step);
    return next->members;
  }

  template <typename Kind>
  std::vector<Kind> take() {
    std::vector<Kind> found;
    for (const Action& action : actions_) {
      if (const Kind* each = std::get_if<Kind>(&action)) found.push_back(*each);
    }
    std::erase_if(actions_, [](const Action& each) { return std::holds_alternative<Kind>(each); });
    return found;
  }
  // The epoch that was sent, to all its members and to nobody else.
  std::optional<NewEpoch> epoch() {
    std::optional<NewEpoch> sent;
    std::vector<Incarnation> to;
    for (const Send& send : take<Send>()) {
      const auto message = decode_from_arbiter(send.bytes).value();
      if (!std::holds_alternative<NewEpoch>(message)) continue;
      sent = std::get<NewEpoch>(message);
      to.push_back(send.incarnation);
    }
    EXPECT_EQ(to, sent ? sent->members : std::vector<Incarnation>());
    return sent;
  }
  // Those who were told to leave.
  std::vector<Incarnation> told_over() {
    std::vector<Incarnation> to;
    for (const Send& send : take<Send>()) {
      if (decode_from_arbiter(send.bytes).value() == FromArbiter(Over{})) {
        to.push_back(send.incarnation);
      }
    }
    return to;
  }
  std::optional<End> end() {
    const auto ends = take<End>();
    return ends.empty() ? std::nullopt : std::optional(ends.front());
  }
  News news(NewsKind kind) {
    for (const News& each : take<News>()) {
      if (each.kind == kind) return each;
    }
    ADD_FAILURE() << "no such news";
    return {};
  }

  std::uint64_t now = 0;

 private:
  static ArbiterOptions with_timeouts(ArbiterOptions options) {
    options.elastic_timeout_ns = kTimeout;
    options.start_timeout_ns = 3 * kTimeout;
    return options;
  }
  void keep(Actions actions) { actions_.insert(actions_.end(), actions.begin(), actions.end()); }

  Arbiter arbiter_;
  Actions actions_;
};

using Members = std::vector<Incarnation>;

ArbiterOptions three_to_four(int spares = 0) {
  return {.np = 4, .min_np = 3, .max_np = 4, .spares = spares};
}

TEST(Arbiter, StartsRanksAndSpares) {
  Job job(three_to_four(1));
  EXPECT_EQ(job.take<Start>(), (std::vector<Start>{{1, 0}, {2, 1}, {3, 2}, {4, 3}, {5, 4}}));
}

TEST(Arbiter, TheFirstEpochHasItsMembersInTheOrderOfTheirSlots) {
  Job job(three_to_four());
  for (const Incarnation each : Members{3, 1, 4}) job.ready(each);
  EXPECT_FALSE(job.epoch());
  job.ready(2);
  EXPECT_EQ(job.epoch(), (NewEpoch{.number = 1, .members = {1, 2, 3, 4}}));
}

TEST(Arbiter, TheFirstEpochFormsWithFewerAfterTheTimeout) {
  Job job(three_to_four());
  for (const Incarnation each : Members{1, 2, 4}) job.ready(each);
  EXPECT_FALSE(job.epoch());
  job.wait_until_deadline();
  EXPECT_EQ(job.now, kTimeout);
  EXPECT_EQ(job.epoch()->members, (Members{1, 2, 4}));
}

TEST(Arbiter, TheFirstReadyProcessWaitsForTheStartTimeout) {
  Job job(three_to_four());
  EXPECT_TRUE(job.waits_for_no_time()) << "a program without a loop runs as long as it likes";
  job.now = 10;
  job.ready(1);
  job.wait_until_deadline();
  EXPECT_FALSE(job.end());
  job.wait_until_deadline();
  EXPECT_EQ(job.now, 10 + 3 * kTimeout);
  EXPECT_EQ(job.end()->reason, EndReason::kTooFewRanks);
}

TEST(Arbiter, SurvivorsGoOnAtOnceAndTheLostOneIsStartedAgain) {
  Job job(three_to_four());
  job.train(4);
  job.now = 100;
  job.exit(2);
  EXPECT_EQ(job.epoch(), (NewEpoch{.number = 2, .members = {1, 3, 4}}));
  EXPECT_EQ(job.take<Start>(), (std::vector<Start>{{5, 1}}));
  job.now = 130;
  for (const Incarnation each : Members{1, 3, 4}) job.formed(each, 2);
  const News news = job.news(NewsKind::kFormed);
  EXPECT_EQ(news.lost, (std::vector<Lost>{{.incarnation = 2, .rank = 1}}));
  EXPECT_EQ(news.members, (Members{1, 3, 4}));
  EXPECT_TRUE(news.joined.empty());
  EXPECT_EQ(news.since_ns, 30);
  EXPECT_EQ(news.step, 7);
}

TEST(Arbiter, NewcomersTakeThePlaceThatWasVacatedLast) {
  Job job({.np = 4, .min_np = 2, .max_np = 4});
  job.train(4);
  job.exit(1);
  EXPECT_EQ(job.form(), (Members{2, 3, 4}));
  job.exit(3);
  EXPECT_EQ(job.form(), (Members{2, 4}));
  job.ready(5);
  EXPECT_EQ(job.form(), (Members{2, 5, 4}));
  job.ready(6);
  EXPECT_EQ(job.form(), (Members{6, 2, 5, 4}));
}

TEST(Arbiter, ANewcomerTakesTheFreePlaceInAPlannedEpoch) {
  Job job(three_to_four());
  job.train(4);
  job.now = 100;
  job.exit(2);
  for (const Incarnation each : Members{1, 3, 4}) job.formed(each, 2);
  job.epoch();
  job.ready(5);
  EXPECT_EQ(job.epoch(), (NewEpoch{.number = 3, .planned = true, .members = {1, 5, 3, 4}}));
  job.take<News>();
  job.now = 400;
  for (const Incarnation each : Members{1, 3, 4, 5}) job.formed(each, 3);
  const News news = job.news(NewsKind::kFormed);
  EXPECT_TRUE(news.planned);
  EXPECT_EQ(news.joined, (Members{5}));
  EXPECT_EQ(news.since_ns, 300) << "since it was last as large";
}

TEST(Arbiter, ASpareTakesThePlaceAtOnce) {
  Job job(three_to_four(1));
  job.train(4);
  job.ready(5);
  job.exit(3);
  EXPECT_EQ(job.epoch(), (NewEpoch{.number = 2, .members = {1, 2, 5, 4}}));
}

TEST(Arbiter, APlannedEpochWaitsUntilTheCurrentOneHasFormed) {
  Job job(three_to_four());
  job.train(4);
  job.exit(2);
  job.epoch();
  job.ready(5);
  EXPECT_FALSE(job.epoch());
  for (const Incarnation each : Members{1, 3, 4}) job.formed(each, 2);
  EXPECT_TRUE(job.epoch()->planned);
}

TEST(Arbiter, NobodyJoinsOnceAMemberIsAtItsEnd) {
  Job job(three_to_four());
  job.train(4);
  job.exit(2);
  for (const Incarnation each : Members{1, 3, 4}) job.formed(each, 2);
  job.epoch();
  job.at_end(3, 2);
  job.ready(5);
  EXPECT_FALSE(job.epoch());
}

TEST(Arbiter, TheJobWaitsForMembersAndThenEnds) {
  Job job({.np = 2, .min_np = 2, .max_np = 2});
  job.train(2);
  job.now = 50;
  job.exit(1);
  EXPECT_FALSE(job.epoch());
  EXPECT_EQ(job.news(NewsKind::kWaiting).members, (Members{2}));
  job.wait_until_deadline();
  EXPECT_EQ(job.now, 50 + kTimeout);
  EXPECT_EQ(job.end()->reason, EndReason::kTooFewRanks);
}

TEST(Arbiter, ALossWhileOthersWaitIsTold) {
  Job job({.np = 3, .min_np = 3, .max_np = 3});
  job.train(3);
  job.exit(1);
  EXPECT_EQ(job.news(NewsKind::kWaiting).lost, (std::vector<Lost>{{1, 0}}));
  job.exit(2);
  const News news = job.news(NewsKind::kWaiting);
  EXPECT_EQ(news.members, Members{3});
  EXPECT_EQ(news.lost, (std::vector<Lost>{{1, 0}, {2, 1}}));
}

TEST(Arbiter, TheJobEndsWhenNobodyWhoHoldsStateIsLeft) {
  Job job({.np = 1, .min_np = 1, .max_np = 2});
  job.train(1);
  job.exit(1);
  EXPECT_EQ(job.end()->reason, EndReason::kNoState);
}

TEST(Arbiter, AMemberThatHasNotFormedHoldsNoState) {
  Job job({.np = 1, .min_np = 1, .max_np = 2, .spares = 1});
  job.train(1);
  job.ready(2);
  EXPECT_EQ(job.epoch()->members, (Members{1, 2}));
  job.exit(1);
  EXPECT_EQ(job.end()->reason, EndReason::kNoState);
}

TEST(Arbiter, TheFirstToFormDoNotMakeAState) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.ready(1);
  job.ready(2);
  job.formed(1, 1, 0);
  EXPECT_TRUE(job.epoch());
  job.exit(2);
  EXPECT_EQ(job.epoch()->members, (Members{1}));
  job.exit(1);
  EXPECT_FALSE(job.end()) << "no step was made";
  job.ready(3);
  job.ready(4);
  EXPECT_EQ(job.epoch()->members.size(), 2);
}

TEST(Arbiter, OneThatHasFormedAndIsGoneCountsForTheState) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.ready(1);
  job.ready(2);
  job.formed(2, 1, 0);
  job.exit(2);
  job.formed(1, 1, 0);
  job.exit(1);
  EXPECT_EQ(job.end()->reason, EndReason::kNoState) << "both may have made a step";
}

TEST(Arbiter, OneThatHasFormedAndIsToldToDieCountsForTheState) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.ready(1);
  job.ready(2);
  job.formed(1, 1, 0);
  job.say_nonsense(2);
  job.formed(2, 1, 0);
  job.exit(1);
  job.exit(2);
  EXPECT_EQ(job.end()->reason, EndReason::kNoState);
}

TEST(Arbiter, OneThatFormedAnOlderEpochHoldsState) {
  Job job({.np = 1, .min_np = 1, .max_np = 3, .spares = 2});
  job.train(1);
  job.ready(2);
  job.formed(1, 2);
  job.formed(2, 2);
  job.epoch();
  job.ready(3);
  job.epoch();
  job.exit(1);
  EXPECT_FALSE(job.end());
  EXPECT_EQ(job.epoch()->members, (Members{2, 3}));
}

TEST(Arbiter, NoEpochIsSentBeforeTheKilledAreReaped) {
  Job job(three_to_four());
  job.train(4);
  job.say_nonsense(4);
  EXPECT_EQ(job.take<Kill>(), (std::vector<Kill>{{4}}));
  EXPECT_EQ(job.news(NewsKind::kBadMessage).incarnation, 4u);
  EXPECT_FALSE(job.epoch());
  job.exit(4);
  EXPECT_EQ(job.epoch()->members, (Members{1, 2, 3}));
}

TEST(Arbiter, AnErrorBeforeAnyStateEndsTheJob) {
  Job job(three_to_four());
  job.ready(1);
  job.exit(2, ExitKind::kError);
  EXPECT_EQ(job.end(), (End{EndReason::kFailedAtStart, 2}));
}

TEST(Arbiter, AnErrorLaterIsALossLikeAnyOther) {
  Job job(three_to_four());
  job.train(4);
  job.exit(2, ExitKind::kError);
  EXPECT_TRUE(job.epoch());
  EXPECT_EQ(job.take<Start>().size(), 1);
}

TEST(Arbiter, ASignalBeforeAnyStateIsALoss) {
  Job job(three_to_four());
  job.exit(2);
  EXPECT_FALSE(job.end());
  EXPECT_EQ(job.take<Start>().back(), (Start{5, 1}));
}

TEST(Arbiter, StartsThatNeverFormEndTheJob) {
  Job job(three_to_four());
  job.train(4);
  job.exit(1);
  for (const Incarnation each : Members{2, 3, 4}) job.formed(each, 2);
  for (Incarnation each = 5; each < 15; ++each) {
    job.exit(each, ExitKind::kError);
    ASSERT_FALSE(job.end()) << each;
  }
  job.exit(15, ExitKind::kError);
  EXPECT_EQ(job.end(), (End{EndReason::kFailedAtStart, 15}));
}

TEST(Arbiter, AThirdErrorAtOneStepEndsTheJob) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.train(2);
  job.replace(2, 3, ExitKind::kError);
  job.replace(3, 4, ExitKind::kError);
  EXPECT_FALSE(job.end());
  job.exit(4, ExitKind::kError);
  EXPECT_EQ(job.end(), (End{EndReason::kStuck, 4}));
}

TEST(Arbiter, ErrorsAtDifferentStepsAreLosses) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.train(2);
  for (Incarnation each = 2; each < 20; ++each) {
    job.replace(each, each + 1, ExitKind::kError, 7 + each);
    ASSERT_FALSE(job.end()) << each;
  }
}

TEST(Arbiter, AnEleventhLossAtOneStepEndsTheJob) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.train(2);
  for (Incarnation each = 2; each < 12; ++each) {
    job.replace(each, each + 1, ExitKind::kSignal);
    ASSERT_FALSE(job.end()) << each;
  }
  job.exit(12);
  EXPECT_EQ(job.end(), (End{EndReason::kStuck, 12}));
}

TEST(Arbiter, RanksThatAreLostTogetherAreOneLoss) {
  Job job({.np = 20, .min_np = 1, .max_np = 20});
  job.train(20);
  for (Incarnation each = 2; each <= 20; ++each) {  // before the others have met anew
    job.exit(each);
    ASSERT_FALSE(job.end()) << each;
    EXPECT_EQ(job.epoch()->members.size(), 21 - each);
  }
}

TEST(Arbiter, TheResetLimitBoundsStarts) {
  Job job({.np = 3, .min_np = 2, .max_np = 3, .reset_limit = 0});
  job.train(3);
  job.exit(1);
  EXPECT_EQ(job.epoch()->members, (Members{2, 3}));
  EXPECT_TRUE(job.take<Start>().empty());
  EXPECT_EQ(job.news(NewsKind::kNoMoreStarts).incarnation, 1u);
  job.exit(2);
  EXPECT_EQ(job.end()->reason, EndReason::kResetLimit);
}

TEST(Arbiter, AllLeaveTogetherAndTheJobEndsWhenAllAreReaped) {
  Job job(three_to_four(1));
  job.train(4);
  job.ready(5);
  for (const Incarnation each : Members{1, 2, 3}) job.at_end(each);
  EXPECT_TRUE(job.told_over().empty());
  job.at_end(4);
  EXPECT_EQ(job.told_over(), (Members{1, 2, 3, 4}));
  EXPECT_EQ(job.take<Kill>(), (std::vector<Kill>{{5}}));
  for (const Incarnation each : Members{1, 2, 3, 5}) job.exit(each, ExitKind::kClean);
  EXPECT_FALSE(job.end());
  job.exit(4);
  EXPECT_EQ(job.news(NewsKind::kEndedLate).incarnation, 4u);
  EXPECT_EQ(job.end(), (End{EndReason::kFinished, 0}));
}

TEST(Arbiter, AnEndThatWasSaidInAnOlderEpochIsForgotten) {
  Job job({.np = 3, .min_np = 2, .max_np = 3});
  job.train(3);
  job.at_end(1);
  job.exit(3);
  EXPECT_EQ(job.epoch()->members, (Members{1, 2}));
  job.at_end(1);  // still in epoch 1
  job.formed(1, 2);
  job.formed(2, 2);
  job.at_end(2, 2);
  EXPECT_TRUE(job.told_over().empty());
  job.at_end(1, 2);
  EXPECT_EQ(job.told_over(), (Members{1, 2}));
}

TEST(Arbiter, ARankThatWasLostAtTheEndIsReplacedBeforeAllLeave) {
  Job job({.np = 3, .min_np = 2, .max_np = 3, .spares = 1});
  job.train(3);
  job.at_end(1);
  job.exit(2);
  for (const Incarnation each : Members{1, 3}) job.formed(each, 2);
  for (const Incarnation each : Members{1, 3}) job.at_end(each);
  EXPECT_TRUE(job.told_over().empty());
  job.ready(4);
  EXPECT_EQ(job.epoch(), (NewEpoch{.number = 3, .planned = true, .members = {1, 4, 3}}));
  job.ready(5);
  EXPECT_FALSE(job.epoch()) << "no other is missing";
  for (const Incarnation each : Members{1, 3, 4}) job.formed(each, 3);
  for (const Incarnation each : Members{1, 3}) job.at_end(each);
  job.at_end(4, 3);
  EXPECT_EQ(job.told_over(), (Members{1, 3, 4}));
}

TEST(Arbiter, NoMoreJoinAtTheEndThanAreMissing) {
  Job job({.np = 2, .min_np = 2, .max_np = 4, .spares = 1});
  job.train(2);
  job.at_end(1);
  job.ready(3);
  EXPECT_FALSE(job.epoch());
  job.exit(2);
  EXPECT_EQ(job.epoch()->members, (Members{1, 3}));
  job.ready(4);
  for (const Incarnation each : Members{1, 3}) job.formed(each, 2);
  EXPECT_FALSE(job.epoch());
}

TEST(Arbiter, ARankThatNobodyCanReplaceAtTheEndEndsTheJob) {
  Job job({.np = 2, .min_np = 1, .max_np = 2, .reset_limit = 0});
  job.train(2);
  job.exit(2);
  job.formed(1, 2);
  job.at_end(1);
  EXPECT_EQ(job.end(), (End{EndReason::kUnfinished, 2}));
}

TEST(Arbiter, ARankIsMissedAtTheEndForTheTimeout) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.train(2);
  job.exit(2);
  job.formed(1, 2);
  job.now = 10;
  job.at_end(1);
  job.wait_until_deadline();
  EXPECT_EQ(job.now, 10 + kTimeout);
  EXPECT_EQ(job.end(), (End{EndReason::kUnfinished, 2}));
}

TEST(Arbiter, ARankThatIsKilledAtTheEndIsReplacedOnceItIsReaped) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.train(2);
  job.at_end(1);
  job.say_nonsense(2);
  EXPECT_FALSE(job.end());
  job.exit(2);
  EXPECT_FALSE(job.end());
  EXPECT_EQ(job.take<Start>().back(), (Start{3, 1}));
}

TEST(Arbiter, ARankThatHasEndedBeforeTheOthersEndsTheJob) {
  Job job(three_to_four());
  job.train(4);
  job.at_end(2);
  EXPECT_FALSE(job.end()) << "the others may be on their way to the end";
  job.say(1, LeftEarly{.who = 2, .epoch = 1, .step = 9});
  EXPECT_EQ(job.end(), (End{.reason = EndReason::kLeftEarly, .incarnation = 2, .step = 9}));
}

TEST(Arbiter, ARankMayBeMissedBeforeItsEndIsHeardOf) {
  Job job(three_to_four());
  job.train(4);
  job.say(1, LeftEarly{.who = 2, .epoch = 1, .step = 9});
  EXPECT_FALSE(job.end());
  job.at_end(3);
  EXPECT_FALSE(job.end()) << "nobody needs this one";
  job.at_end(2);
  EXPECT_EQ(job.end()->reason, EndReason::kLeftEarly);
}

TEST(Arbiter, ARankThatWasNeededInAnOlderEpochIsNotMissed) {
  Job job(three_to_four());
  job.train(4);
  job.say(1, LeftEarly{.who = 2, .epoch = 1, .step = 9});
  job.exit(3);
  job.form();
  job.say(1, LeftEarly{.who = 2, .epoch = 1, .step = 9});
  job.at_end(2);
  EXPECT_FALSE(job.end());
}

TEST(Arbiter, ARankThatIsLostAfterAnEarlyEndIsALoss) {
  Job job(three_to_four());
  job.train(4);
  job.at_end(2);
  job.exit(2, ExitKind::kClean);
  job.say(1, LeftEarly{.who = 2, .epoch = 1, .step = 9});
  EXPECT_FALSE(job.end());
  EXPECT_EQ(job.epoch()->members, (Members{1, 3, 4}));
}

TEST(Arbiter, AnErrorAfterTheEndFailsTheJob) {
  Job job({.np = 1, .min_np = 1, .max_np = 1});
  job.train(1);
  job.at_end(1);
  job.exit(1, ExitKind::kError);
  EXPECT_EQ(job.end(), (End{EndReason::kFailed, 1}));
}

TEST(Arbiter, AProgramWithoutALoopEndsWithItsProcesses) {
  Job job({.np = 2, .min_np = 1, .max_np = 2, .spares = 1});
  job.at_end(1);
  job.exit(2, ExitKind::kClean);
  EXPECT_FALSE(job.end());
  job.ready(3);
  EXPECT_EQ(job.take<Kill>(), (std::vector<Kill>{{3}}));
  job.exit(3);
  EXPECT_FALSE(job.end());
  job.exit(1, ExitKind::kClean);
  EXPECT_EQ(job.end()->reason, EndReason::kFinished);
}

TEST(Arbiter, ASilentMemberIsKilled) {
  Job job({.np = 2, .min_np = 1, .max_np = 2, .lease_ns = 100});
  job.train(2);
  job.beat(1);
  job.beat(2);
  for (std::uint64_t time = 25; time <= 100; time += 25) {
    job.now = time;
    job.beat(1);
  }
  EXPECT_EQ(job.take<Kill>(), (std::vector<Kill>{{2}}));
  EXPECT_EQ(job.news(NewsKind::kSilent).incarnation, 2u);
  EXPECT_FALSE(job.epoch());
  job.exit(2);
  EXPECT_EQ(job.epoch()->members, (Members{1}));
}

TEST(Arbiter, TheLauncherLooksForTheSilentEachQuarterOfALease) {
  Job job({.np = 1, .min_np = 1, .max_np = 1, .lease_ns = 100});
  EXPECT_EQ(job.deadline(), 25);
  job.tick(25);
  EXPECT_EQ(job.deadline(), 50);
  job.train(1);
  job.at_end(1);
  EXPECT_TRUE(job.waits_for_no_time()) << "nobody has a lease after the end";
}

TEST(Arbiter, MessagesOfTheDepartedAreIgnored) {
  Job job(three_to_four());
  job.train(4);
  job.exit(2);
  job.epoch();
  job.at_end(2);
  job.say_nonsense(2);
  job.say_nonsense(99);
  EXPECT_TRUE(job.take<Kill>().empty());
}

TEST(Arbiter, WhoHasDiedNeedNotBeReapedBeforeTheNextEpoch) {
  Job job(three_to_four());
  job.train(4);
  job.say(1, Died{.who = 3});
  EXPECT_EQ(job.take<Kill>(), std::vector<Kill>{{3}});
  EXPECT_EQ(job.epoch()->members, (Members{1, 2, 4}));
  for (const Incarnation each : {1u, 2u, 4u}) job.formed(each, 2);
  EXPECT_EQ(job.news(NewsKind::kFormed).lost, (std::vector<Lost>{{3, 2}}));
  job.say(4, Died{.who = 3});  // known already
  EXPECT_FALSE(job.epoch().has_value());
  // Its slot is free when it is reaped.
  EXPECT_TRUE(job.take<Start>().empty());
  job.exit(3);
  EXPECT_EQ(job.take<Start>(), (std::vector<Start>{{5, 2}}));
  EXPECT_FALSE(job.epoch().has_value());
  job.ready(5);
  EXPECT_EQ(job.epoch()->members, (Members{1, 2, 5, 4}));
}

TEST(Arbiter, WhoIsKilledForSilenceMustBeReapedUnlessItHasDied) {
  Job job({.np = 3, .min_np = 2, .max_np = 3, .lease_ns = 100});
  job.train(3);
  for (const Incarnation each : {1u, 2u, 3u}) job.beat(each);
  for (job.now = 20; job.now <= 80; job.now += 20) {
    for (const Incarnation each : {1u, 2u}) job.beat(each);
  }
  for (const std::uint64_t time : {90u, 100u}) job.tick(time);
  EXPECT_EQ(job.take<Kill>(), std::vector<Kill>{{3}});
  EXPECT_FALSE(job.epoch().has_value());
  job.say(2, Died{.who = 3});
  EXPECT_EQ(job.epoch()->members, (Members{1, 2}));
}

TEST(Arbiter, ALossThatWasToldByDiedWaitsForItsSuccessor) {
  Job job({.np = 2, .min_np = 2, .max_np = 2});
  job.train(2);
  job.say(1, Died{.who = 2});
  EXPECT_FALSE(job.epoch().has_value());
  EXPECT_FALSE(job.end().has_value());
  job.exit(2, ExitKind::kError);
  EXPECT_EQ(job.take<Start>(), (std::vector<Start>{{3, 1}}));
  job.ready(3);
  EXPECT_EQ(job.epoch()->members, (Members{1, 3}));
}

TEST(Arbiter, HearsWhatTheDeadHadSaidBefore) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.ready(1);
  job.ready(2);
  job.formed(1, 1);
  job.say(1, Died{.who = 2});
  job.formed(1, 2, 0);
  // Both had formed the first epoch, so that they may have made a step.
  job.formed(2, 1);
  job.exit(2, ExitKind::kError);
  EXPECT_FALSE(job.end().has_value());
}

TEST(Arbiter, ErrorsOfTheDeadCountToo) {
  Job job({.np = 2, .min_np = 1, .max_np = 2});
  job.train(2);
  Incarnation second = 2;
  for (int loss = 0; loss < 3; ++loss) {
    EXPECT_FALSE(job.end().has_value());
    job.say(1, Died{.who = second});
    job.form();
    job.exit(second, ExitKind::kError);
    job.ready(++second);
    job.form();
  }
  EXPECT_EQ(job.end()->reason, EndReason::kStuck);
}

TEST(Arbiter, ForgetsWhoIsSaidToHaveDiedAndIsUnknown) {
  Job job(three_to_four(1));
  job.train(4);
  for (const Incarnation nobody : {5u, 77u}) job.say(1, Died{.who = nobody});
  EXPECT_TRUE(job.take<Kill>().empty());
  EXPECT_FALSE(job.epoch().has_value());
}

}  // namespace
}  // namespace ciranda::member
