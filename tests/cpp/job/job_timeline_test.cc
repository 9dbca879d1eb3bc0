// What could break: a rank that is missing in the one file, or in every file; a rank that waits for
// ever because another one could not take part.
#include "core/job/job_timeline.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/hosts.h"

namespace ciranda::testing {
namespace {

// Two hosts of two ranks.
class JobTimelineTest : public ::testing::Test {
 protected:
  JobTimelineTest() {
    std::filesystem::create_directory(folder_);
    for (auto& engine : world_.engines) {
      timelines_.push_back(std::make_unique<JobTimeline>(*engine, [this](const std::string& text) {
        const MutexLock lock(mutex_);
        warnings_ += text + "\n";
      }));
    }
  }
  ~JobTimelineTest() override { std::filesystem::remove_all(folder_); }

  // Runs `body` on every rank at a time.
  void run(const std::function<void(Engine&, JobTimeline&)>& body) {
    world_.run([&](Engine& engine) {
      body(engine, *timelines_[static_cast<std::size_t>(engine.rank())]);
    });
  }
  static void work(Engine& engine) {
    std::vector<float> tensor(3, 1.0F);
    auto handle = allreduce(engine, tensor, {.name = "work"});
    ASSERT_TRUE(handle.ok() && engine.wait(handle.value()).ok());
  }
  // How often the text is in the file of that name, which must be whole.
  int count(const std::string& what, const std::string& suffix = "") const {
    std::stringstream stream;
    stream << std::ifstream(path_ + suffix).rdbuf();
    const std::string text = stream.str();
    EXPECT_TRUE(text.empty() || text.ends_with("\n]}\n")) << suffix;
    int found = 0;
    for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
    return found;
  }
  auto files() const {
    return std::distance(std::filesystem::directory_iterator(folder_),
                         std::filesystem::directory_iterator());
  }
  std::string warnings() {
    const MutexLock lock(mutex_);
    return warnings_;
  }

