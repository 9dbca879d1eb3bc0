// What could break: zeros of another size than what the others add, or an operation that goes on
// although a rank that has joined is needed.
#include "core/engine/run/joined.h"

#include <gtest/gtest.h>

#include "core/negotiate/group_table.h"

namespace ciranda::testing {
namespace {

const std::shared_ptr<const Group> kWorld = GroupTable(3, {{0, 1}, {2}}).world();

RequestSpec bucket() {
  return {.name = "b",
          .in_arena = true,
          .arena_bytes = 256,
          .tensors = {{DType::kFloat32, {3}}, {DType::kFloat32, {5}}}};
}

FusedOp op_of(const RequestSpec& spec, std::vector<Rank> joined) {
  FusedOp op{.kind = spec.kind, .group = kWorld, .in_arena = spec.in_arena};
  op.backend = spec.backend;
  op.shares_step = !spec.rule.empty();
  op.members = {{0, 0}, {0, 1}};
  op.joined = std::move(joined);
  return op;
}

std::vector<Response> response_of(RequestSpec spec) {
  std::vector<Response> responses(1);
  responses[0].spec = std::make_shared<const RequestSpec>(std::move(spec));
  responses[0].group = kWorld;
  return responses;
}

RequestSpec step() {
  RequestSpec spec = bucket();
  spec.rule = "SGD lr=0.1";
  return spec;
}

TEST(Joined, RefusesGpus) {
  const RequestSpec on_gpu{.name = "g", .backend = BackendId::kNccl, .tensors = {{}, {}}};
  EXPECT_TRUE(without_joined(op_of(on_gpu, {})).ok());
  const Status refused = without_joined(op_of(on_gpu, {2}));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().text.find("rank 2 has joined"), std::string::npos);
  EXPECT_TRUE(without_joined(op_of(bucket(), {2})).ok());
  EXPECT_TRUE(without_joined(op_of(step(), {2})).ok());
}

TEST(Joined, ASharedStepStaysInTheArenaOfEachHost) {
  for (const std::size_t here : {2u, 3u}) {
    EXPECT_FALSE(leaves_arena(op_of(step(), {1}), here));
    const Execution zeros = of_zeros(op_of(step(), {1}), response_of(step()), here);
    EXPECT_TRUE(zeros.op.in_arena && zeros.buffers.empty());
  }
  EXPECT_TRUE(leaves_arena(op_of(bucket(), {1}), 2));
}

TEST(Joined, AddsAsManyZerosAsTheOthersAdd) {
  const auto bytes_of = [](const RequestSpec& spec, std::size_t here) {
    const Execution zeros = of_zeros(op_of(spec, {1}), response_of(spec), here);
    std::vector<std::uint64_t> bytes;
    for (const Buffer& buffer : zeros.buffers) {
      for (std::uint64_t i = 0; i < buffer.in_bytes; ++i) EXPECT_EQ(buffer.in[i], std::byte{0});
      bytes.push_back(buffer.in_bytes);
    }
    EXPECT_EQ(zeros.op.in_arena, spec.in_arena && bytes.empty());
    return bytes;
  };
  using Bytes = std::vector<std::uint64_t>;
  EXPECT_EQ(bytes_of(bucket(), 3), Bytes{}) << "in the arena of one host the others do it alone";
  EXPECT_EQ(bytes_of(bucket(), 2), Bytes{256}) << "with what lies between the tensors";
  RequestSpec gloo = bucket();
  gloo.backend = BackendId::kGloo;
  EXPECT_EQ(bytes_of(gloo, 3), Bytes{256});
  RequestSpec own = bucket();
  own.in_arena = false;
  own.arena_bytes = 0;
  EXPECT_EQ(bytes_of(own, 3), (Bytes{12, 20}));
}

}  // namespace
}  // namespace ciranda::testing
