// What could break: bookkeeping that loses an operation, or keeps one.
#include "core/negotiate/readiness.h"

#include <gtest/gtest.h>

#include "negotiate/requests.h"

namespace ciranda {
namespace {

const std::shared_ptr<const Group> kThreeRanks = world_of(3);

class ReadinessTest : public ::testing::Test {
 protected:
  PendingOp& open(const std::string& name, std::uint32_t occurrence = 0) {
    NameEntry& entry = names_.acquire(name, OpKind::kAllreduce, kThreeRanks);
    PendingOp& op =
        readiness_.open(entry, occurrence, std::make_shared<const RequestSpec>(allreduce(name)), 0);
    names_.release(entry);
    return op;
  }
  void contribute(PendingOp& op, Rank rank) {
    op.contributions[static_cast<std::size_t>(rank)].emplace();
    --op.missing;
  }

  NameTable names_;
  Readiness readiness_{names_};
};

TEST_F(ReadinessTest, FindsAnOperationByNameAndOccurrence) {
  PendingOp& fifth = open("w", 5);
  PendingOp& second = open("w", 2);
  PendingOp& other = open("v", 5);
  EXPECT_EQ(readiness_.find(*fifth.name, 5), &fifth);
  EXPECT_EQ(readiness_.find(*fifth.name, 2), &second);
  EXPECT_EQ(readiness_.find(*fifth.name, 3), nullptr);
  EXPECT_EQ(readiness_.find(*other.name, 2), nullptr);
}

TEST_F(ReadinessTest, KeepsTheOrderOfTheFirstRequests) {
  PendingOp& a = open("a");
  PendingOp& b = open("b");
  PendingOp& c = open("c");
  readiness_.close(b);
  EXPECT_EQ(readiness_.oldest(), &a);
  EXPECT_EQ(a.newer, &c);
  readiness_.close(a);
  EXPECT_EQ(readiness_.oldest(), &c);
  EXPECT_EQ(c.newer, nullptr);
  readiness_.close(c);
  EXPECT_EQ(readiness_.oldest(), nullptr);
  PendingOp& d = open("d");
  EXPECT_EQ(readiness_.oldest(), &d);
}

TEST_F(ReadinessTest, StartsEachOperationEmpty) {
  PendingOp& used = open("a");
  contribute(used, 1);
  used.disagreements.push_back({2, nullptr});
  readiness_.close(used);
  PendingOp& next = open("b");
  EXPECT_EQ(next.missing, 3);
  EXPECT_EQ(next.contributions.size(), 3u);
  for (const auto& contribution : next.contributions) EXPECT_FALSE(contribution.has_value());
  EXPECT_TRUE(next.disagreements.empty());
}

TEST_F(ReadinessTest, ForgetsANameWithItsLastOperation) {
  PendingOp& op = open("w");
  EXPECT_EQ(names_.size(), 1u);
  readiness_.close(op);
  EXPECT_EQ(names_.size(), 0u);
}

}  // namespace
}  // namespace ciranda
