// What could break: a checkpoint that is taken for whole and is not; one that takes the place of a
// whole one though it failed; files that stay for ever.
#include "core/ps/io/checkpoint_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/ps/io/checkpoint_reader.h"
#include "ps/decide/server_protocols.h"
#include "ps/io/file_size_limit.h"

namespace ciranda::ps {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMinute = 60'000'000'000;

// One server of a job, whose worker pushes; the others' parts are copies of its own.
class CheckpointFilesTest : public testing::ServerProtocols {
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

  using Origin = CheckpointFiles::Origin;
  void begin(int servers = 1, const Origin& origin = {}) {
    files_.reset();
    start(1, {}, servers);
    seq_ = 0;
    files_ = open(origin);
    caller_ = join(0);
    answer<Ready>(caller_);
  }
  std::unique_ptr<CheckpointFiles> open(const Origin& origin) {
    auto files = CheckpointFiles::open(root_ / "of job", *protocol_, options_, origin);
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
  ServerProtocol::Caller caller_ = 0;
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

// A worker that was lost comes back with a push of checkpoint 1, which is whole by then.
TEST_F(CheckpointFilesTest, WithdrawingAnOlderOneLeavesTheNewest) {
  begin();
  make();
  const auto next = files_->announce();
  ASSERT_EQ(next, std::optional<Checkpoint>(2));
  files_->withdraw(1);
  say(caller_, Mark{.checkpoint = *next});
  settle();
  EXPECT_TRUE(is_whole(folder(1)) && is_whole(folder(2)));
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
  begin(1, {.job = job_id_});
  make();
  EXPECT_EQ(there(), (std::vector<Checkpoint>{2, 3}));
  begin(1, {.restored = folder(3)});
  make();
  EXPECT_EQ(there(), (std::vector<Checkpoint>{3, 4}));
  job_id_ = "next";  // started with --resume
  begin(1, {.job = "job"});
  make();
  EXPECT_EQ(there(), (std::vector<Checkpoint>{4, 5}));
}

TEST_F(CheckpointFilesTest, LeavesThoseOfAnotherJob) {
  begin();
  make();
  make();
  fs::create_directory(folder(3));  // not whole, and maybe somebody's
  begin();
  for (int i = 0; i < 3; ++i) make();
  EXPECT_EQ(there(), (std::vector<Checkpoint>{1, 2, 3, 5, 6}));
  begin(1, {.job = job_id_});
  make();
  EXPECT_EQ(there(), (std::vector<Checkpoint>{1, 2, 3, 6, 7}));
  begin(1, {.restored = folder(1)});
  make();
  EXPECT_EQ(there(), (std::vector<Checkpoint>{1, 2, 3, 6, 7, 8}));
}

TEST_F(CheckpointFilesTest, TwoJobsDoNotShareAFolder) {
  begin();
  ServerProtocol other(options_);
  const auto second = CheckpointFiles::open(root_ / "of job", other, options_, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().text, "another job writes its checkpoints to " +
                                     (root_ / "of job").string() +
                                     "; give each job a folder of its own");
  ServerProtocolOptions of_server_1 = options_;
  of_server_1.server = 1;  // which is maybe this job's
  EXPECT_TRUE(CheckpointFiles::open(root_ / "of job", other, of_server_1, {}).ok());
}

// A thousand times in less time than the first pause takes.
TEST_F(CheckpointFilesTest, SaysOnceWhyThereIsNone) {
  begin();
  std::ofstream(folder(1)) << "in the way";
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 1'000; ++i) EXPECT_FALSE(files_->announce().has_value());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  EXPECT_NE(said.find("checkpoint 1 was not made, and the one before it stays: cannot make"),
            std::string::npos)
      << said;
  fs::remove(folder(1));
  while (!files_->announce().has_value()) ::usleep(10'000);
}

TEST_F(CheckpointFilesTest, RefusesAFolderThatCannotBeWrittenTo) {
  start(1);
  const auto files = CheckpointFiles::open("/proc/none", *protocol_, options_, {});
  ASSERT_FALSE(files.ok());
  EXPECT_NE(files.error().text.find("cannot write checkpoints to /proc/none"), std::string::npos);
}

}  // namespace
}  // namespace ciranda::ps
