// What could break: a file that is not whole, or that was left behind half written.
#include "core/trace/timeline_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace ciranda {
namespace {

class TimelineFileTest : public ::testing::Test {
 protected:
  TimelineFileTest() { std::filesystem::create_directory(folder_); }
  ~TimelineFileTest() override { std::filesystem::remove_all(folder_); }

  std::string content() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  auto files() const {
    return std::distance(std::filesystem::directory_iterator(folder_),
                         std::filesystem::directory_iterator());
  }

  const std::string folder_ = ::testing::TempDir() + "timeline_file." + std::to_string(::getpid());
  const std::string path_ = folder_ + "/trace.json";
};

TEST_F(TimelineFileTest, HoldsWhatAllHaveAdded) {
  ASSERT_TRUE(write({.path = path_, .job = "job", .events = {"1", "2,\n3"}}).ok());
  ASSERT_TRUE(write({.path = path_, .job = "job", .events = {"4"}}).ok());
  EXPECT_NE(content().find("[\n1,\n2,\n3,\n4\n]}\n"), std::string::npos) << content();
  ASSERT_TRUE(write({.path = path_, .job = "other", .events = {"5"}}).ok());
  EXPECT_NE(content().find("\"other\"}, \"displayTimeUnit\": \"ms\", \"traceEvents\": [\n5\n]}\n"),
            std::string::npos)
      << content();
  EXPECT_EQ(files(), 1);
}

TEST_F(TimelineFileTest, StaysAsItWasWhereNobodyClosesIt) {
  ASSERT_TRUE(write({.path = path_, .job = "job", .events = {"1"}}).ok());
  const std::string before = content();
  {
    auto file = TimelineFile::open(path_, "job");
    ASSERT_TRUE(file.ok());
    file.value().add("2");
    EXPECT_EQ(files(), 2);
  }
  EXPECT_EQ(content(), before);
  EXPECT_EQ(files(), 1);
}

TEST_F(TimelineFileTest, AnErrorNamesTheFile) {
  const auto file = TimelineFile::open(folder_ + "/nowhere/trace.json", "job");
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().text.find("/nowhere/trace.json"), std::string::npos) << file.error().text;
  ASSERT_FALSE(TimelineFile::open(folder_, "job").ok());
  EXPECT_FALSE(check_folder(folder_ + "/nowhere/trace.json").ok());
  EXPECT_TRUE(check_folder(path_).ok());
}

}  // namespace
}  // namespace ciranda
