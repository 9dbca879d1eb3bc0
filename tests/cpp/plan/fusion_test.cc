// What could break: tensors fused that must not be, or in an order that depends on more than what
// was agreed.
#include "core/plan/fusion.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace ciranda {
namespace {

Response run(RequestSpec spec) {
  Response response;
  response.spec = std::make_shared<const RequestSpec>(std::move(spec));
  return response;
}

Response allreduce(std::vector<DType> dtypes, std::int64_t elements = 10) {
  RequestSpec spec{.name = "w"};
  for (const DType dtype : dtypes) spec.tensors.push_back({.dtype = dtype, .shape = {elements}});
  return run(std::move(spec));
}

Response allreduce(std::int64_t elements = 10) {
  return allreduce({DType::kFloat32}, elements);
}

Response barrier() {
  return run({.kind = OpKind::kBarrier});
}

using Plan = std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>>;

Plan plan(const std::vector<Response>& responses, std::uint64_t bytes_max = 1000) {
  Plan members;
  for (const FusedOp& op : plan_fusion(responses, {.bytes_max = bytes_max})) {
    members.emplace_back();
    for (const auto& member : op.members)
      members.back().emplace_back(member.response, member.tensor);
  }
  return members;
}

TEST(Fusion, OfNothingIsNothing) {
  EXPECT_TRUE(plan({}).empty());
}

TEST(Fusion, JoinsLikeTensorsInAgreedOrder) {
  EXPECT_EQ(plan({allreduce(), allreduce(), allreduce()}), (Plan{{{0, 0}, {1, 0}, {2, 0}}}));
}

TEST(Fusion, SkipsWhatDoesNotRun) {
  std::vector<Response> responses{allreduce(), allreduce(), allreduce()};
  responses[0].verdict = Response::Verdict::kError;
  responses[1].verdict = Response::Verdict::kResubmit;
  EXPECT_EQ(plan(responses), (Plan{{{2, 0}}}));
}

TEST(Fusion, SplitsAGroupByDtype) {
  EXPECT_EQ(plan({allreduce({DType::kFloat32, DType::kFloat16, DType::kFloat32}), allreduce()}),
            (Plan{{{0, 0}, {0, 2}, {1, 0}}, {{0, 1}}}));
}

TEST(Fusion, KeepsApartWhatDiffersInOpScaleOrRoot) {
  std::vector<Response> responses;
  for (int i = 0; i < 4; ++i) {
    RequestSpec spec = *allreduce().spec;
    if (i == 1) spec.op = ReduceOp::kAverage;
    if (i == 2) spec.prescale = 0.5;
    if (i == 3) spec.postscale = 0.5;
    responses.push_back(run(spec));
  }
  for (const Rank root : {0, 1}) {
    RequestSpec spec = *allreduce().spec;
    spec.kind = OpKind::kBroadcast;
    spec.root = root;
    responses.push_back(run(spec));
  }
  EXPECT_EQ(plan(responses).size(), responses.size());
}

TEST(Fusion, CarriesWhatTheBackendNeeds) {
  RequestSpec spec = *allreduce({DType::kBFloat16}).spec;
  spec.op = ReduceOp::kAverage;
  spec.prescale = 0.5;
  spec.postscale = 0.25;
  const auto ops = plan_fusion(std::vector{run(spec)}, {});
  ASSERT_EQ(ops.size(), 1u);
  EXPECT_EQ(ops[0].kind, OpKind::kAllreduce);
  EXPECT_EQ(ops[0].op, ReduceOp::kAverage);
  EXPECT_EQ(ops[0].dtype, DType::kBFloat16);
  EXPECT_EQ(ops[0].prescale, 0.5);
  EXPECT_EQ(ops[0].postscale, 0.25);
  EXPECT_EQ(ops[0].root, kNoRank);
  EXPECT_FALSE(ops[0].in_arena);
}

TEST(Fusion, KeepsWireDtypesApart) {
  RequestSpec rounded = *allreduce().spec;
  rounded.wire_dtype = DType::kFloat16;
  const std::vector<Response> responses{run(rounded), allreduce(), run(rounded)};
  EXPECT_EQ(plan(responses), (Plan{{{0, 0}, {2, 0}}, {{1, 0}}}));
  EXPECT_EQ(plan_fusion(responses, {})[0].wire_dtype, DType::kFloat16);
}

TEST(Fusion, KeepsNumbersOfStreamsApart) {
  RequestSpec two = *allreduce().spec;
  two.streams = 2;
  const std::vector<Response> responses{run(two), allreduce(), run(two)};
  EXPECT_EQ(plan(responses), (Plan{{{0, 0}, {2, 0}}, {{1, 0}}}));
  EXPECT_EQ(plan_fusion(responses, {})[0].streams, 2);
}

TEST(Fusion, KeepsBackendsApart) {
  RequestSpec gloo = *allreduce().spec;
  gloo.backend = BackendId::kGloo;
  const std::vector<Response> responses{run(gloo), allreduce(), run(gloo)};
  EXPECT_EQ(plan(responses), (Plan{{{0, 0}, {2, 0}}, {{1, 0}}}));
  EXPECT_EQ(plan_fusion(responses, {})[0].backend, BackendId::kGloo);
}

TEST(Fusion, KeepsGroupsAndJoinedRanksApart) {
  const auto group = std::make_shared<const Group>(Group{.id = 3, .ranks = {1, 4}});
  std::vector<Response> responses(5, allreduce());
  responses[1].group = responses[3].group = group;
  responses[4].joined = {2};
  EXPECT_EQ(plan(responses), (Plan{{{0, 0}, {2, 0}}, {{1, 0}, {3, 0}}, {{4, 0}}}));
  const auto ops = plan_fusion(responses, {});
  EXPECT_EQ(ops[1].group, group);
  EXPECT_EQ(ops[2].joined, std::vector<Rank>{2});
}

TEST(Fusion, PlansAChangeOfMembershipInItsPlace) {
  EXPECT_EQ(plan({allreduce(), run({.kind = OpKind::kAddGroup, .members = {0}}), allreduce()}),
            (Plan{{{0, 0}}, {{1, 0}}, {{2, 0}}}));
}

TEST(Fusion, FillsAnOpUpToItsBytes) {
  // 400 bytes each: two fit into 1000, and exactly two into 800.
  const std::vector<Response> responses{allreduce(100), allreduce(100), allreduce(100)};
  EXPECT_EQ(plan(responses, 1000), (Plan{{{0, 0}, {1, 0}}, {{2, 0}}}));
  EXPECT_EQ(plan(responses, 800), (Plan{{{0, 0}, {1, 0}}, {{2, 0}}}));
  EXPECT_EQ(plan(responses, 799), (Plan{{{0, 0}}, {{1, 0}}, {{2, 0}}}));
}

TEST(Fusion, DoesNotReturnToAnOpThatWasFull) {
  EXPECT_EQ(plan({allreduce(200), allreduce(100), allreduce(10)}, 1000),
            (Plan{{{0, 0}}, {{1, 0}, {2, 0}}}));
}

TEST(Fusion, LeavesATensorAboveTheLimitAlone) {
  EXPECT_EQ(plan({allreduce(10), allreduce(300), allreduce(10)}, 1000),
            (Plan{{{0, 0}, {2, 0}}, {{1, 0}}}));
}

TEST(Fusion, TakesEmptyTensorsAlong) {
  EXPECT_EQ(plan({allreduce(0), allreduce(250), allreduce(0)}, 1000),
            (Plan{{{0, 0}, {1, 0}, {2, 0}}}));
}

TEST(Fusion, LetsNothingOvertakeAKindThatDoesNotFuse) {
  EXPECT_EQ(plan({allreduce(), barrier(), allreduce()}), (Plan{{{0, 0}}, {{1, 0}}, {{2, 0}}}));
  RequestSpec gather{.kind = OpKind::kAllgather, .tensors = {{.shape = {kAnyRows}}}};
  gather.tensors.push_back(gather.tensors[0]);
  EXPECT_EQ(plan({allreduce(), run(gather), allreduce()}),
            (Plan{{{0, 0}}, {{1, 0}}, {{1, 1}}, {{2, 0}}}));
}

TEST(Fusion, TellsBackendsWhatAKindRunsAs) {
  const auto seen = [](OpKind kind, std::int64_t rows) {
    const RequestSpec spec{.kind = kind, .root = 0, .tensors = {{.shape = {rows}}}};
    return plan_fusion(std::vector{run(spec)}, {}).at(0).kind;
  };
  EXPECT_EQ(seen(OpKind::kBroadcast, 3), OpKind::kBroadcast);
  EXPECT_EQ(seen(OpKind::kGather, kAnyRows), OpKind::kAlltoall);
  EXPECT_EQ(seen(OpKind::kScatter, kAnyRows), OpKind::kAlltoall);
  EXPECT_EQ(seen(OpKind::kReduce, 3), OpKind::kReducescatter);
  EXPECT_EQ(seen(OpKind::kSend, 3), OpKind::kBroadcast);
}

TEST(Fusion, LeavesArenaTensorsToTheirOwnRequest) {
  RequestSpec arena = *allreduce({DType::kFloat32, DType::kFloat32}).spec;
  arena.in_arena = true;
  EXPECT_EQ(plan({run(arena), allreduce(), run(arena), allreduce()}),
            (Plan{{{0, 0}, {0, 1}}, {{1, 0}, {3, 0}}, {{2, 0}, {2, 1}}}));
}

TEST(Fusion, KeepsABucketOfAnySizeInOnePiece) {
  RequestSpec arena = *allreduce({DType::kFloat32, DType::kFloat32}).spec;
  arena.in_arena = true;
  for (TensorSpec& tensor : arena.tensors) tensor.shape = {std::int64_t{1} << 30};
  EXPECT_EQ(plan({run(arena)}), (Plan{{{0, 0}, {0, 1}}}));
}

}  // namespace
}  // namespace ciranda
