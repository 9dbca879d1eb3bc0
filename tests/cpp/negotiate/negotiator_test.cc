// What could break: an operation that runs too early or never, an error that differs by rank, a
// name that stays taken. Orders that nobody thought of are tests/cpp/sim's part.
#include "core/negotiate/negotiator.h"

#include <gtest/gtest.h>

#include "negotiate/requests.h"

namespace ciranda {
namespace {

using Verdict = Response::Verdict;

TEST(Negotiator, WaitsUntilEveryRankSubmitted) {
  Room room(3);
  EXPECT_TRUE(room.submit(2, allreduce("w")).empty());
  EXPECT_TRUE(room.submit(0, allreduce("w")).empty());
  const auto responses = room.submit(1, allreduce("w"));
  ASSERT_EQ(responses.size(), 1u);
  EXPECT_EQ(responses[0].verdict, Verdict::kRun);
  EXPECT_EQ(*responses[0].spec, allreduce("w"));
  ASSERT_EQ(responses[0].contributions.size(), 3u);
  EXPECT_EQ(responses[0].contributions[0].contribution.token, 2u);
  EXPECT_EQ(responses[0].contributions[1].contribution.token, 3u);
  EXPECT_EQ(responses[0].contributions[2].contribution.token, 1u);
}

TEST(Negotiator, AloneAgreesAtOnce) {
  Room room(1);
  EXPECT_EQ(room.submit(0, allreduce("w")).at(0).verdict, Verdict::kRun);
}

TEST(Negotiator, NumbersWhatWasDecidedInOrder) {
  Room room(2);
  room.submit(0, allreduce("a"));
  room.submit(0, allreduce("b"));
  EXPECT_EQ(room.submit(1, allreduce("b")).at(0).index, 0u);
  EXPECT_EQ(room.submit(1, allreduce("a", {9})).at(0).index, 1u);  // an error counts too
  EXPECT_EQ(room.submit_all(2, allreduce("a")).at(0).index, 2u);
}

TEST(Negotiator, KnowsASpecAfterItRan) {
  Room room(2);
  EXPECT_EQ(room.negotiator.known(allreduce("w")), kNoCacheId);
  const auto first = room.submit_all(2, allreduce("w"));
  const CacheId id = room.negotiator.known(allreduce("w"));
  EXPECT_EQ(id, first.at(0).cache_id);
  ASSERT_NE(id, kNoCacheId);
  EXPECT_EQ(room.negotiator.known(allreduce("w", {5})), kNoCacheId);

  EXPECT_TRUE(room.submit_known(0, id).empty());
  const auto second = room.submit(1, allreduce("w"));  // number and whole spec meet
  EXPECT_EQ(second.at(0).verdict, Verdict::kRun);
  EXPECT_EQ(second.at(0).cache_id, id);
}

TEST(Negotiator, DoesNotCacheWhatFailed) {
  Room room(2);
  room.submit(0, allreduce("w"));
  room.submit(1, allreduce("w", {5}));
  EXPECT_EQ(room.negotiator.known(allreduce("w")), kNoCacheId);
}

TEST(Negotiator, AsksForAnEvictedRequestAgain) {
  Room room(2, 1);
  const CacheId old = room.submit_all(2, allreduce("a")).at(0).cache_id;
  room.submit_all(2, allreduce("b"));
  const auto responses = room.submit_known(1, old);
  ASSERT_EQ(responses.size(), 1u);
  EXPECT_EQ(responses[0].verdict, Verdict::kResubmit);
  EXPECT_EQ(responses[0].spec, nullptr);
  EXPECT_EQ(responses[0].resubmit_rank, 1);
  EXPECT_EQ(responses[0].resubmit_token, room.token);
  EXPECT_TRUE(room.negotiator.waiting().empty());
  EXPECT_EQ(room.submit_all(2, allreduce("a")).at(0).index, 2u);  // the question took no index
}

TEST(Negotiator, KeepsOccurrencesApart) {
  Room room(2);
  room.submit(0, allreduce(""), 0);
  room.submit(0, allreduce(""), 1);
  EXPECT_EQ(room.submit(1, allreduce(""), 1).at(0).occurrence, 1u);
  EXPECT_EQ(room.submit(1, allreduce(""), 0).at(0).occurrence, 0u);
}

TEST(Negotiator, KeepsUnnamedOperationsOfDifferentKindsApart) {
  Room room(2);
  const RequestSpec barrier{.kind = OpKind::kBarrier};
  room.submit(0, barrier);
  room.submit(1, allreduce(""));
  EXPECT_EQ(room.submit(0, allreduce("")).at(0).verdict, Verdict::kRun);
  EXPECT_EQ(room.submit(1, barrier).at(0).verdict, Verdict::kRun);
}

TEST(Negotiator, FailsAMismatchWhenAllHaveSubmittedAndGoesOn) {
  Room room(3);
  room.submit(0, allreduce("w", {3, 4}));
  EXPECT_TRUE(room.submit(1, allreduce("w", {3, 5})).empty());
  const auto responses = room.submit(2, allreduce("w", {3, 4}));
  ASSERT_EQ(responses.size(), 1u);
  EXPECT_EQ(responses[0].verdict, Verdict::kError);
  EXPECT_EQ(responses[0].error->code, ErrorCode::kMismatch);
  EXPECT_EQ(responses[0].error->tensor, "w");
  EXPECT_EQ(responses[0].error->text,
            "allreduce 'w': shapes differ: ranks 0, 2 have float32 [3, 4], rank 1 has float32 "
            "[3, 5]; submit the same shape on every rank");
  EXPECT_EQ(responses[0].contributions.size(), 3u);
  EXPECT_EQ(room.submit_all(3, allreduce("w")).at(0).verdict, Verdict::kRun);
}

TEST(Negotiator, ComparesAKnownSpecWithANewOne) {
  Room room(2);
  const CacheId id = room.submit_all(2, allreduce("w")).at(0).cache_id;
  room.submit(0, allreduce("w", {7}));
  EXPECT_EQ(room.submit_known(1, id).at(0).error->code, ErrorCode::kMismatch);
}

TEST(Negotiator, OperationsOfTwoKindsMayShareAName) {
  Room room(2);
  const RequestSpec barrier{.name = "w", .kind = OpKind::kBarrier};
  EXPECT_TRUE(room.submit(0, allreduce("w")).empty());
  EXPECT_TRUE(room.submit(1, barrier).empty());
  ASSERT_EQ(room.negotiator.waiting().size(), 2u);
  EXPECT_EQ(room.negotiator.waiting()[0].missing, std::vector<Rank>{1});
  EXPECT_EQ(room.negotiator.waiting()[1].missing, std::vector<Rank>{0});
  const auto first = room.submit(0, barrier);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].verdict, Verdict::kRun);
  EXPECT_EQ(*first[0].spec, barrier);
  EXPECT_EQ(room.submit(1, allreduce("w")).at(0).verdict, Verdict::kRun);
  EXPECT_NE(room.negotiator.known(barrier), room.negotiator.known(allreduce("w")));
}

