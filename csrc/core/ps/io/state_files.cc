#include "core/ps/io/state_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/base/clock.h"

namespace ciranda::ps {
namespace {

constexpr const char* kSnapshot = "snapshot-";
constexpr const char* kLog = "log-";
constexpr const char* kUnfinished = "unfinished-";
constexpr std::uint64_t kFirstPollNs = 1'000'000;  // short: workers wait for the first snapshot
constexpr const char* kNoNewSnapshot = "there is no new snapshot, the one before stays";
// A snapshot is due when the log has kLogFactor times the bytes that the server holds, plus
// kLogBytesMin.
constexpr std::uint64_t kLogFactor = 8;
constexpr std::uint64_t kLogBytesMin = std::uint64_t{64} << 20;

Error failed_to(const std::string& what, const std::string& path) {
  return Error::from_errno("cannot " + what + " " + path, errno);
}

struct Named {
  std::string name;
  std::string_view what;  // one of the three prefixes above
  std::uint64_t generation = 0;
};

// Returns the state's files in the folder, by generation. Files with other names are not ours.
Result<std::vector<Named>> list(const std::string& folder) {
  DIR* const opened = ::opendir(folder.c_str());
  if (opened == nullptr) return failed_to("list", folder);
  std::vector<Named> files;
  while (const dirent* entry = ::readdir(opened)) {  // NOLINT(concurrency-mt-unsafe): our own DIR
    const std::string_view name = entry->d_name;
    for (const std::string_view what : {kSnapshot, kLog, kUnfinished}) {
      if (!name.starts_with(what)) continue;
      std::uint64_t generation = 0;
      const auto [end, error] =
          std::from_chars(name.data() + what.size(), name.data() + name.size(), generation);
      if (error == std::errc() && end == name.data() + name.size()) {
        files.push_back({.name = std::string(name), .what = what, .generation = generation});
      }
    }
  }
  ::closedir(opened);
  std::ranges::sort(files, {}, &Named::generation);
  return files;
}

}  // namespace

// -------------------------------------------------------------------------------------------
// At the start

Result<std::unique_ptr<StateFiles>> StateFiles::open(StateOptions options, ServerProtocol& protocol,
                                                     std::uint64_t now_ns) {
  std::unique_ptr<StateFiles> files(new StateFiles(std::move(options), protocol));
  CIRANDA_TRY(files->claim());
  CIRANDA_TRY(files->recover(now_ns));
  protocol.keep_journal(files.get());
  files->begun_ns_ = now_ns;
  if (files->generation_ != 0) files->job_ = protocol.job_id();
  if (files->generation_ != 0 && protocol.resume()) {
    files->found_ += ", of a job that is over";
    if (!files->log_) CIRANDA_TRY(files->finish());  // only a snapshot can record the new job
  }
  return files;
}

StateFiles::~StateFiles() {
  child_.end();
  // Closing the folder would not release the lock: a forked process may hold it too.
  if (folder_.valid()) ::flock(folder_.get(), LOCK_UN);
}

Status StateFiles::claim() {
  const std::string& folder = options_.folder;
  std::error_code ignored;  // mkdir() reports it
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), ignored);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return failed_to("make", folder);
  folder_ = Fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_.valid()) return failed_to("open", folder);
  if (::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return {};
  return Error{.code = ErrorCode::kInvalidArgument,
               .text = "another server keeps its state in " + folder +
                       "; give each server a folder of its own"};
}

