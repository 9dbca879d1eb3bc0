// What could break: an error text that sends its reader to the wrong rank.
#include "core/negotiate/wording.h"

#include <gtest/gtest.h>

#include <numeric>

#include "negotiate/requests.h"

namespace ciranda {
namespace {

// The error of an operation to which rank r submits specs[r].
std::string mismatch_of(const std::vector<RequestSpec>& specs) {
  Room room(static_cast<int>(specs.size()));
  std::vector<Response> responses;
  for (std::size_t rank = 0; rank < specs.size(); ++rank)
    responses = room.submit(static_cast<Rank>(rank), specs[rank]);
  EXPECT_EQ(responses.size(), 1u);
  return responses.at(0).error.value().text;
}

TEST(RankList, ReadsLikeASentence) {
  EXPECT_EQ(rank_list({4}), "rank 4");
  EXPECT_EQ(rank_list({0, 2}), "ranks 0, 2");
  EXPECT_EQ(rank_list({0, 1}), "ranks 0, 1");
  EXPECT_EQ(rank_list({0, 1, 2, 3, 7, 8}), "ranks 0-3, 7, 8");
}

TEST(RankList, StaysShort) {
  std::vector<Rank> odd;
  for (Rank rank = 1; rank < kRanksMax; rank += 2) odd.push_back(rank);
  EXPECT_EQ(rank_list(odd), "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 2040 more");
}

TEST(OpLabel, NamesKindAndTensor) {
  EXPECT_EQ(op_label(allreduce("grad.w"), 0), "allreduce 'grad.w'");
  EXPECT_EQ(op_label(allreduce("grad.w"), 2), "allreduce 'grad.w' (call 2)");
  EXPECT_EQ(op_label({.kind = OpKind::kBarrier}, 0), "barrier without a name (call 0)");
  EXPECT_EQ(op_label({.name = "w", .group = 3}, 2), "allreduce 'w' (call 2) of process set 3");
  EXPECT_EQ(op_label({.kind = OpKind::kJoin}, 0), "join");
}

TEST(MismatchText, NamesTheDtype) {
  RequestSpec other = allreduce("w");
  other.tensors[0].dtype = DType::kFloat64;
  EXPECT_EQ(mismatch_of({allreduce("w"), other}),
            "allreduce 'w': dtypes differ: rank 0 has float32 [3, 4], rank 1 has float64 [3, 4]; "
            "submit the same dtype on every rank");
}

TEST(MismatchText, NamesTheDtypeThatUsersHave) {
  RequestSpec carried = allreduce("w", {3, 2});
  carried.tensors[0].dtype = DType::kInt32;
  RequestSpec other = carried;
  carried.tensors[0].user_dtype = UserDType::kInt16;
  EXPECT_EQ(mismatch_of({carried, other, carried}),
            "allreduce 'w': dtypes differ: ranks 0, 2 have int16 [3, 2], rank 1 has int32 [3, 2]; "
            "submit the same dtype on every rank");

  RequestSpec complex = allreduce("w", {3, 2});
  complex.tensors[0].user_dtype = UserDType::kComplex64;
  EXPECT_EQ(mismatch_of({complex, allreduce("w", {3, 2})}),
            "allreduce 'w': dtypes differ: rank 0 has complex64 [3], rank 1 has float32 [3, 2]; "
            "submit the same dtype on every rank");
}

TEST(MismatchText, NamesTheOp) {
  RequestSpec other = allreduce("w");
  other.op = ReduceOp::kAverage;
  EXPECT_EQ(mismatch_of({allreduce("w"), other}),
            "allreduce 'w': ops differ: rank 0 has op Sum, rank 1 has op Average; submit the same "
            "op on every rank");
}

TEST(MismatchText, NamesTheRoot) {
  RequestSpec spec{.name = "w", .kind = OpKind::kBroadcast, .root = 0, .tensors = {{.shape = {1}}}};
  RequestSpec other = spec;
  other.root = 1;
  EXPECT_EQ(mismatch_of({spec, other}),
            "broadcast 'w': root ranks differ: rank 0 has root rank 0, rank 1 has root rank 1; "
            "submit the same root rank on every rank");
}

TEST(MismatchText, NamesTheScaleFactorsShortly) {
  RequestSpec pre = allreduce("w");
  pre.prescale = 0.1;
  EXPECT_NE(mismatch_of({allreduce("w"), pre}).find("rank 1 has prescale factor 0.1;"),
            std::string::npos);
  RequestSpec post = allreduce("w");
  post.postscale = 0.25;
  EXPECT_NE(mismatch_of({allreduce("w"), post}).find("postscale factors differ"),
            std::string::npos);
}

TEST(MismatchText, NamesTheNumberOfTensors) {
  RequestSpec group = allreduce("g");
  group.tensors.resize(2);
  EXPECT_EQ(mismatch_of({group, allreduce("g")}),
            "allreduce 'g': numbers of tensors differ: rank 0 has 2 tensors, rank 1 has 1 tensor; "
            "submit the same tensors on every rank");
}

TEST(MismatchText, NamesTheMemberOfAGroupByIndex) {
  RequestSpec group = allreduce("g");
  group.tensors.resize(3, group.tensors[0]);
  RequestSpec other = group;
  other.tensors[2].shape = {8};
  EXPECT_EQ(mismatch_of({group, other}),
            "allreduce 'g', tensor [2] of 3: shapes differ: rank 0 has float32 [3, 4], rank 1 has "
            "float32 [8]; submit the same shape on every rank");
}

TEST(MismatchText, NamesThePlaceOfTheData) {
  RequestSpec arena = allreduce("w");
  arena.in_arena = true;
  arena.arena_bytes = 64;
  EXPECT_NE(mismatch_of({allreduce("w"), arena}).find("rank 1 has tensors in the arena"),
            std::string::npos);
  RequestSpec longer = arena;
  longer.arena_bytes = 128;
  EXPECT_EQ(mismatch_of({arena, longer}),
            "allreduce 'w': bytes in the arena differ: rank 0 has 64 bytes, rank 1 has 128 bytes; "
            "submit the same tensors in the same order on every rank");
}

TEST(MismatchText, NamesTheStreams) {
  RequestSpec one = allreduce("w");
  one.streams = 1;
  RequestSpec four = allreduce("w");
  four.streams = 4;
  EXPECT_EQ(mismatch_of({one, four, allreduce("w")}),
            "allreduce 'w': numbers of streams differ: rank 0 has 1, rank 1 has 4, rank 2 has "
            "CIRANDA_STREAMS; submit the same number of streams on every rank");
}

TEST(MismatchText, NamesTheWireDtype) {
  RequestSpec rounded = allreduce("w");
  rounded.wire_dtype = DType::kBFloat16;
  EXPECT_EQ(mismatch_of({allreduce("w"), rounded}),
            "allreduce 'w': wire dtypes differ: rank 0 has no wire dtype, rank 1 has wire dtype "
            "bfloat16; submit the same wire dtype (compression, CIRANDA_WIRE_DTYPE) on every rank");
}

TEST(MismatchText, NamesTheBackend) {
  RequestSpec gloo = allreduce("w");
  gloo.backend = BackendId::kGloo;
  EXPECT_EQ(mismatch_of({allreduce("w"), gloo}),
            "allreduce 'w': backends differ: rank 0 has backend auto, rank 1 has backend gloo; "
            "submit the same kind of tensor (CPU or GPU), with the same CIRANDA_CPU_OPERATIONS on "
            "every rank");
}

TEST(MismatchText, NamesTheUpdateRule) {
  RequestSpec step = allreduce("w");
  step.in_arena = true;
  step.arena_bytes = 64;
  step.rule = "SGD lr=0.1";
  RequestSpec other = step;
  other.rule = "SGD lr=0.2";
  EXPECT_EQ(mismatch_of({step, other}),
            "allreduce 'w': update rules differ: rank 0 has 'SGD lr=0.1', rank 1 has 'SGD lr=0.2'; "
            "submit the same update rule on every rank");
}

TEST(MismatchText, NamesRanksOfTheWorldInAGroup) {
  Room room(6);
  RequestSpec spec = allreduce("w");
  spec.group = room.add_group({1, 3, 5})->id;
  RequestSpec other = spec;
  other.op = ReduceOp::kMax;
  room.submit(5, spec);
  room.submit(3, other);
  EXPECT_EQ(
      room.submit(1, spec).at(0).error->text,
      "allreduce 'w' of process set 1: ops differ: ranks 1, 5 have op Sum, rank 3 has op Max; "
      "submit the same op on every rank");
}

TEST(MismatchText, TellsLongListsOfRanksApart) {
  RequestSpec odd{.kind = OpKind::kAddGroup};
  for (Rank rank = 1; rank < 100; rank += 2) odd.members.push_back(rank);
  RequestSpec other = odd;
  other.members.back() = 100;
  EXPECT_NE(mismatch_of({odd, other}).find("process sets differ: rank 0 has ranks 1, 3, "),
            std::string::npos);
}

TEST(MismatchText, NamesTheGroupsToRemove) {
  EXPECT_EQ(mismatch_of({{.kind = OpKind::kRemoveGroup, .removes = 1},
                         {.kind = OpKind::kRemoveGroup, .removes = 2}}),
            "remove_process_set: process sets to remove differ: rank 0 has process set 1, rank 1 "
            "has process set 2; submit the same process set on every rank");
}

TEST(MismatchText, StaysBelowItsLimitWhateverDiffers) {
  std::vector<RequestSpec> specs;
  for (std::int64_t rank = 0; rank < 300; ++rank) {
    Shape shape(kDimsMax, 0);
    for (std::int64_t& dim : shape) dim = 1'000'000'000'000 + rank % 40;
    shape[15] = 0;
    specs.push_back(allreduce(std::string(kNameBytesMax, 'n'), shape));
  }
  const std::string text = mismatch_of(specs);
  EXPECT_LE(text.size(), kErrorTextBytesMax);
  EXPECT_NE(text.find("and 32 more values"), std::string::npos);
}

}  // namespace
}  // namespace ciranda