TEST(Negotiator, RefusesASecondSubmissionOfOneRank) {
  Room room(3);
  room.submit(0, allreduce("w"));
  room.submit(1, allreduce("w"));
  EXPECT_TRUE(room.submit(0, allreduce("w")).empty());
  EXPECT_EQ(room.last.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(room.last.error().rank, 0);
  EXPECT_EQ(room.last.error().text,
            "rank 0: it submitted allreduce 'w' twice before every rank had submitted it once");
}

TEST(Negotiator, BoundsTheOperationsInFlight) {
  Room room(2);
  Frame frame;
  for (std::uint32_t i = 0; i < kInFlightMax; ++i) {
    frame.requests.push_back({.spec = allreduce(""), .occurrence = i});
    if (frame.requests.size() < 1024) continue;
    room.handle(0, frame);
    frame.requests.clear();
    ASSERT_TRUE(room.last.ok());
  }
  room.submit(0, allreduce("one more"));
  EXPECT_EQ(room.last.error().code, ErrorCode::kLimit);
  EXPECT_EQ(room.last.error().rank, 0);
}

TEST(Negotiator, FailsEverythingPendingWhenARankLeaves) {
  Room room(3);
  room.submit(0, allreduce("a"));
  room.submit(1, allreduce("b"));
  const auto responses = room.leave(1);
  ASSERT_EQ(responses.size(), 2u);
  for (const Response& response : responses) {
    EXPECT_EQ(response.error->code, ErrorCode::kRankLeft);
    EXPECT_EQ(response.error->rank, 1);
  }
  EXPECT_EQ(responses[0].error->text,
            "allreduce 'a': rank 1 has shut down and will not take part; let every rank do the "
            "same steps before it ends");
  EXPECT_TRUE(room.negotiator.waiting().empty());
  EXPECT_EQ(room.negotiator.departed(), std::vector<Rank>{1});
}

TEST(Negotiator, AnswersEachSubmissionAfterALeaveAtOnce) {
  Room room(3);
  room.leave(2);
  for (const Rank rank : {0, 1, 0}) {
    const auto responses = room.submit(rank, allreduce("w"));
    ASSERT_EQ(responses.size(), 1u);
    EXPECT_EQ(responses[0].error->code, ErrorCode::kRankLeft);
    EXPECT_EQ(contribution_of(responses[0], rank)->token, room.token);
  }
  room.leave(0);
  // Rank 0 may have left because of rank 2: the first is the one at fault.
  const Error error = *room.submit(1, allreduce("w")).at(0).error;
  EXPECT_EQ(error.rank, 2);
  EXPECT_NE(error.text.find("ranks 2, 0 have"), std::string::npos) << error.text;
}

TEST(Negotiator, RefusesAFrameFromARankThatHasLeft) {
  Room room(2);
  room.leave(1);
  room.submit(1, allreduce("w"));
  EXPECT_EQ(room.last.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(room.last.error().text, "rank 1: it sent a frame after it had left");
  room.leave(1);
  EXPECT_EQ(room.last.error().rank, 1);
}

TEST(Negotiator, RefusesANumberThatWasNeverGiven) {
  Room room(2);
  room.submit_all(2, allreduce("w"));
  room.submit_known(0, 2);
  EXPECT_EQ(room.last.error().code, ErrorCode::kMalformed);
}

TEST(Negotiator, RefusesARankThatIsNone) {
  Room room(2);
  room.submit(2, allreduce("w"));
  EXPECT_EQ(room.last.error().code, ErrorCode::kMalformed);
  room.submit(-1, allreduce("w"));
  EXPECT_FALSE(room.last.ok());
}

TEST(Negotiator, IsNotChangedByAFrameThatDoesNotDecode) {
  Room room(2);
  std::vector<std::byte> bytes;
  encode({.requests = {{.spec = allreduce("w")}, {.spec = allreduce("v")}}}, bytes);
  std::vector<Response> responses;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const Status status =
        room.negotiator.handle_frame(1, std::span(bytes).first(length), 0, responses);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().rank, 1);
  }
  EXPECT_TRUE(responses.empty());
  EXPECT_TRUE(room.negotiator.waiting().empty());
}