Status StateFiles::recover(std::uint64_t now_ns) {
  auto files = list(options_.folder);
  if (!files) return files.error();
  std::vector<std::uint64_t> logs;
  for (const Named& file : files.value()) {
    if (file.what == kUnfinished) ::unlink(path(kUnfinished, file.generation).c_str());
    if (file.what == kSnapshot) generation_ = file.generation;
    if (file.what == kLog) logs.push_back(file.generation);
  }
  if (generation_ == 0) return {};
  CIRANDA_TRY(read_snapshot(now_ns));
  std::uint64_t changes = 0;
  bool torn = false;
  for (log_generation_ = generation_; std::ranges::count(logs, log_generation_) != 0 && !torn;) {
    CIRANDA_TRY(read_log(path(kLog, log_generation_), changes, torn));
    if (torn || std::ranges::count(logs, log_generation_ + 1) == 0) break;
    ++log_generation_;
  }
  // Logs after a torn one are useless without its lost changes.
  for (const std::uint64_t later : logs) {
    if (later > log_generation_) ::unlink(path(kLog, later).c_str());
  }
  if (!keeps_log()) log_.reset();
  if (keeps_log() && !log_) CIRANDA_TRY(open_log(log_generation_));
  found_ = "version " + std::to_string(protocol_.shard()->version()) + ", of a snapshot and " +
           std::to_string(changes) + (changes == 1 ? " change since" : " changes since") +
           (torn ? "; the log is torn after them" : "");
  return {};
}

Status StateFiles::read_snapshot(std::uint64_t now_ns) {
  const std::string name = path(kSnapshot, generation_);
  const auto broken = [&](const std::string& why, ErrorCode code = ErrorCode::kMalformed) {
    return Error{.code = code, .text = "the snapshot " + name + " cannot be used: " + why};
  };
  auto reader = RecordReader::open(name);
  if (!reader) return reader.error();
  auto record = reader.value().next();
  if (!record) return record.error();
  constexpr const char* kCutOff = "it is damaged, or cut off";
  if (!record.value()) return broken(kCutOff);
  if (const Status restored = protocol_.restore(record.value()->note, now_ns); !restored) {
    const bool other = restored.error().code == ErrorCode::kMismatch;
    return broken(restored.error().text +
                      (other ? "; name another folder, or remove what is in this one" : ""),
                  restored.error().code);
  }
  for (const std::span<std::byte> array : protocol_.arrays()) {
    if (!record) return record.error();
    if (!record.value() || record.value()->data.size() != array.size()) return broken(kCutOff);
    std::ranges::copy(record.value()->data, array.begin());
    record = reader.value().next();
  }
  return {};
}

Status StateFiles::read_log(const std::string& path, std::uint64_t& changes, bool& torn) {
  auto reader = RecordReader::open(path);
  if (!reader && reader.error().code == ErrorCode::kMalformed) {
    torn = true;  // within the first bytes
    log_.reset();
    return {};
  }
  if (!reader) return reader.error();
  for (;;) {
    auto record = reader.value().next();
    if (!record) return record.error();
    if (!record.value()) break;
    const auto change = decode_change(record.value()->note);
    const Status repeated =
        change ? protocol_.repeat(change.value(), record.value()->data) : Status(change.error());
    if (!repeated) {
      return Error{.code = repeated.error().code,
                   .text = "the log " + path + " cannot be used: " + repeated.error().text};
    }
    ++changes;
  }
  torn = reader.value().at() < reader.value().size();
  auto writer = std::move(reader).value().resume();
  if (!writer) return writer.error();
  log_.emplace(std::move(writer).value());
  return {};
}

// -------------------------------------------------------------------------------------------
// Changes

void StateFiles::write(const Change& change, const Data& data) {
  CIRANDA_ASSERT(!log_ || keeps_log());  // I28
  changed_ = true;
  if (!log_ || !log_failed_) return;
  encoded_.clear();
  encode(change, encoded_);
  log_failed_ = log_->append(encoded_, data);
  log_synced_ = false;
}

Status StateFiles::settle() {
  if (lacks_snapshot()) {
    if (log_generation_ == 0) CIRANDA_TRY(begin_snapshot(monotonic_ns()));
    if (!look_after_child(/*wait=*/false) && !child_.running()) {
      return Error{.code = ErrorCode::kSystem,
                   .text = "there is no first snapshot in " + options_.folder};
    }
  }
  CIRANDA_TRY(log_failed_);
  if (options_.durability == Durability::kDisk && log_ && !std::exchange(log_synced_, true)) {
    log_failed_ = log_->sync();
  }
  return log_failed_;
}

