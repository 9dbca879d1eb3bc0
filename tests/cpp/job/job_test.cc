// What could break: the API of C++ programs. Ranks are forked from the test; as a launcher starts
// them, with the installed package, is tests/python/packaging.
#include <ciranda/ciranda.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace ciranda {
namespace {

void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

void require_equal(double found, double expected, const std::string& what) {
  require(found == expected,
          what + ": " + std::to_string(found) + ", not " + std::to_string(expected));
}

void require_error(const std::string& text, const std::function<void()>& act) {
  try {
    act();
  } catch (const std::runtime_error& error) {
    return require(std::string(error.what()).find(text) != std::string::npos,
                   "not '" + text + "' but: " + error.what());
  }
  throw std::runtime_error("no error with '" + text + "'");
}

// Runs `rank` in `size` processes, each a rank of one job, which passes if none throws.
void run_ranks(int size, const std::function<void()>& rank) {
  const std::string job_id = "job_test." + std::to_string(::getpid());
  std::vector<pid_t> ranks;
  for (int number = 0; number < size; ++number) {
    ranks.push_back(::fork());
    ASSERT_GE(ranks.back(), 0);
    if (ranks.back() > 0) continue;
    ::setenv("CIRANDA_JOB_ID", job_id.c_str(), 1);
    ::setenv("CIRANDA_RANK", std::to_string(number).c_str(), 1);
    ::setenv("CIRANDA_SIZE", std::to_string(size).c_str(), 1);
    try {
      rank();
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "rank %d: %s\n", number, problem.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  for (const pid_t pid : ranks) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
}

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

TEST(Job, RanksOfAProcessSetWorkAmongThemselves) {
  run_ranks(4, [] {
    Job job;
    const ProcessSet odd = job.add_process_set({3, 1});
    require(odd.ranks() == std::vector<int>{1, 3} && odd.size() == 2 && odd.id() == 1, "the set");
    require(job.global_process_set().rank() == job.rank(), "the global set");
    auto value = static_cast<float>(job.rank());
    if (!odd.included()) {
      require(odd.rank() == -1, "a rank in the set");
      require_error(
          "is not a member of process set 1; only its members may submit operations of the set",
          [&] { job.allreduce(&value, 1, Job::Op::kSum, "", odd); });
    } else {
      require(odd.rank() == job.rank() / 2, "no rank in the set");
      job.allreduce(&value, 1, Job::Op::kAverage, "", odd);
      require_equal(value, 2, "average");
      value = static_cast<float>(job.rank());
      job.broadcast(&value, sizeof value, 3, "", odd);
      require_equal(value, 3, "broadcast");
      job.barrier(odd);
    }
    require_error("process sets must be unique", [&] { job.add_process_set({1, 3}); });
    job.remove_process_set(odd);
    require_error("there is no process set 1 (any more)", [&] { job.barrier(odd); });
    require_error("the process set of all ranks cannot be removed",
                  [&] { job.remove_process_set({}); });
    value = 1;
    job.allreduce(&value, 1);
    require_equal(value, 4, "all ranks");
  });
}

TEST(Job, RanksThatHaveJoinedAddZeros) {
  run_ranks(3, [] {
    Job job;
    for (int batch = 0; batch < 2 * job.rank() + 1; ++batch) {
      double value = 3;
      job.allreduce(&value, 1, Job::Op::kAverage);
      require_equal(value, batch < 1 ? 3 : batch < 3 ? 2 : 1, "average");
    }
    require_equal(job.join(), 2, "the last");
  });
}

TEST(Job, RefusesAProcessSetThatIsNone) {
  Job job;
  require_error("add_process_set: name at least one rank, and each rank once, not [0, 0]", [&] {
    job.add_process_set({0, 0});
  });
  require_error("there is no rank 1 among 1 ranks", [&] { job.add_process_set({1}); });
  require_error("use global_process_set()", [] { ProcessSet().size(); });
  EXPECT_TRUE(ProcessSet().included());
  EXPECT_EQ(job.join(), 0);
}

TEST(Job, RefusesAProcessSetOfAnEarlierJob) {
  run_ranks(2, [] {
    const ProcessSet earlier = Job().add_process_set({0});
    Job later;
    later.add_process_set({1});
    require_error("process set 1 belongs to an earlier job", [&] { later.barrier(earlier); });
    require_error("process set 1 belongs to an earlier job",
                  [&] { later.remove_process_set(earlier); });
  });
}

}  // namespace
}  // namespace ciranda
