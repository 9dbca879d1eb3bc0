// What could break: a rank that is waited for although it has joined or left, or one that is not.
#include "core/negotiate/attendance.h"

#include <gtest/gtest.h>

#include "negotiate/requests.h"

namespace ciranda {
namespace {

using Verdict = Response::Verdict;

TEST(Attendance, AnswersAStrangerOfAGroupAlone) {
  Room room(3);
  RequestSpec spec = allreduce("w");
  spec.group = 1;
  const auto unknown = room.submit(1, spec);
  EXPECT_EQ(unknown.at(0).error->text,
            "allreduce 'w' of process set 1: there is no such process set; it may have been "
            "removed");
  EXPECT_EQ(unknown[0].group, nullptr);
  room.add_group({0, 2});
  room.submit(0, spec);
  const auto stranger = room.submit(1, spec);
  EXPECT_EQ(
      stranger.at(0).error->text,
      "allreduce 'w' of process set 1: rank 1 is not a member; only ranks 0, 2 may submit it");
  EXPECT_EQ(stranger[0].contributions.size(), 1u);
  EXPECT_EQ(room.submit(2, spec).at(0).verdict, Verdict::kRun);
}

TEST(Attendance, LetsGroupsGoOnWithoutARankThatIsNoMember) {
  Room room(3);
  RequestSpec with = allreduce("w");
  with.group = room.add_group({0, 1})->id;
  RequestSpec without = allreduce("w");
  without.group = room.add_group({1, 2})->id;
  room.submit(1, with);
  room.submit(1, without);
  const auto gone = room.leave(0);
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(
      gone[0].error->text,
      "allreduce 'w' of process set 1: rank 0 has shut down and will not take part; let every "
      "rank do the same steps before it ends");
  EXPECT_EQ(room.submit(2, without).at(0).verdict, Verdict::kRun);
  EXPECT_EQ(room.submit(1, with).at(0).error->code, ErrorCode::kRankLeft);
  EXPECT_EQ(room.submit(2, allreduce("w")).at(0).error->code, ErrorCode::kRankLeft);
}

TEST(Attendance, GoesOnWithoutARankThatHasJoined) {
  Room room(3);
  room.submit(0, allreduce("a"));
  room.submit(2, allreduce("b"));
  EXPECT_TRUE(room.submit(0, allreduce("b")).empty());
  const auto freed = room.join(1);
  ASSERT_EQ(freed.size(), 1u);  // only "b" waited for rank 1 alone
  EXPECT_EQ(freed[0].spec->name, "b");
  EXPECT_EQ(freed[0].joined, std::vector<Rank>{1});
  EXPECT_EQ(freed[0].contributions.size(), 2u);
  EXPECT_NE(freed[0].cache_id, kNoCacheId);
  ASSERT_EQ(room.negotiator.waiting().size(), 2u);
  EXPECT_EQ(room.negotiator.waiting()[0].missing, std::vector<Rank>{2});
  EXPECT_EQ(room.negotiator.waiting()[1].spec->kind, OpKind::kJoin);
  EXPECT_EQ(room.submit(2, allreduce("a")).at(0).joined, std::vector<Rank>{1});
  EXPECT_TRUE(room.submit_known(0, freed[0].cache_id).empty());
  EXPECT_EQ(room.submit_known(2, freed[0].cache_id).at(0).verdict, Verdict::kRun);
}

TEST(Attendance, EndsAJoinWithTheLastRankAndStartsAgain) {
  Room room(2);
  room.submit(1, allreduce("w"));
  EXPECT_TRUE(room.join(1).empty());
  EXPECT_EQ(room.submit(1, allreduce("v")).at(0).error->text,
            "allreduce 'v': rank 1 has joined and takes no part until every rank has joined; "
            "submit the operation after join() has returned");
  EXPECT_EQ(room.negotiator.joined(), std::vector<Rank>{1});
  const auto responses = room.join(0);
  ASSERT_EQ(responses.size(), 2u);
  EXPECT_EQ(responses[0].spec->name, "w");  // with what rank 1 gave before it joined
  EXPECT_EQ(responses[0].joined, std::vector<Rank>{0});
  EXPECT_EQ(responses[1].last_joined, 0);
  EXPECT_EQ(responses[1].contributions.size(), 2u);
  EXPECT_TRUE(room.negotiator.joined().empty());
  EXPECT_TRUE(room.submit(0, allreduce("w")).empty());
  EXPECT_EQ(room.submit(1, allreduce("w")).at(0).contributions.size(), 2u);
  room.join(0);
  EXPECT_EQ(room.join(1).at(0).last_joined, 1);
}

TEST(Attendance, CountsAJoinedRankInItsGroupsOnly) {
  Room room(3);
  RequestSpec spec = allreduce("w");
  spec.group = room.add_group({0, 1})->id;
  room.join(2);
  EXPECT_TRUE(room.submit(0, spec).empty());
  EXPECT_EQ(room.join(1).at(0).joined, std::vector<Rank>{1});
}

TEST(Attendance, LetsThoseWhoHaveJoinedGoOnWhenARankLeaves) {
  Room room(3);
  RequestSpec spec = allreduce("w");
  spec.group = room.add_group({0, 1})->id;
  room.join(0);
  const auto responses = room.leave(2);
  ASSERT_EQ(responses.size(), 1u);
  EXPECT_EQ(responses[0].error->code, ErrorCode::kRankLeft);
  EXPECT_TRUE(room.submit(1, spec).empty());
  EXPECT_EQ(room.submit(0, spec).at(0).contributions.size(), 2u);
}

}  // namespace
}  // namespace ciranda