// -------------------------------------------------------------------------------------------
// Snapshots

void StateFiles::tend(std::uint64_t now_ns) {
  if (child_.running()) {
    (void)look_after_child(/*wait=*/false);
    return;
  }
  if (!changed_ || generation_ == 0) return;
  const std::uint64_t log_bytes = log_ ? log_->bytes() : 0;
  if (now_ns < begun_ns_ + options_.snapshot_ns &&
      log_bytes < kLogBytesMin + kLogFactor * protocol_.shard()->held_bytes()) {
    return;
  }
  if (const Status begun = begin_snapshot(now_ns); !begun) {
    std::fprintf(stderr, "ciranda-ps: %s: %s\n", kNoNewSnapshot, begun.error().text.c_str());
  }
}

std::uint64_t StateFiles::next_deadline_ns() const {
  if (child_.running()) {
    return monotonic_ns() + (generation_ == 0 ? kFirstPollNs : kChildPollNs);
  }
  return changed_ && generation_ != 0 ? begun_ns_ + options_.snapshot_ns : kNever;
}

Status StateFiles::open_log(std::uint64_t generation) {
  CIRANDA_ASSERT(keeps_log());
  auto log = RecordWriter::create(path(kLog, generation));
  if (!log) return log.error();
  log_.emplace(std::move(log).value());
  log_generation_ = generation;
  return sync_folder(options_.folder);
}

// Begins a snapshot, and a new log for the changes after it.
Status StateFiles::begin_snapshot(std::uint64_t now_ns) {
  CIRANDA_ASSERT(protocol_.has_parameters() && !child_.running());
  begun_ns_ = now_ns;
  if (keeps_log()) {
    if (options_.durability == Durability::kDisk && log_) CIRANDA_TRY(log_->sync());
    CIRANDA_TRY(open_log(log_generation_ + 1));
    log_synced_ = true;
  } else {
    ++log_generation_;
  }
  Status begun = child_.begin(protocol_, names(log_generation_), kNoNewSnapshot);
  changed_ = !begun.ok();
  return begun;
}

// Returns true if the child has ended and its snapshot exists; then also removes older files.
bool StateFiles::look_after_child(bool wait) {
  if (!child_.look_after(wait)) return false;
  if (!child_.made()) {
    changed_ = true;
    return false;
  }
  CIRANDA_ASSERT(generation_ != log_generation_);  // I28: it replaces an older one, or none
  generation_ = log_generation_;
  remove_before(generation_);
  return true;
}

// Saves the state. If there is a log, syncing it is enough. A snapshot could take longer than the
// program that stops the server is ready to wait.
Status StateFiles::finish() {
  if (log_) {
    child_.end();
    CIRANDA_TRY(log_failed_);
    return log_->sync();
  }
  if (child_.running()) (void)look_after_child(/*wait=*/true);
  if (!changed_ || generation_ == 0) return {};
  CIRANDA_ASSERT(!child_.running() && !log_);
  ++log_generation_;
  log_.reset();
  auto key = RecordKey::make();
  if (!key) return key.error();
  CIRANDA_TRY(write_snapshot(protocol_, names(log_generation_), std::move(key).value()));
  remove_before(log_generation_);
  return {};
}

void StateFiles::discard() {
  child_.end();
  log_.reset();
  remove_before(UINT64_MAX);
}

void StateFiles::remove_before(std::uint64_t generation) {
  const auto files = list(options_.folder);
  if (!files) return;  // old files take room, and do no harm
  for (const Named& file : files.value()) {
    if (file.generation < generation) ::unlink((options_.folder + "/" + file.name).c_str());
  }
}

FileNames StateFiles::names(std::uint64_t generation) const {
  return {.unfinished = path(kUnfinished, generation), .finished = path(kSnapshot, generation)};
}

std::string StateFiles::path(const char* what, std::uint64_t generation) const {
  return options_.folder + "/" + what + std::to_string(generation);
}

}  // namespace ciranda::ps
