// What could break: a file that no viewer reads, an error that nobody hears of.
#include "core/runtime/timeline.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace ciranda {
namespace {

TEST(Timeline, WritesEventsWithQuotedNames) {
  const std::string path = ::testing::TempDir() + "timeline.json";
  Timeline timeline(path, 3);
  timeline.record("NEGOTIATE", "odd \"name\"\n", 1'000, 3'500);
  ASSERT_TRUE(timeline.write().ok());
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_NE(text.str().find(R"("tensor": "odd \"name\"\u000a")"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find(R"("dur": 2.500)"), std::string::npos);
  EXPECT_NE(text.str().find("rank 3"), std::string::npos);
  std::remove(path.c_str());
}

TEST(Timeline, ABadPathIsAnErrorThatNamesIt) {
  Timeline timeline("/nonexistent/folder/timeline.json", 0);
  const Status written = timeline.write();
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().text.find("/nonexistent/folder"), std::string::npos);
}

}  // namespace
}  // namespace ciranda
