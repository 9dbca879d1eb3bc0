// What could break: a name that stays taken, unnamed operations that meet the wrong ones.
#include "core/engine/submission_queue.h"

#include <gtest/gtest.h>

#include "core/wire/operation_name.h"

namespace ciranda {
namespace {

Submission named(const std::string& name, OpKind kind = OpKind::kAllreduce) {
  Submission submission;
  RequestSpec spec;
  spec.name = name;
  spec.kind = kind;
  submission.spec = std::make_shared<RequestSpec>(std::move(spec));
  return submission;
}

TEST(SubmissionQueue, ANameIsFreeAgainOnceReleased) {
  SubmissionQueue queue;
  ASSERT_TRUE(queue.push(named("a")).ok());
  EXPECT_EQ(queue.push(named("a")).error().code, ErrorCode::kDuplicateName);
  queue.release(*named("a").spec);
  EXPECT_TRUE(queue.push(named("a")).ok());
}

TEST(SubmissionQueue, EachKindHasNamesOfItsOwn) {
  SubmissionQueue queue;
  ASSERT_TRUE(queue.push(named("a")).ok());
  ASSERT_TRUE(queue.push(named("a", OpKind::kBroadcast)).ok());
  queue.release(*named("a", OpKind::kBroadcast).spec);
  EXPECT_FALSE(queue.push(named("a")).ok());
  EXPECT_TRUE(queue.push(named("a", OpKind::kBroadcast)).ok());
}

TEST(SubmissionQueue, UnnamedOperationsAreCountedByKind) {
  SubmissionQueue queue;
  for (const OpKind kind : {OpKind::kAllreduce, OpKind::kBroadcast, OpKind::kAllreduce}) {
    ASSERT_TRUE(queue.push(named(unnamed(kind), kind)).ok());
  }
  std::vector<Submission> drained;
  ASSERT_TRUE(queue.drain_into(drained));
  EXPECT_TRUE(queue.empty());
  ASSERT_EQ(drained.size(), 3u);
  EXPECT_EQ(drained[0].occurrence, 0u);
  EXPECT_EQ(drained[1].occurrence, 0u);
  EXPECT_EQ(drained[2].occurrence, 1u);
}

TEST(SubmissionQueue, TakesNothingOnceClosed) {
  SubmissionQueue queue;
  ASSERT_TRUE(queue.push(named("a")).ok());
  queue.close({.code = ErrorCode::kNotInitialized, .text = "over"});
  EXPECT_EQ(queue.push(named("b")).error().text, "over");
  std::vector<Submission> drained;
  ASSERT_TRUE(queue.drain_into(drained));
  EXPECT_EQ(drained.size(), 1u);
}

TEST(SubmissionQueue, IsBoundedAndSaysSo) {
  SubmissionQueue queue;
  for (std::size_t i = 0; i < kInFlightMax; ++i) {
    ASSERT_TRUE(queue.push(named(unnamed(OpKind::kAllreduce))).ok());
  }
  const Status refused = queue.push(named("one more"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kLimit);
  EXPECT_NE(refused.error().text.find("one more"), std::string::npos);
}

}  // namespace
}  // namespace ciranda
