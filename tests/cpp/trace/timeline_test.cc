// What could break: a file that no viewer reads, parts of other jobs in it, an error that nobody
// hears of.
#include "core/trace/timeline.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace ciranda {
namespace {

std::string in_folder(const std::string& name) {
  return ::testing::TempDir() + "timeline." + std::to_string(::getpid()) + "." + name;
}

std::string content_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(Timeline, WritesEventsWithQuotedNames) {
  const std::string path = in_folder("names");
  Timeline timeline(3, "job");
  timeline.record("BEFORE", "row", 1, 2);
  ASSERT_TRUE(timeline.start(path).ok());
  EXPECT_TRUE(timeline.is_on());
  timeline.record("NEGOTIATE_ALLREDUCE", "allreduce.odd \"name\"\n", 1'000, 3'500);
  timeline.mark_cycle(5);
  ASSERT_TRUE(timeline.stop().ok());
  EXPECT_FALSE(timeline.is_on());
  const std::string text = content_of(path);
  EXPECT_NE(text.find(R"("name": "allreduce.odd \"name\"\u000a")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("dur": 2.500)"), std::string::npos);
  EXPECT_NE(text.find("rank 3"), std::string::npos);
  EXPECT_EQ(count(text, "BEFORE") + count(text, "CYCLE_START"), 0);
  std::remove(path.c_str());
}

TEST(Timeline, AllRanksOfAJobAreInOneFile) {
  const std::string path = in_folder("ranks");
  std::ofstream(path) << "something else";
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 5; ++rank) {
    threads.emplace_back([&path, rank] {
      Timeline timeline(rank, "job");
      ASSERT_TRUE(timeline.start(path, /*marks_cycles=*/true).ok());
      timeline.record("ALLREDUCE", "allreduce.x", 10, 20);
      timeline.mark_cycle(10);
      ASSERT_TRUE(timeline.stop().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = content_of(path);
  EXPECT_EQ(count(text, "\"ALLREDUCE\""), 5);
  EXPECT_EQ(count(text, "CYCLE_START"), 5);
  EXPECT_EQ(count(text, "traceEvents"), 1);
  EXPECT_EQ(count(text, "something"), 0);
  EXPECT_EQ(count(text, "{"), count(text, "}"));

  Timeline next(0, "another job");
  ASSERT_TRUE(next.start(path).ok());
  ASSERT_TRUE(next.stop().ok());
  EXPECT_EQ(count(content_of(path), "\"ALLREDUCE\""), 0);
  std::remove(path.c_str());
}

TEST(Timeline, EachStartIsAFileOfItsOwn) {
  const std::string path = in_folder("starts");
  Timeline timeline(0, "job");
  ASSERT_TRUE(timeline.start(path).ok());
  ASSERT_TRUE(timeline.start(path).ok());  // as in Horovod
  const Status other = timeline.start(path + "2");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().text.find(path + " already; stop it first"), std::string::npos);
  timeline.record("FIRST", "row", 1, 2);
  ASSERT_TRUE(timeline.stop().ok());
  ASSERT_TRUE(timeline.stop().ok());
  ASSERT_TRUE(timeline.start(path).ok());
  timeline.record("SECOND", "row", 1, 2);
  ASSERT_TRUE(timeline.stop().ok());
  EXPECT_EQ(count(content_of(path), "FIRST"), 0);
  EXPECT_EQ(count(content_of(path), "SECOND"), 1);
  std::remove(path.c_str());
}

TEST(Timeline, EventsThatOverlapHaveRowsOfTheirOwn) {
  const std::string path = in_folder("rows");
  Timeline timeline(0, "job", /*host=*/2);
  ASSERT_TRUE(timeline.start(path).ok());
  timeline.record("A", "x", 0, 10);
  timeline.record("B", "x", 5, 15);
  timeline.record("C", "x", 10, 12);
  ASSERT_TRUE(timeline.stop().ok());
  const std::string text = content_of(path + ".host2");
  EXPECT_EQ(count(text, "thread_name"), 2);
  std::remove((path + ".host2").c_str());
}

TEST(Timeline, ABadPathIsAnErrorThatNamesIt) {
  Timeline timeline(0, "job");
  const Status started = timeline.start("/nonexistent/folder/timeline.json");
  ASSERT_FALSE(started.ok());
  EXPECT_NE(started.error().text.find("/nonexistent/folder"), std::string::npos);
  EXPECT_FALSE(timeline.start("").ok());

  const std::string pipe = in_folder("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_TRUE(timeline.start(pipe).ok());
  EXPECT_NE(timeline.stop().error().text.find("it is not a regular file"), std::string::npos);
  std::remove(pipe.c_str());
}

}  // namespace
}  // namespace ciranda