TEST(Negotiator, ListsWhatWaitsOldestFirst) {
  Room room(3);
  room.tick = 5;
  room.submit(1, allreduce("a"));
  room.tick = 6;
  room.submit(0, allreduce("b"));
  room.submit(2, allreduce("b"));
  room.submit(0, allreduce("a"));
  const auto waiting = room.negotiator.waiting();
  ASSERT_EQ(waiting.size(), 2u);
  EXPECT_EQ(waiting[0].spec->name, "a");
  EXPECT_EQ(waiting[0].missing, std::vector<Rank>{2});
  EXPECT_EQ(waiting[0].since_tick, 5u);
  EXPECT_EQ(waiting[1].missing, std::vector<Rank>{1});
  EXPECT_EQ(waiting[1].since_tick, 6u);
}

TEST(Negotiator, HandlesASecondUseOfANameBeforeAllHandledTheFirst) {
  Room room(2);
  const CacheId id = room.submit_all(2, allreduce("w")).at(0).cache_id;
  room.submit_known(0, id);
  EXPECT_EQ(room.submit_known(1, id).size(), 1u);
  EXPECT_TRUE(room.submit_known(1, id).empty());  // the next step, one rank ahead
  EXPECT_EQ(room.submit_known(0, id).at(0).verdict, Verdict::kRun);
}

TEST(Negotiator, KeepsNamesOfGroupsApart) {
  Room room(3);
  const GroupId id = room.add_group({0, 2})->id;
  RequestSpec spec = allreduce("w");
  EXPECT_TRUE(room.submit(0, spec).empty());
  spec.group = id;
  EXPECT_TRUE(room.submit(0, spec).empty());
  const auto responses = room.submit(2, spec);
  ASSERT_EQ(responses.size(), 1u);
  EXPECT_EQ(responses[0].verdict, Verdict::kRun);
  EXPECT_EQ(responses[0].group->id, id);
  ASSERT_EQ(responses[0].contributions.size(), 2u);
  EXPECT_EQ(responses[0].contributions[1].rank, 2);
  EXPECT_NE(room.negotiator.known(spec), room.negotiator.known(allreduce("w")));
  ASSERT_EQ(room.negotiator.waiting().size(), 1u);  // the World's
  EXPECT_EQ(room.negotiator.waiting()[0].missing, (std::vector<Rank>{1, 2}));
}

TEST(Negotiator, DoesNotRemoveAGroupInWhichSomethingWaits) {
  Room room(2);
  RequestSpec spec = allreduce("w");
  spec.group = room.add_group({0})->id;
  const CacheId number = room.submit(0, spec).at(0).cache_id;
  spec.group = room.add_group({1})->id;
  spec.kind = OpKind::kBroadcast;
  spec.root = 0;
  EXPECT_EQ(
      room.submit(1, spec).at(0).error->text,
      "broadcast 'w' of process set 2: its root rank 0 is not a member; the only member is rank 1");
  EXPECT_EQ(room.submit_all(2, {.kind = OpKind::kRemoveGroup, .removes = 1}).at(0).verdict,
            Verdict::kRun);
  // Its specs have lost their numbers: whoever uses one hears that the group is gone.
  EXPECT_EQ(room.submit_known(0, number).at(0).verdict, Verdict::kResubmit);
}

TEST(Negotiator, TellsWhatIsCounted) {
  Room room(2);
  room.submit(0, allreduce("w"));
  EXPECT_EQ(room.negotiator.in_flight(0), 1u);
  EXPECT_EQ(room.negotiator.in_flight(1), 0u);
  room.submit(1, allreduce("w"));
  EXPECT_EQ(room.negotiator.in_flight(0), 0u);
}

}  // namespace
}  // namespace ciranda
