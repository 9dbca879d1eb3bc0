// What could break: something that runs and cannot, or a sentence that sends its reader elsewhere.
#include "core/negotiate/fault.h"

#include <gtest/gtest.h>

#include "core/wire/pair.h"
#include "negotiate/requests.h"

namespace ciranda {
namespace {

using Verdict = Response::Verdict;

TEST(Fault, RefusesARootThatDoesNotExist) {
  Room room(2);
  const RequestSpec spec{
      .name = "w", .kind = OpKind::kBroadcast, .root = 2, .tensors = {{.shape = {1}}}};
  const auto responses = room.submit_all(2, spec);
  EXPECT_EQ(responses.at(0).error->code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(responses.at(0).error->text, "broadcast 'w': there is no root rank 2 among 2 ranks");
}

TEST(Fault, RefusesAWrongNumberOfRows) {
  Room room(2);
  const RequestSpec spec{
      .name = "x", .kind = OpKind::kAlltoall, .tensors = {{.shape = {kAnyRows, 2}}}};
  room.submit(0, spec, 0, {1, 2});
  const auto wrong = room.submit(1, spec, 0, {1, 2, 3});
  EXPECT_EQ(wrong.at(0).error->code, ErrorCode::kMismatch);
  EXPECT_EQ(wrong.at(0).error->rank, 1);
  EXPECT_EQ(wrong.at(0).error->text, "alltoall 'x': rank 1 gave 3 row counts where 2 are needed");
  room.submit(0, spec, 0, {1, 2});
  EXPECT_EQ(room.submit(1, spec, 0, {0, 7}).at(0).verdict, Verdict::kRun);
}

TEST(Fault, TellsAllThatTheRootsSplitsDoNotFit) {
  Room room(2);
  const RequestSpec spec{
      .name = "x", .kind = OpKind::kScatter, .root = 1, .tensors = {{.shape = {kAnyRows, 2}}}};
  room.submit(0, spec, 0, {0, 0});
  const auto wrong = room.submit(1, spec, 0, {});
  EXPECT_EQ(wrong.at(0).error->code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(wrong.at(0).error->rank, 1);
  EXPECT_EQ(wrong.at(0).error->text,
            "scatter 'x': the splits of its root, rank 1, do not fit its tensor; the error on that "
            "rank says more");
  room.submit(0, spec, 0, {0, 0});
  EXPECT_EQ(room.submit(1, spec, 0, {3, 4}).at(0).verdict, Verdict::kRun);
}

TEST(Fault, RefusesRowsWhoseBytesOverflow) {
  Room room(1);
  const RequestSpec spec{
      .name = "x", .kind = OpKind::kAllgather, .tensors = {{.shape = {kAnyRows, 1 << 30}}}};
  EXPECT_EQ(room.submit(0, spec, 0, {kTensorBytesMax}).at(0).error->code, ErrorCode::kLimit);
}

TEST(Fault, AddsAndRemovesGroupsForAll) {
  Room room(3);
  const auto first = room.add_group({1, 2});
  EXPECT_EQ(first->id, 1u);
  EXPECT_EQ(room.submit_all(3, {.kind = OpKind::kAddGroup, .members = {1, 2}}).at(0).error->text,
            "add_process_set: ranks 1, 2 are process set 1 already; process sets must be unique, "
            "so use that one");
  EXPECT_EQ(room.submit_all(3, {.kind = OpKind::kAddGroup, .members = {0, 1, 2}}).at(0).error->code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(room.submit_all(3, {.kind = OpKind::kAddGroup, .members = {2, 3}}).at(0).error->text,
            "add_process_set: there is no rank 3 among 3 ranks");
  const auto removed = room.submit_all(3, {.kind = OpKind::kRemoveGroup, .removes = 1});
  EXPECT_EQ(removed.at(0).changed, first);
  EXPECT_EQ(removed[0].cache_id, kNoCacheId);
  EXPECT_EQ(room.submit_all(3, {.kind = OpKind::kRemoveGroup, .removes = 1}).at(0).error->text,
            "remove_process_set: there is no process set 1; it may have been removed");
  EXPECT_EQ(room.add_group({1, 2})->id, 2u);  // no number comes twice
}

TEST(Fault, NamesBothValuesWhereRanksAddDifferentGroups) {
  Room room(3);
  room.submit(0, {.kind = OpKind::kAddGroup, .members = {0, 1}});
  room.submit(1, {.kind = OpKind::kAddGroup, .members = {0, 1}});
  EXPECT_EQ(room.submit(2, {.kind = OpKind::kAddGroup, .members = {2}}).at(0).error->text,
            "add_process_set: process sets differ: ranks 0, 1 have ranks 0, 1, rank 2 has rank 2; "
            "submit the same ranks on every rank");
}

TEST(Fault, NamesTheRankThatHasNoMemoryForAGroup) {
  Room room(3);
  const RequestSpec spec{.kind = OpKind::kAddGroup, .members = {0, 2}};
  room.handle(0, {.requests = {{.spec = spec, .contribution = {.token = 1, .arena = kNoRegion}}}});
  room.submit(1, spec);
  const auto responses = room.submit(2, spec);
  EXPECT_EQ(responses.at(0).error->code, ErrorCode::kSystem);
  EXPECT_EQ(responses[0].error->rank, 0);
  EXPECT_EQ(responses[0].error->text,
            "add_process_set: rank 0 cannot allocate the memory that the ranks on its host share");
  EXPECT_EQ(responses[0].changed, nullptr);
  EXPECT_EQ(room.add_group({0, 2})->id, 1u);
}

TEST(Fault, NamesTheRankThatHasNoMemoryForAPair) {
  Room room(3);
  const RequestSpec spec{.name = "x",
                         .kind = OpKind::kSend,
                         .group = pair_id({.from = 2, .to = 1}),
                         .root = 2,
                         .tensors = {{}}};
  room.submit(2, spec);
  const Request request{.spec = spec, .contribution = {.token = 1, .arena = kNoRegion}};
  const auto responses = room.handle(1, {.requests = {request}});
  EXPECT_EQ(responses.at(0).error->code, ErrorCode::kSystem);
  EXPECT_EQ(responses[0].error->text,
            "send 'x' from rank 2 to rank 1: rank 1 cannot allocate the memory that the ranks on "
            "its host share");
}

TEST(Fault, BoundsTheGroups) {
  Room room(12);
  for (std::uint32_t bits = 1; bits <= kGroupsMax; ++bits) {
    std::vector<Rank> members;
    for (Rank rank = 0; rank < 12; ++rank)
      if ((bits >> rank) % 2 == 1) members.push_back(rank);
    ASSERT_NE(room.add_group(members), nullptr) << bits;
  }
  EXPECT_EQ(room.submit_all(12, {.kind = OpKind::kAddGroup, .members = {11}}).at(0).error->code,
            ErrorCode::kLimit);
}

TEST(Fault, NamesWhatKeepsAGroupFromGoing) {
  Room room(3);
  RequestSpec spec = allreduce("w");
  spec.group = room.add_group({0, 1})->id;
  room.submit(0, spec);
  EXPECT_EQ(room.submit_all(3, {.kind = OpKind::kRemoveGroup, .removes = 1}).at(0).error->text,
            "remove_process_set: allreduce 'w' of process set 1 is not finished; synchronize it on "
            "every member first");
  EXPECT_EQ(room.submit(1, spec).at(0).verdict, Verdict::kRun);
}

TEST(Fault, LetsNothingOfAPairGoOnWithoutOneOfThem) {
  Room room(2);
  room.join(0);
  const GroupId pair = pair_id({.from = 0, .to = 1});
  const auto responses = room.submit(1, {.kind = OpKind::kBarrier, .group = pair});
  EXPECT_EQ(responses.at(0).error->code, ErrorCode::kUnsupported);
  EXPECT_EQ(responses[0].error->rank, 0);
}

TEST(Fault, FailsForAllWhatNeedsARankThatHasJoined) {
  Room room(3);
  room.join(0);
  room.join(2);
  const RequestSpec gather{
      .name = "g", .kind = OpKind::kAllgather, .tensors = {{.shape = {kAnyRows}}}};
  EXPECT_EQ(room.submit(1, gather, 0, {1}).at(0).error->text,
            "allgather 'g': ranks 0, 2 have joined, and only a barrier and an allreduce by Sum or "
            "Average go on without a rank; call other operations on every rank before join()");
  RequestSpec most = allreduce("m");
  most.op = ReduceOp::kMax;
  EXPECT_EQ(room.submit(1, most).at(0).error->code, ErrorCode::kUnsupported);
  EXPECT_EQ(room.submit(1, {.kind = OpKind::kAddGroup, .members = {1}}).at(0).error->code,
            ErrorCode::kUnsupported);
  EXPECT_EQ(room.submit(1, {.name = "b", .kind = OpKind::kBarrier}).at(0).verdict, Verdict::kRun);
}

}  // namespace
}  // namespace ciranda
