// What could break: a submission that no frame can hold, or that means two things at once.
#include "core/wire/request_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "core/wire/pair.h"

namespace ciranda {
namespace {

RequestSpec allreduce(std::string name, Shape shape = {3, 4}) {
  return {.name = std::move(name), .tensors = {{.shape = std::move(shape)}}};
}

TEST(Limits, RefuseANegativeNumberOfRows) {
  RequestSpec spec{.name = "x", .kind = OpKind::kAllgather, .tensors = {{.shape = {kAnyRows}}}};
  EXPECT_TRUE(check_limits(spec, {.rows = {0}}).ok());
  EXPECT_EQ(check_limits(spec, {.rows = {-1}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(check_limits(spec, {.rows = {0}, .digest = Digest{}}).ok());
  EXPECT_EQ(check_limits(spec, {.digest = Digest{}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(check_limits(spec, {.rows = {kTensorBytesMax + 1}}).error().code, ErrorCode::kLimit);
}

TEST(Limits, RefuseToScatterANumber) {
  const RequestSpec spec{.name = "x", .kind = OpKind::kReducescatter, .tensors = {{.shape = {}}}};
  EXPECT_EQ(check_spec(spec).error().text,
            "reducescatter 'x': tensor 0: it has no dimension along which to scatter");
}

TEST(Limits, NameTheLimitTheTensorAndTheValue) {
  const Status name = check_limits(allreduce(std::string(257, 'n')), {});
  EXPECT_EQ(name.error().code, ErrorCode::kLimit);
  EXPECT_NE(name.error().text.find("bytes of the name 257 exceeds the limit of 256"),
            std::string::npos);

  const Status dims = check_limits(allreduce("deep", Shape(17, 1)), {});
  EXPECT_EQ(dims.error().text,
            "allreduce 'deep': tensor 0: number of dimensions 17 exceeds the limit of 16");
  EXPECT_EQ(dims.error().tensor, "deep");

  RequestSpec group = allreduce("many");
  group.tensors.resize(kTensorsPerRequestMax + 1);
  EXPECT_EQ(check_limits(group, {}).error().code, ErrorCode::kLimit);
}

TEST(Limits, RefuseSizesThatOverflow) {
  const std::int64_t big = 1ll << 38;
  EXPECT_TRUE(check_limits(allreduce("x", {big}), {}).ok());
  EXPECT_EQ(check_limits(allreduce("x", {big, 2}), {}).error().code, ErrorCode::kLimit);
  EXPECT_EQ(check_limits(allreduce("x", {big, big, big, big}), {}).error().code, ErrorCode::kLimit);
  EXPECT_TRUE(check_limits(allreduce("x", {big, big, 0}), {}).ok());
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(check_limits(allreduce("x", {most}), {}).error().code, ErrorCode::kLimit);
}

TEST(Limits, RefuseADescriptionLargerThanAFrame) {
  RequestSpec group = allreduce("wide", Shape(16, 1));
  group.tensors.resize(kTensorsPerRequestMax, group.tensors[0]);
  EXPECT_TRUE(check_limits(group, {}).ok());
  for (TensorSpec& tensor : group.tensors)
    tensor.shape = Shape(16, 1'000'000'000), tensor.shape[15] = 0;
  EXPECT_EQ(check_limits(group, {}).error().code, ErrorCode::kLimit);
}

TEST(Limits, RefuseASpecThatContradictsItself) {
  const auto refused = [](const RequestSpec& spec) {
    const Status status = check_limits(spec, {});
    return !status.ok() && status.error().code == ErrorCode::kInvalidArgument;
  };
  const TensorSpec plain{.shape = {2}};
  const TensorSpec open{.shape = {kAnyRows, 2}};
  EXPECT_TRUE(refused({.name = "no tensor"}));
  EXPECT_TRUE(refused({.name = "x", .kind = OpKind::kBarrier, .tensors = {plain}}));
  EXPECT_TRUE(refused({.name = "no root", .kind = OpKind::kBroadcast, .tensors = {plain}}));
  EXPECT_TRUE(refused({.name = "a root", .root = 0, .tensors = {plain}}));
  EXPECT_TRUE(refused({.name = "closed rows", .kind = OpKind::kAllgather, .tensors = {plain}}));
  EXPECT_TRUE(refused({.name = "0-dim", .kind = OpKind::kAllgather, .tensors = {{}}}));
  EXPECT_TRUE(refused({.name = "open rows", .tensors = {open}}));
  EXPECT_TRUE(refused({.name = "x", .kind = OpKind::kAlltoall, .tensors = {open, open}}));
  EXPECT_TRUE(refused({.name = "nan", .prescale = std::nan(""), .tensors = {plain}}));
  EXPECT_TRUE(refused({.name = "x",
                       .kind = OpKind::kBroadcast,
                       .op = ReduceOp::kMax,
                       .root = 0,
                       .tensors = {plain}}));
  EXPECT_TRUE(refused({.name = "x", .tensors = {{.shape = {-5}}}}));
  for (const Shape& no_pairs : {Shape{}, Shape{3}}) {
    EXPECT_TRUE(refused(
        {.name = "x", .tensors = {{.shape = no_pairs, .user_dtype = UserDType::kComplex64}}}));
  }
}

TEST(Limits, RefuseAMessageOfOthersThanItsPair) {
  const auto send = [](GroupId group, Rank root) {
    return RequestSpec{
        .name = "x", .kind = OpKind::kSend, .group = group, .root = root, .tensors = {{}}};
  };
  const GroupId pair = pair_id({.from = 2, .to = 0});
  EXPECT_TRUE(check_spec(send(pair, 2)).ok());
  for (const RequestSpec& spec : {send(pair, 0), send(pair, 1), send(kWorldGroup, 2), send(7, 2)}) {
    const Status status = check_spec(spec);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Limits, RefuseAChangeOfMembershipThatIsMoreThanThat) {
  const auto refusal = [](const RequestSpec& spec) {
    const Status status = check_limits(spec, {});
    return status.ok() ? "" : status.error().text;
  };
  EXPECT_EQ(refusal({.kind = OpKind::kJoin}), "");
  EXPECT_EQ(refusal({.kind = OpKind::kAddGroup, .members = {0, 2}}), "");
  EXPECT_EQ(refusal({.kind = OpKind::kRemoveGroup, .removes = 7}), "");
  EXPECT_EQ(refusal({.kind = OpKind::kAddGroup}), "add_process_set: it needs a rank");
  EXPECT_EQ(refusal({.kind = OpKind::kAddGroup, .members = {2, 0}}),
            "add_process_set: its ranks must ascend from 0, each once");
  EXPECT_NE(refusal({.kind = OpKind::kAddGroup, .members = {1, 1}}), "");
  EXPECT_NE(refusal({.kind = OpKind::kAddGroup, .members = {-1}}), "");
  EXPECT_EQ(refusal({.kind = OpKind::kAddGroup, .members = {kRanksMax}}),
            "add_process_set: rank 4096 exceeds the limit of 4095");
  EXPECT_EQ(refusal({.kind = OpKind::kRemoveGroup}),
            "remove_process_set: the process set of all ranks cannot be removed");
  EXPECT_EQ(refusal({.kind = OpKind::kJoin, .group = 3}), "join: all ranks must submit it");
  EXPECT_EQ(refusal({.name = "x", .kind = OpKind::kJoin}), "join 'x': it takes no name");
  EXPECT_EQ(refusal({.kind = OpKind::kJoin, .tensors = {{}}}), "join: it takes no tensor");
  EXPECT_EQ(refusal({.name = "x", .tensors = {{}}, .members = {1}}),
            "allreduce 'x': it takes no list of ranks");
  EXPECT_EQ(refusal({.name = "x", .tensors = {{}}, .removes = 1}),
            "allreduce 'x': it removes no process set");
}

TEST(Limits, RefuseABackendWhereItMeansNothing) {
  const auto refusal = [](const RequestSpec& spec) {
    const Status status = check_limits(spec, {});
    return status.ok() ? "" : status.error().text;
  };
  EXPECT_EQ(refusal({.name = "x", .backend = BackendId::kGloo, .tensors = {{}}}), "");
  EXPECT_EQ(refusal({.name = "x",
                     .in_arena = true,
                     .arena_bytes = 4,
                     .backend = BackendId::kGloo,
                     .tensors = {{}}}),
            "");
  EXPECT_EQ(refusal({.name = "x", .in_arena = true, .backend = BackendId::kNccl, .tensors = {{}}}),
            "allreduce 'x': the arena is not GPU memory");
  EXPECT_EQ(refusal({.name = "x", .in_arena = true, .arena_bytes = 3, .tensors = {{}}}),
            "allreduce 'x': its arena memory ends within an element");
  EXPECT_EQ(refusal({.name = "x", .in_arena = true, .arena_bytes = 4, .tensors = {{}, {}}}),
            "allreduce 'x': its arena tensors are larger than its memory there");
  EXPECT_EQ(refusal({.name = "x", .arena_bytes = 4, .tensors = {{}}}),
            "allreduce 'x': only arena tensors have bytes in the arena");
  EXPECT_EQ(refusal({.name = "b", .kind = OpKind::kBarrier, .backend = BackendId::kNccl}),
            "barrier 'b': it moves no data, so nccl has no part in it");
  EXPECT_EQ(refusal({.name = "x",
                     .wire_dtype = DType::kFloat16,
                     .backend = BackendId::kGloo,
                     .tensors = {{}}}),
            "allreduce 'x': gloo takes no wire dtype, but the operation has float16");
}

TEST(Limits, RefuseAWireDtypeWhereItMeansNothing) {
  const auto refusal = [](RequestSpec spec) {
    spec.wire_dtype = spec.wire_dtype.value_or(DType::kBFloat16);
    const Status status = check_limits(spec, {});
    return status.ok() ? "" : status.error().text;
  };
  const TensorSpec floats{.shape = {2}};
  EXPECT_EQ(refusal({.name = "w", .tensors = {floats}}), "");
  EXPECT_EQ(refusal({.name = "w", .wire_dtype = DType::kFloat32, .tensors = {floats}}),
            "allreduce 'w': its wire dtype is float32; it should be float16 or bfloat16");
  EXPECT_EQ(refusal({.name = "w", .op = ReduceOp::kMax, .tensors = {floats}}),
            "allreduce 'w': only the Sum and the Average of an allreduce travel as bfloat16");
  EXPECT_EQ(refusal({.name = "w", .tensors = {floats, {.dtype = DType::kFloat64}}}),
            "allreduce 'w': only float32 tensors travel as bfloat16, not float64");
}

TEST(Limits, RefuseStreamsWhereTheyMeanNothing) {
  const auto refusal = [](RequestSpec spec) {
    spec.streams = spec.streams > 0 ? spec.streams : 2;
    const Status status = check_limits(spec, {});
    return status.ok() ? "" : status.error().text;
  };
  const TensorSpec floats{.shape = {2}};
  EXPECT_EQ(refusal({.name = "w", .streams = kPairStreamsMax, .tensors = {floats}}), "");
  EXPECT_EQ(refusal({.name = "w", .streams = kPairStreamsMax + 1, .tensors = {floats}}),
            "allreduce 'w': streams 65 exceeds the limit of 64");
  const std::string others = "only an allreduce by ciranda's own backend takes a number of streams";
  EXPECT_EQ(refusal({.name = "w", .backend = BackendId::kNccl, .tensors = {floats}}),
            "allreduce 'w': " + others);
  EXPECT_EQ(refusal({.name = "w", .kind = OpKind::kReducescatter, .tensors = {floats}}),
            "reducescatter 'w': " + others);
}

TEST(Limits, LetOnlyNcclReduceFloat8) {
  const TensorSpec tensor{.dtype = DType::kFloat8E4M3, .shape = {2}};
  const auto refusal = [](const RequestSpec& spec) {
    const Status status = check_limits(spec, {});
    return status.ok() ? "" : status.error().text;
  };
  EXPECT_EQ(refusal({.name = "w", .tensors = {tensor}}),
            "allreduce 'w': the CPU does not reduce float8_e4m3fn; convert the tensor to bfloat16, "
            "or reduce it on GPUs by NCCL 2.24 or newer");
  EXPECT_NE(refusal({.name = "w", .backend = BackendId::kGloo, .tensors = {tensor}}), "");
  EXPECT_EQ(refusal({.name = "w", .backend = BackendId::kNccl, .tensors = {tensor}}), "");
  EXPECT_EQ(refusal({.name = "w", .kind = OpKind::kBroadcast, .root = 0, .tensors = {tensor}}), "");
}

}  // namespace
}  // namespace ciranda