  const std::string folder_ = ::testing::TempDir() + "job_timeline." + std::to_string(::getpid());
  const std::string path_ = folder_ + "/trace.json";
  Mutex mutex_;
  std::string warnings_ GUARDED_BY(mutex_);
  World world_ = several_hosts({2, 2}, {.pace = {.spin_ns = 20'000}});
  std::vector<std::unique_ptr<JobTimeline>> timelines_;
};

TEST_F(JobTimelineTest, AllRanksAreInOneFile) {
  constexpr int kEvents = 6'000;  // more than travels at once
  for (int step = 0; step < 2; ++step) {
    run([&](Engine& engine, JobTimeline& timeline) {
      ASSERT_TRUE(timeline.start(path_, /*marks_cycles=*/false).ok());
      ASSERT_TRUE(timeline.start(path_, /*marks_cycles=*/false).ok());
      work(engine);
      const auto events = static_cast<std::uint64_t>(kEvents * engine.rank());
      for (std::uint64_t i = 0; i < events; ++i) {
        engine.timeline().record("EVENT", "row", 2 * i, 2 * i + 1);
      }
      ASSERT_TRUE(timeline.stop().ok());
      EXPECT_EQ(count("\"ALLREDUCE\""), 4);  // whoever is through sees the whole
      ASSERT_TRUE(timeline.stop().ok());
    });
  }
  EXPECT_EQ(count("process_name"), 4);
  EXPECT_EQ(count("EVENT"), 6 * kEvents);
  EXPECT_EQ(count("ciranda.timeline"), 0);
  EXPECT_EQ(files(), 1);
  EXPECT_EQ(warnings(), "");
}

TEST_F(JobTimelineTest, TheEndOfAllRanksIsAStop) {
  run([&](Engine& engine, JobTimeline& timeline) {
    ASSERT_TRUE(timeline.start(path_, /*marks_cycles=*/true).ok());
    work(engine);
    // Who stops and who ends wait for each other.
    if (engine.rank() == 1) {
      ASSERT_TRUE(timeline.stop().ok());
    }
    timeline.end();
    engine.shutdown();
  });
  EXPECT_EQ(count("\"ALLREDUCE\""), 4);
  EXPECT_EQ(files(), 1);
  EXPECT_EQ(warnings(), "");
}

TEST_F(JobTimelineTest, HostsKeepFilesOfTheirOwnWhereARankHasLeft) {
  run([&](Engine& engine, JobTimeline& timeline) {
    ASSERT_TRUE(timeline.start(path_, /*marks_cycles=*/false).ok());
    work(engine);
    if (engine.rank() == 3) {
      engine.shutdown();
    } else {
      timeline.end();
    }
  });
  EXPECT_EQ(count("\"ALLREDUCE\""), 2);
  EXPECT_EQ(count("\"ALLREDUCE\"", ".host1"), 2);
  EXPECT_EQ(files(), 2);
  EXPECT_NE(warnings().find("the timeline of this host is in " + path_ + ".host1, not in"),
            std::string::npos)
      << warnings();
}

TEST_F(JobTimelineTest, AnEarlyRankDoesNotWaitForEver) {
  std::atomic<int> early = 0;
  run([&](Engine& engine, JobTimeline& timeline) {
    ASSERT_TRUE(timeline.start(path_, /*marks_cycles=*/false).ok());
    work(engine);
    while (engine.rank() == 3 && early < 3) std::this_thread::yield();
    timeline.end(/*patience_ns=*/50'000'000);
    ++early;
  });
  EXPECT_EQ(count("\"ALLREDUCE\""), 2);
  EXPECT_EQ(count("\"ALLREDUCE\"", ".host1"), 2);
  EXPECT_NE(warnings().find("not all ranks reached shutdown within 50 ms"), std::string::npos)
      << warnings();
}

TEST_F(JobTimelineTest, AFailedJobKeepsItsFiles) {
  std::atomic<int> through = 0;
  run([&](Engine& engine, JobTimeline& timeline) {
    ASSERT_TRUE(timeline.start(path_, /*marks_cycles=*/false).ok());
    work(engine);
    ++through;
    while (engine.rank() == 2 && through < 4) std::this_thread::yield();
    if (engine.rank() == 2) engine.abort("rank 2 had enough");
    timeline.end();
  });
  EXPECT_EQ(count("\"ALLREDUCE\"") + count("\"ALLREDUCE\"", ".host1"), 4);
  EXPECT_NE(warnings().find("rank 2 had enough"), std::string::npos) << warnings();
}

TEST_F(JobTimelineTest, WhereOneRankCannotStartEachHostHasItsFile) {
  run([&](Engine& engine, JobTimeline& timeline) {
    const bool starts = engine.rank() != 1;
    EXPECT_EQ(timeline.start(starts ? path_ : "", /*marks_cycles=*/false).ok(), starts);
    work(engine);
    EXPECT_TRUE(timeline.stop().ok());
    timeline.end();
  });
  EXPECT_EQ(count("\"ALLREDUCE\""), 1);
  EXPECT_EQ(count("\"ALLREDUCE\"", ".host1"), 2);
}

TEST_F(JobTimelineTest, WhereRank0CannotWriteTheOthersKeepTheirs) {
  run([&](Engine& engine, JobTimeline& timeline) {
    ASSERT_TRUE(timeline.start(path_, /*marks_cycles=*/false).ok());
    work(engine);
    if (engine.rank() == 0) {
      ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    }
    work(engine);
    const Status stopped = timeline.stop();
    ASSERT_EQ(stopped.ok(), engine.rank() > 1);
    if (!stopped) {
      EXPECT_NE(stopped.error().text.find("it is not a regular file"), std::string::npos);
    }
  });
  EXPECT_EQ(count("\"ALLREDUCE\"", ".host1"), 4);
  EXPECT_NE(warnings().find("rank 0 cannot write"), std::string::npos) << warnings();
}

}  // namespace
}  // namespace ciranda::testing
