// What could break: thousands of connections fail at the usual soft limit of 1024 files.
#include "core/base/descriptors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace ciranda {
namespace {

class DescriptorLimit : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0); }
  void TearDown() override { ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  static rlim_t soft() {
    rlimit limit{};
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur;
  }
  rlimit before_{};
};

TEST_F(DescriptorLimit, IsRaisedAsFarAsNeededAndNoFarther) {
  const rlimit low{.rlim_cur = 200, .rlim_max = before_.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_FALSE(raise_descriptor_limit(100).has_value());
  EXPECT_EQ(soft(), 200u);
  EXPECT_FALSE(raise_descriptor_limit(300).has_value());
  EXPECT_EQ(soft(), 300u);
}

TEST_F(DescriptorLimit, IsToldWhenItIsTooLow) {
  const auto told = raise_descriptor_limit(before_.rlim_max + 1);
  ASSERT_TRUE(told.has_value());
  EXPECT_NE(told->find("would need " + std::to_string(before_.rlim_max + 1)), std::string::npos);
  EXPECT_NE(told->find("ulimit -Hn"), std::string::npos);
  EXPECT_EQ(soft(), before_.rlim_max);
}

}  // namespace
}  // namespace ciranda
