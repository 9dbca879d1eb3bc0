// What could break: workers of one job that are taken for two jobs', or of two for one's.
#include "core/ps/decide/origin.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace ciranda::ps {
namespace {

const Origin kFirst{.job = "a", .host = 1, .process = 10, .starter = 9};

TEST(Origin, OtherNamesAreOtherJobs) {
  EXPECT_EQ(difference(kFirst, {.job = "b"}), "its job is 'b', not 'a'");
  EXPECT_EQ(difference(kFirst, {.job = "a"}), "");
  EXPECT_EQ(difference(kFirst, {}), "");
  EXPECT_EQ(difference({}, {.job = "b"}), "");
}

TEST(Origin, OneHostHasOneStarterOfAJob) {
  const auto with = [](std::uint64_t host, std::uint64_t process, std::uint64_t starter) {
    return difference(kFirst, {.job = "a", .host = host, .process = process, .starter = starter});
  };
  EXPECT_EQ(with(1, 11, 9), "");
  EXPECT_EQ(with(1, 11, 10), "");  // the first has started it
  EXPECT_EQ(with(1, 9, 8), "");    // it has started the first
  EXPECT_EQ(with(1, 11, 8), "another process started it");
  EXPECT_EQ(with(2, 11, 8), "");  // its numbers mean nothing here
  EXPECT_EQ(with(0, 11, 8), "");
  EXPECT_EQ(with(1, 11, 0), "");
}

TEST(Origin, ALongNameIsCutAndTheRestComesBack) {
  Origin sent = kFirst;
  sent.job = std::string(kJobIdBytesMax + 1, 'j');
  std::vector<std::byte> bytes;
  Writer writer(bytes);
  write(writer, sent);
  Reader reader(bytes);
  Origin received;
  read(reader, received);
  sent.job.pop_back();
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace ciranda::ps
