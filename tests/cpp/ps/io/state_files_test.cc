// What could break: a server that comes back with something else than it had answered, or does not
// come back, wherever in its files it was killed.
#include "core/ps/io/state_files.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "ps/decide/models.h"
#include "ps/decide/server_protocols.h"
#include "ps/io/file_size_limit.h"
#include "sanitizers.h"

namespace ciranda::ps {
namespace {

namespace fs = std::filesystem;

using testing::model_of;

constexpr std::uint64_t kNoSnapshots = 1ull << 60;

struct Held {
  std::vector<std::vector<std::byte>> arrays;
  std::uint64_t version = 0;
  std::vector<std::uint64_t> decided;
  bool operator==(const Held&) const = default;
};

class StateFilesTest : public testing::ServerProtocols {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "ciranda-state-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    root_ = folder;
    state_ = root_ / "state";
  }
  void TearDown() override {
    files_.reset();
    fs::remove_all(root_);
  }

  static kernels::UpdateRule momentum() {
    return {.kind = kernels::RuleKind::kSgd, .lr = 0.1, .momentum = 0.9};
  }
  StateOptions options(Durability durability, std::uint64_t snapshot_ns = kNoSnapshots) const {
    return {.folder = state_, .durability = durability, .snapshot_ns = snapshot_ns};
  }
  // All workers are here, and a server that keeps its state.
  void begin(int workers, Mode mode, const StateOptions& options) {
    start(workers, mode);
    model_ = model_of({{3, 40}, {17}}, mode, momentum());
    entries_.clear();
    seq_.assign(static_cast<std::size_t>(workers), 0);
    open(options);
    callers_.clear();
    for (Worker worker = 0; worker < workers; ++worker) {
      entries_.push_back(entry(worker));
      callers_.push_back(join(entries_.back()));
      settle();
    }
  }
  void open(const StateOptions& options) {
    auto files = StateFiles::open(options, *protocol_, monotonic_ns());
    ASSERT_TRUE(files.ok()) << files.error().text;
    files_ = std::move(files).value();
  }
  std::string refusal_of(const StateOptions& options) {
    const auto files = StateFiles::open(options, *protocol_, monotonic_ns());
    return files ? "" : files.error().text;
  }
  void settle() {
    do {
      const Status settled = files_->settle();
      ASSERT_TRUE(settled.ok()) << settled.error().text;
    } while (files_->lacks_snapshot());
  }
  // The next server, with what there is in the folder; all workers return.
  void come_back(const StateOptions& options) {
    files_.reset();
    protocol_ = std::make_unique<ServerProtocol>(options_);
    open(options);
  }
  void rejoin() {
    callers_.clear();
    for (std::size_t worker = 0; worker < entries_.size(); ++worker) {
      callers_.push_back(ServerProtocols::come_back(entries_[worker], seq_[worker]));
    }
  }
  // Push number `i` of a history: of worker i mod N, its gradients made of its number.
  void push_number(std::size_t i) {
    const std::size_t worker = i % entries_.size();
    seq_[worker] = i / entries_.size() + 1;
    push(callers_[worker], static_cast<Worker>(worker), seq_[worker],
         0.1f * static_cast<float>(i % 7 + 1));
  }
  Held held() {
    Held held{.arrays = {}, .version = protocol_->shard()->version(), .decided = {}};
    for (const auto& array : protocol_->arrays())
      held.arrays.emplace_back(array.begin(), array.end());
    for (std::size_t worker = 0; worker < entries_.size(); ++worker) {
      held.decided.push_back(protocol_->shard()->decided(static_cast<Worker>(worker)));
    }
    return held;
  }
  // The file of that kind with the largest number.
  fs::path latest(const std::string& what) const {
    std::map<std::uint64_t, fs::path> files;
    for (const auto& file : fs::directory_iterator(state_)) {
      const std::string name = file.path().filename();
      if (name.starts_with(what)) files[std::stoull(name.substr(what.size()))] = file.path();
    }
    return files.empty() ? fs::path() : files.rbegin()->second;
  }
  std::size_t count_files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(state_), fs::directory_iterator()));
  }
  // Until the snapshot that was begun is there.
  void wait_for_snapshot() {
    while (files_->next_deadline_ns() < monotonic_ns() + 1'000'000'000) {
      files_->tend(monotonic_ns());
      ::usleep(1'000);
    }
  }

  fs::path root_;
  fs::path state_;
  std::unique_ptr<StateFiles> files_;
  std::vector<Enter> entries_;
  std::vector<std::uint64_t> seq_;
  std::vector<ServerProtocol::Caller> callers_;
};

