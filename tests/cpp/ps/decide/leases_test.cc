// What could break: a lease that never ends, ends twice, or ends for a caller that speaks.
#include "core/ps/decide/leases.h"

#include <gtest/gtest.h>

#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::kLeaseNs;

using Callers = std::vector<Caller>;

TEST(Leases, ALeaseEndsOnceAndBeginsAgainWithAMessage) {
  Leases leases(kLeaseNs);
  EXPECT_EQ(leases.next_ns(), UINT64_MAX);
  EXPECT_FALSE(leases.hear(3, 0));  // it has not entered, and has no lease
  EXPECT_EQ(leases.next_ns(), UINT64_MAX);
  leases.begin(3, 10);
  leases.begin(1, 20);
  EXPECT_EQ(leases.next_ns(), 10 + kLeaseNs);
  EXPECT_EQ(leases.end(9 + kLeaseNs), Callers{});
  EXPECT_FALSE(leases.is_silent(3));
  EXPECT_EQ(leases.end(20 + kLeaseNs), (Callers{1, 3}));
  EXPECT_EQ(leases.end(20 + kLeaseNs), Callers{});
  EXPECT_EQ(leases.silent(), (Callers{1, 3}));
  EXPECT_EQ(leases.next_ns(), UINT64_MAX);
  EXPECT_TRUE(leases.hear(3, 500));
  EXPECT_FALSE(leases.hear(3, 500));
  EXPECT_EQ(leases.next_ns(), 500 + kLeaseNs);
  leases.close(1);
  EXPECT_FALSE(leases.is_silent(1));
  leases.close(3);
  EXPECT_EQ(leases.next_ns(), UINT64_MAX);
}

TEST(Leases, TheWaitAfterARestartEndsOnce) {
  Leases leases(kLeaseNs);
  EXPECT_FALSE(leases.end_wait(1'000));
  leases.begin_wait(1'000);
  EXPECT_EQ(leases.next_ns(), 1'000 + kLeaseNs);
  EXPECT_FALSE(leases.end_wait(1'000 + kLeaseNs - 1));
  EXPECT_TRUE(leases.end_wait(1'000 + kLeaseNs));
  EXPECT_FALSE(leases.end_wait(1'000 + kLeaseNs));
  EXPECT_EQ(leases.next_ns(), UINT64_MAX);
}

}  // namespace
}  // namespace ciranda::ps
