// What could break: a checkpoint that is taken for whole and is not; one that takes the place of a
// whole one though it failed; files that stay for ever.
#include "core/service/checkpoint_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/service/checkpoint_reader.h"
#include "ps/desks.h"
#include "service/file_size_limit.h"

namespace ciranda::ps {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMinute = 60'000'000'000;

// One server of a job, whose worker pushes; the others' parts are copies of its own.
class CheckpointFilesTest : public testing::Desks {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "ciranda-checkpoints-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    root_ = folder;
  }
  void TearDown() override {
    files_.reset();
    fs::remove_all(root_);
  }

  void begin(int servers = 1) {
    start(1, {}, servers);
    files_ = open();
    caller_ = join(0);
    answer<Ready>(caller_);
  }
  std::unique_ptr<CheckpointFiles> open() {
    auto files = CheckpointFiles::open(root_ / "of job", *desk_, options_);
    EXPECT_TRUE(files.ok()) << files.error().text;
    return std::move(files).value();
  }
  // Until nothing is on its way.
  void settle() {
    while (!files_->done()) files_->tend(monotonic_ns());
  }
  void make() {
    push(caller_, 0, ++seq_);
    const auto next = files_->announce();
    ASSERT_TRUE(next.has_value());
    say(caller_, Mark{.checkpoint = *next});
    settle();
  }
  fs::path folder(Checkpoint checkpoint) const {
    return checkpoint_folder(root_ / "of job", checkpoint);
  }
  std::vector<Checkpoint> there() const { return list_checkpoints(root_ / "of job"); }

  fs::path root_;
  std::unique_ptr<CheckpointFiles> files_;
  Desk::Caller caller_ = 0;
  std::uint64_t seq_ = 0;
};

TEST_F(CheckpointFilesTest, KeepsTheLatestAndTheOneBefore) {
  begin();
  for (int i = 0; i < 4; ++i) make();
  EXPECT_EQ(there(), (std::vector<Checkpoint>{3, 4}));
  EXPECT_TRUE(is_whole(folder(3)) && is_whole(folder(4)));
}

TEST_F(CheckpointFilesTest, IsWholeOnlyWithThePartsOfAllServers) {
  begin(2);
  push(caller_, 0, ++seq_);
  say(caller_, Mark{.checkpoint = *files_->announce()});
  for (int i = 0; i < 3; ++i) {
    while (files_->next_deadline_ns() == kNever) FAIL();
    files_->tend(monotonic_ns());
  }
  EXPECT_FALSE(is_whole(folder(1)));
  EXPECT_FALSE(files_->announce().has_value());  // before that is done with
  while (!fs::exists(folder(1) / "part-0-of-2")) files_->tend(monotonic_ns());
  fs::copy(folder(1) / "part-0-of-2", folder(1) / "part-1-of-2");
  files_->tend(monotonic_ns());
  EXPECT_FALSE(is_whole(folder(1)));
  fs::copy(folder(1) / "late-0-of-2", folder(1) / "late-1-of-2");
  settle();
  EXPECT_TRUE(is_whole(folder(1)));
}

TEST_F(CheckpointFilesTest, DoesNotWaitForEverForThePartOfAnother) {
  begin(2);
  push(caller_, 0, ++seq_);
  say(caller_, Mark{.checkpoint = *files_->announce()});
  ::testing::internal::CaptureStderr();
  for (std::uint64_t now_ns = monotonic_ns(); !files_->done(); now_ns += kMinute / 1'000) {
    files_->tend(now_ns);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("part-1-of-2 is not there after 60 s; do all servers write to the same"),
            std::string::npos)
      << said;
  EXPECT_TRUE(files_->done());
  EXPECT_FALSE(is_whole(folder(1)));
  EXPECT_EQ(files_->announce(), std::optional<Checkpoint>(2));
}

TEST_F(CheckpointFilesTest, AFullDiskKeepsTheLastWholeOne) {
  begin();
  make();
  const auto part = fs::file_size(folder(1) / "part-0-of-1");
  ::testing::internal::CaptureStderr();
  {
    const testing::FileSizeLimit full(part - 10);
    make();
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("checkpoint"), std::string::npos);
  EXPECT_NE(said.find("File too large"), std::string::npos) << said;
  EXPECT_FALSE(is_whole(folder(2)));
  const auto newest = CheckpointReader::open(root_ / "of job");
  ASSERT_TRUE(newest.ok()) << newest.error().text;
  EXPECT_EQ(newest.value().folder(), folder(1));
  make();
  make();
  EXPECT_EQ(there(), (std::vector<Checkpoint>{3, 4}));  // there is room again
}

TEST_F(CheckpointFilesTest, CountsOnFromThoseThatAreThere) {
  begin();
  make();
  make();
  files_.reset();
  begin();
  seq_ = 0;
  make();
  EXPECT_EQ(there(), (std::vector<Checkpoint>{2, 3}));
}

TEST_F(CheckpointFilesTest, RefusesAFolderThatCannotBeWrittenTo) {
  start(1);
  const auto files = CheckpointFiles::open("/proc/none", *desk_, options_);
  ASSERT_FALSE(files.ok());
  EXPECT_NE(files.error().text.find("cannot write checkpoints to /proc/none"), std::string::npos);
}

}  // namespace
}  // namespace ciranda::ps
