// What could break: a key that others can read is accepted, or a rank waits for one for ever.
#include "core/transport/dial/job_key.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "core/base/clock.h"
#include "required.h"

namespace ciranda {
namespace {

std::uint64_t within_ms(std::uint64_t ms) {
  return monotonic_ns() + ms * 1'000'000;
}

class KeyFile : public ::testing::Test {
 protected:
  KeyFile() {
    char name[] = "/tmp/ciranda-test-XXXXXX";
    folder_ = ::mkdtemp(name);
    path_ = folder_ + "/key";
  }
  ~KeyFile() override {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }
  void write(const std::string& content, mode_t mode) {
    const Fd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_EQ(::write(file.get(), content.data(), content.size()),
              static_cast<ssize_t>(content.size()));
    ASSERT_EQ(::fchmod(file.get(), mode), 0);
  }
  std::string refusal() {
    const auto key = read_key_file(path_);
    return key.ok() ? "accepted" : key.error().text;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(KeyFile, OfThisUserAloneIsRead) {
  for (const mode_t mode : {0600u, 0400u}) {
    write(std::string(32, 'k'), mode);
    const auto key = read_key_file(path_);
    ASSERT_TRUE(key.ok()) << key.error().text;
    EXPECT_EQ(key.value().bytes()[31], std::byte{'k'});
  }
}

TEST_F(KeyFile, ThatOthersCanReadOrWriteIsRefused) {
  for (const mode_t mode : {0640u, 0604u, 0620u, 0602u}) {
    write(std::string(32, 'k'), mode);
    EXPECT_NE(refusal().find("can be read or written by other users"), std::string::npos)
        << refusal();
  }
}

TEST_F(KeyFile, OfAnotherUserIsRefused) {
  if (::geteuid() != 0) CIRANDA_SKIP("only root can give a file away");
  write(std::string(32, 'k'), 0600);
  ASSERT_EQ(::chown(path_.c_str(), 12345, 0), 0);
  EXPECT_NE(refusal().find("belongs to user 12345"), std::string::npos) << refusal();
}

TEST_F(KeyFile, OfAnotherLengthIsRefusedAndNeverQuoted) {
  for (const std::size_t length : {0u, 31u, 33u, 4096u}) {
    write(std::string(length, 'k'), 0600);
    EXPECT_NE(refusal().find("is exactly 32 bytes, but " + path_ + " holds"), std::string::npos);
    EXPECT_EQ(refusal().find("kkk"), std::string::npos);
  }
}

TEST_F(KeyFile, MustBeAFile) {
  EXPECT_NE(refusal().find("cannot open the key file " + path_), std::string::npos) << refusal();
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(refusal().find("is not a regular file"), std::string::npos) << refusal();
}

TEST(KeyDescriptor, MayBeAPipe) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const std::string content(32, 'p');
  ASSERT_EQ(::write(ends[1], content.data(), 32), 32);
  ::close(ends[1]);
  const auto key = read_key(Fd(ends[0]), within_ms(5'000));
  ASSERT_TRUE(key.ok()) << key.error().text;
  EXPECT_EQ(key.value().bytes()[0], std::byte{'p'});
  EXPECT_EQ(::fcntl(ends[0], F_GETFD), -1) << "it is closed";
}

TEST(KeyDescriptor, MayBeAMemfdThatSeveralRanksInherited) {
  Fd memory(::memfd_create("key", MFD_CLOEXEC));
  const std::string content(32, 'm');
  ASSERT_EQ(::write(memory.get(), content.data(), 32), 32);
  for (int rank = 0; rank < 3; ++rank) {  // they share one file offset
    const auto key = read_key(Fd(::dup(memory.get())), within_ms(5'000));
    ASSERT_TRUE(key.ok()) << key.error().text;
    EXPECT_EQ(key.value().bytes()[31], std::byte{'m'});
  }
}

TEST(KeyDescriptor, ThatNobodyWritesIsGivenUpInTime) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd writer(ends[1]);
  ASSERT_EQ(::write(writer.get(), "half", 4), 4);
  const std::uint64_t began = monotonic_ns();
  const auto key = read_key(Fd(ends[0]), within_ms(50));
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.error().code, ErrorCode::kTimeout) << key.error().text;
  EXPECT_LT(monotonic_ns() - began, 2'000'000'000u);
}

TEST(KeyDescriptor, ThatEndsEarlyOrIsNotOpenIsAnError) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(::write(ends[1], "half", 4), 4);
  ::close(ends[1]);
  EXPECT_NE(read_key(Fd(ends[0]), within_ms(5'000)).error().text.find("holds 4"),
            std::string::npos);
  EXPECT_EQ(read_key(Fd(), within_ms(100)).ok(), false);
}

TEST(FillRandom, GivesOtherBytesEachTime) {
  std::array<std::byte, 32> first{};
  std::array<std::byte, 32> second{};
  fill_random(first);
  fill_random(second);
  EXPECT_NE(first, second);
}

}  // namespace
}  // namespace ciranda