constexpr std::size_t kPushes = 24;

// 50 histories, each killed at 20 random bytes of its logs. What a log has whole is there again, to
// the bit; the workers send what is missing again, and it ends as if nothing had happened.
TEST_F(StateFilesTest, AThousandKillsAtRandomBytesOfTheLog) {
  const Mode kModes[] = {{}, {.kind = ModeKind::kSsp, .staleness = 1}, {.kind = ModeKind::kSync}};
  std::size_t whole = 0;
  for (std::uint32_t seed = 0; seed < ciranda::testing::tries(50); ++seed) {
    std::mt19937 random(seed);
    const bool on_disk = seed % 2 == 1;
    const StateOptions options = this->options(on_disk ? Durability::kDisk : Durability::kLog);
    begin(2, kModes[seed % 3], options);
    // What was held when a log had that size.
    std::map<std::string, std::map<std::uint64_t, Held>> held_at;
    const auto note = [&] {
      const fs::path log = latest("log-");
      held_at[log][fs::file_size(log)] = held();
    };
    note();
    const std::size_t snapshot_at = random() % (2 * kPushes);
    for (std::size_t i = 0; i < kPushes; ++i) {
      push_number(i);
      settle();
      note();
      if (i != snapshot_at) continue;
      files_->tend(monotonic_ns() + kNoSnapshots + 1'000'000'000);
      wait_for_snapshot();
      note();
    }
    const Held end = held();
    const std::vector<std::uint64_t> pushed = seq_;
    files_.reset();
    const fs::path original = root_ / "original";
    fs::rename(state_, original);
    for (int kill = 0; kill < 20; ++kill) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", kill " + std::to_string(kill));
      fs::copy(original, state_);
      const fs::path log = latest("log-");
      const auto& sizes = held_at.at(log);
      const std::uint64_t size =
          sizes.begin()->first + random() % (sizes.rbegin()->first - sizes.begin()->first + 1);
      fs::resize_file(log, size);
      come_back(options);
      const auto expected = std::prev(sizes.upper_bound(size));
      whole += expected->first == size ? 1u : 0u;
      ASSERT_EQ(held(), expected->second);
      seq_ = held().decided;
      rejoin();
      for (std::size_t i = 0; i < kPushes; ++i) push_number(i);  // those that are there, too
      settle();
      ASSERT_EQ(held().arrays, end.arrays);
      ASSERT_EQ(held().decided, pushed);
      files_.reset();
      fs::remove_all(state_);
    }
    fs::remove_all(original);
  }
  EXPECT_LT(whole, ciranda::testing::tries(500));
}

