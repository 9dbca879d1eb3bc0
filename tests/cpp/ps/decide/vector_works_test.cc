// What could break: an operation that is done twice, left out, or another one than before.
#include "core/ps/decide/vector_works.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

class Changes final : public Journal {
 public:
  void write(const Change& change, const Data&) override { written.push_back(change); }
  std::vector<Change> written;
};

class VectorWorksTest : public ::testing::Test {
 protected:
  VectorWorksTest() : memory_(shard_.layout().memory_bytes() / sizeof(float), 2.0f) {
    shard_.enter(0, reinterpret_cast<std::byte*>(memory_.data()));
    shard_.give(0);
  }
  // Adds the parameters to vector 1, and returns its square.
  static VectorWork add(std::uint64_t number) {
    return {.number = number,
            .sums = {{.into = 1,
                      .terms = {{.vector = 1, .factor = 1.0},
                                {.vector = kParametersVector, .factor = 1.0}}}},
            .dots = {{.one = 1, .other = 1}}};
  }

  Shard shard_{testing::model_of({{16}}), 1, 0, 1};
  std::vector<float> memory_;
  VectorWorks works_;
  Changes journal_;
};

TEST_F(VectorWorksTest, AnOperationIsDoneOnceAndItsResultsStay) {
  const auto once = works_.take(add(1), &shard_, &journal_);
  ASSERT_TRUE(once.ok());
  EXPECT_EQ(once.value().dots, std::vector<double>{16 * 4.0});
  const auto again = works_.take(add(1), &shard_, &journal_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value().dots, once.value().dots);
  EXPECT_EQ(journal_.written.size(), 1u);
  const auto next = works_.take(add(2), &shard_, &journal_);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next.value().dots, std::vector<double>{16 * 16.0});
  EXPECT_EQ(works_.take(add(1), &shard_, nullptr).value().dots, once.value().dots);
}

TEST_F(VectorWorksTest, WhatDoesNotFollowIsRefused) {
  EXPECT_EQ(works_.take(add(1), nullptr, nullptr).error().text,
            "vector operation 1 came before any worker declared its parameters");
  EXPECT_EQ(works_.take(add(2), &shard_, &journal_).error().code, ErrorCode::kRankLost);
  EXPECT_EQ(works_.take(add(0), &shard_, &journal_).error().code, ErrorCode::kRankLost);
  ASSERT_TRUE(works_.take(add(1), &shard_, &journal_).ok());
  VectorWork other = add(1);
  other.dots.clear();
  EXPECT_EQ(works_.take(other, &shard_, &journal_).error().text,
            "vector operation 1 was another one before the coordinator was restarted");
  other = add(2);
  other.sums[0].into = kVectorsMax;
  EXPECT_FALSE(works_.take(other, &shard_, &journal_).ok());
  EXPECT_EQ(journal_.written.size(), 1u);  // so that no replay fails
  EXPECT_EQ(works_.done().size(), 1u);
}

TEST_F(VectorWorksTest, WhatWasDoneIsRestoredAndGoesOn) {
  ASSERT_TRUE(works_.repeat(add(1), shard_).ok());
  VectorWorks again;
  again.restore(works_.done());
  EXPECT_EQ(again.take(add(1), &shard_, &journal_).value().dots, std::vector<double>{16 * 4.0});
  EXPECT_TRUE(journal_.written.empty());
  EXPECT_TRUE(again.take(add(2), &shard_, &journal_).ok());
}

}  // namespace
}  // namespace ciranda::ps
