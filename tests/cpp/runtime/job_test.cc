// What could break: the API of C++ programs; with several ranks it is tested by the installed
// package's program (tests/python/packaging).
#include <ciranda/ciranda.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace ciranda {
namespace {

TEST(Job, OfOneRankNeedsNoStarter) {
  Job job;
  EXPECT_EQ(job.rank(), 0);
  EXPECT_EQ(job.size(), 1);
  std::vector<float> values = {1, 2, 3};
  job.allreduce(values.data(), values.size(), Job::Op::kAverage);
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
  job.broadcast(values.data(), values.size() * sizeof(float), 0);
  job.barrier();
}

TEST(Job, BadArgumentsThrowASentence) {
  Job job;
  float value = 0;
  EXPECT_THROW(job.broadcast(&value, 4, 1), std::runtime_error);
  EXPECT_THROW(job.allreduce(&value, 1, Job::Op::kSum, std::string(1000, 'x')), std::runtime_error);
}

}  // namespace
}  // namespace ciranda