// The power fails: of what was not synced any block may be there or not, in any order.
TEST_F(StateFilesTest, APowerLossTakesOnlyWhatWasNotSynced) {
  constexpr std::uint64_t kBlock = 512;
  std::size_t lost = 0;
  for (std::uint32_t seed = 0; seed < ciranda::testing::tries(200); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    begin(2, {}, options(Durability::kLog));
    const std::size_t synced_pushes = random() % kPushes;
    std::uint64_t synced_bytes = 0;
    std::vector<Held> by_push = {held()};
    for (std::size_t i = 0; i < kPushes; ++i) {
      push_number(i);
      settle();
      by_push.push_back(held());
      if (i + 1 == synced_pushes) synced_bytes = fs::file_size(latest("log-"));
    }
    files_.reset();
    {
      std::fstream log(latest("log-"), std::ios::in | std::ios::out | std::ios::binary);
      const std::uint64_t size = fs::file_size(latest("log-"));
      const std::string zeros(kBlock, '\0');
      const std::uint64_t from = std::max<std::uint64_t>(synced_bytes, 48);
      for (std::uint64_t at = from / kBlock * kBlock; at < size; at += kBlock) {
        const std::uint64_t begin = std::max(at, from);
        if (random() % 4 != 0) continue;
        log.seekp(static_cast<std::streamoff>(begin));
        log.write(zeros.data(), static_cast<std::streamsize>(std::min(size, at + kBlock) - begin));
      }
    }
    come_back(options(Durability::kLog));
    const std::uint64_t version = protocol_->shard()->version();
    ASSERT_GE(version, synced_pushes);
    ASSERT_EQ(held(), by_push[version]);
    lost += kPushes - version;
    files_.reset();
    fs::remove_all(state_);
  }
  EXPECT_GT(lost, ciranda::testing::tries(1'000));
}

TEST_F(StateFilesTest, MemoryKeepsTheLatestSnapshot) {
  begin(1, {}, options(Durability::kMemory));
  push_number(0);
  settle();
  files_->tend(monotonic_ns() + 2 * kNoSnapshots);
  wait_for_snapshot();
  const Held then = held();
  push_number(1);
  settle();
  EXPECT_TRUE(latest("log-").empty());
  come_back(options(Durability::kMemory));
  EXPECT_EQ(held(), then);
  push_number(1);  // nobody is here
  EXPECT_EQ(held(), then);
  rejoin();
  EXPECT_EQ(protocol_->lost(), 1u);
}

TEST_F(StateFilesTest, AnEndInOrderLosesNothing) {
  begin(1, {}, options(Durability::kMemory));
  push_number(0);
  const Held then = held();
  ASSERT_TRUE(files_->finish().ok());
  come_back(options(Durability::kMemory));
  EXPECT_EQ(held(), then);
  EXPECT_NE(files_->found().find("version 1"), std::string::npos);
  files_->discard();
  EXPECT_EQ(count_files(), 0u);
}

TEST_F(StateFilesTest, ASnapshotReplacesWhatWasBefore) {
  begin(1, {}, options(Durability::kLog, /*snapshot_ns=*/0));
  for (std::size_t i = 0; i < 3; ++i) {
    push_number(i);
    settle();
    files_->tend(monotonic_ns());
    wait_for_snapshot();
    EXPECT_EQ(count_files(), 2u);
  }
  const Held then = held();
  come_back(options(Durability::kLog));
  EXPECT_EQ(held(), then);
}

// All of its workers come anew, in their first lives, also who had left; what they have pushed
// stays counted. When it is killed then, it knows them.
TEST_F(StateFilesTest, AnotherJobTakesItUp) {
  for (const Durability durability : {Durability::kMemory, Durability::kLog}) {
    job_id_ = "job";
    begin(2, {}, options(durability));
    for (std::size_t i = 0; i < 3; ++i) push_number(i);
    say(callers_[1], Leave{});
    settle();
    const Held then = held();
    if (durability == Durability::kMemory) {
      ASSERT_TRUE(files_->finish().ok());
    }
    files_.reset();
    options_.job_id = job_id_ = "next";
    protocol_ = std::make_unique<ServerProtocol>(options_);
    EXPECT_NE(refusal_of(options(durability)).find("'next'; give --resume to continue it"),
              std::string::npos);
    options_.resumes = true;
    come_back(options(durability));
    EXPECT_NE(files_->found().find("of a job that is over"), std::string::npos);
    EXPECT_EQ(files_->job(), "job");
    EXPECT_EQ(held(), then);
    EXPECT_FALSE(protocol_->all_have_left());
    EXPECT_EQ(protocol_->stats().workers[0].pushes, 2u);
    EXPECT_EQ(protocol_->stats().workers[1].pushes, 1u);
    const Enter first = entry(0), other = entry(1);
    const ServerProtocol::Caller caller = join(first);
    push(caller, 0, 3);
    say(join(other), Leave{});
    settle();
    if (durability == Durability::kMemory) {
      ASSERT_TRUE(files_->finish().ok());
    }
    come_back(options(durability));
    EXPECT_EQ(files_->found().find("of a job that is over"), std::string::npos);
    EXPECT_EQ(files_->job(), "next");
    EXPECT_EQ(protocol_->stats().workers[0].pushes, 3u);
    const Enter stranger = entry(0);
    const ServerProtocol::Caller again = call();
    say(again, stranger);
    EXPECT_EQ(refusal(again), "worker 0 is connected already; give each process its own number");
    say(ServerProtocols::come_back(first, 3), Leave{});
    EXPECT_TRUE(protocol_->all_have_left());
    files_.reset();
    fs::remove_all(state_);
  }
}

// Killed between the beginning of a snapshot and its end: there are two logs.
TEST_F(StateFilesTest, AnUnfinishedSnapshotIsNone) {
  begin(1, {}, options(Durability::kLog));
  push_number(0);
  settle();
  const fs::path original = root_ / "original";
  fs::copy(state_, original);
  files_->tend(monotonic_ns() + 2 * kNoSnapshots);
  push_number(1);
  settle();
  wait_for_snapshot();
  const Held then = held();
  // As it was while the child wrote.
  fs::copy(latest("log-"), original / "log-2");
  std::ofstream(original / "unfinished-2") << "half";
  files_.reset();
  fs::remove_all(state_);
  fs::rename(original, state_);
  come_back(options(Durability::kLog));
  EXPECT_EQ(held(), then);
  EXPECT_FALSE(fs::exists(state_ / "unfinished-2"));
  push_number(2);
}

TEST_F(StateFilesTest, WhatIsDamagedOrOfAnotherIsRefused) {
  begin(1, {}, options(Durability::kLog));
  push_number(0);
  settle();
  EXPECT_NE(refusal_of(options(Durability::kLog)).find("another server keeps its state in"),
            std::string::npos);
  files_.reset();
  const fs::path snapshot = latest("snapshot-");
  const auto begins = [](const std::string& text, const std::string& with) {
    EXPECT_TRUE(text.starts_with(with)) << text;
  };
  ServerProtocolOptions other = options_;
  other.servers = 2;
  protocol_ = std::make_unique<ServerProtocol>(other);
  begins(
      refusal_of(options(Durability::kLog)),
      "the snapshot " + snapshot.string() + " cannot be used: it belongs to server 0 of 1 with 1");
  protocol_ = std::make_unique<ServerProtocol>(options_);
  fs::resize_file(snapshot, fs::file_size(snapshot) - 1);
  begins(refusal_of(options(Durability::kLog)),
         "the snapshot " + snapshot.string() + " cannot be used: it is damaged, or cut off");
  std::ofstream(snapshot) << "something else";
  begins(refusal_of(options(Durability::kLog)), snapshot.string() + " is not a file of records");
  std::ofstream(root_ / "file") << "";
  protocol_ = std::make_unique<ServerProtocol>(options_);
  begins(refusal_of({.folder = root_ / "file"}), "cannot open " + (root_ / "file").string());
}

TEST_F(StateFilesTest, AFullDiskKeepsTheLastWholeSnapshotAndAnswersNothing) {
  begin(1, {}, options(Durability::kLog));
  push_number(0);
  settle();
  const Held then = held();
  {
    const testing::FileSizeLimit full(fs::file_size(latest("log-")) + 100);
    files_->tend(monotonic_ns() + 2 * kNoSnapshots);  // which a new log fits, and it does not
    wait_for_snapshot();
    EXPECT_EQ(latest("snapshot-").filename(), "snapshot-1");
    push_number(1);
    while (files_->settle()) push_number(static_cast<std::size_t>(seq_[0]));
    EXPECT_NE(files_->settle().error().text.find("cannot write"), std::string::npos);
  }
  come_back(options(Durability::kLog));
  EXPECT_GE(protocol_->shard()->version(), then.version);
  rejoin();
  push_number(static_cast<std::size_t>(protocol_->shard()->decided(0)));
  settle();
}

}  // namespace
}  // namespace ciranda::ps
