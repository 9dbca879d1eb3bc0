// What could break: two ranks that come to different operators, and factors that are lost.
#include "core/backend/nccl/nccl_reduction.h"

#include <gtest/gtest.h>

#include <cstring>

namespace ciranda {
namespace {

constexpr NcclOldest kNew = {.version = NCCL_VERSION(2, 30, 7), .compute_capability = 100};

FusedOp sum_of(DType dtype, double prescale = 1.0, double postscale = 1.0) {
  return {.op = ReduceOp::kSum, .dtype = dtype, .prescale = prescale, .postscale = postscale};
}

TEST(NcclReduction, UsesNcclsOwnOperatorsWhereNothingIsScaled) {
  const std::pair<ReduceOp, ncclRedOp_t> pairs[] = {{ReduceOp::kSum, ncclSum},
                                                    {ReduceOp::kAverage, ncclAvg},
                                                    {ReduceOp::kMin, ncclMin},
                                                    {ReduceOp::kMax, ncclMax},
                                                    {ReduceOp::kProduct, ncclProd}};
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (const auto& [ours, theirs] : pairs) {
      const auto reduction =
          nccl_reduction({.op = ours, .dtype = static_cast<DType>(dtype)}, 3, kNew);
      ASSERT_TRUE(reduction.ok());
      EXPECT_EQ(reduction.value().op, theirs);
      EXPECT_FALSE(reduction.value().factor.has_value());
    }
  }
}

TEST(NcclReduction, FoldsAllFactorsIntoOneBeforeTheSum) {
  FusedOp op = sum_of(DType::kFloat32, 3.0, 0.5);
  op.op = ReduceOp::kAverage;
  const auto reduction = nccl_reduction(op, 4, kNew);
  ASSERT_TRUE(reduction.ok() && reduction.value().factor.has_value());
  float factor = 0;
  std::memcpy(&factor, reduction.value().factor->data(), sizeof factor);
  EXPECT_EQ(factor, 0.375f);
  EXPECT_EQ(reduction.value().op, ncclSum);
}

TEST(NcclReduction, RefusesWhatNcclCannotScale) {
  const auto refusal = [](const FusedOp& op) {
    const auto reduction = nccl_reduction(op, 2, kNew);
    return reduction.ok() ? std::string() : reduction.error().text;
  };
  EXPECT_EQ(refusal({.op = ReduceOp::kMin, .postscale = 2.0}),
            "NCCL has no Min of float32 with scale factors; scale the tensor before or after");
  EXPECT_EQ(refusal(sum_of(DType::kInt32, 2.0)),
            "NCCL has no Sum of int32 with scale factors; scale the tensor itself, or convert it "
            "to float32");
  EXPECT_NE(refusal(sum_of(DType::kFloat8E5M2, 2.0)), "");
  EXPECT_NE(refusal(sum_of(DType::kFloat16, 1e-9)), "") << "it would be 0";
  EXPECT_NE(refusal(sum_of(DType::kFloat16, 1e9)), "") << "it would be infinite";
  EXPECT_EQ(refusal(sum_of(DType::kBFloat16, 1e-9)), "");
  EXPECT_EQ(refusal(sum_of(DType::kFloat16, 0.0)), "");
}

TEST(NcclReduction, KnowsFloat8SinceTwoTwentyFour) {
  const FusedOp sum = sum_of(DType::kFloat8E4M3);
  EXPECT_TRUE(nccl_reduction(sum, 2, {NCCL_VERSION(2, 24, 0), 90}).ok());
  EXPECT_FALSE(nccl_reduction(sum, 2, {NCCL_VERSION(2, 23, 4), 90}).ok());
}

TEST(NcclReduction, KnowsFloat8SinceHopper) {
  const auto ada = nccl_reduction(sum_of(DType::kFloat8E5M2), 2, {kNew.version, 89});
  ASSERT_FALSE(ada.ok());
  EXPECT_EQ(
      ada.error().text,
      "NCCL has no Sum of float8_e5m2 on a GPU older than Hopper, and a rank has one; convert "
      "the tensor to bfloat16");
  EXPECT_TRUE(nccl_reduction(sum_of(DType::kBFloat16), 2, {kNew.version, 89}).ok());
}

TEST(NcclType, HasTheSizeOfTheDtype) {
  EXPECT_EQ(nccl_type(DType::kBFloat16), ncclBfloat16);
  EXPECT_EQ(nccl_type(DType::kFloat8E4M3), ncclFloat8e4m3);
  EXPECT_EQ(nccl_type(DType::kUInt8), ncclUint8);
}

}  // namespace
}  // namespace ciranda
