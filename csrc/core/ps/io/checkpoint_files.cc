#include "core/ps/io/checkpoint_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/wire/codec.h"

namespace ciranda::ps {
namespace {

constexpr std::string_view kFolder = "checkpoint-";
constexpr std::uint32_t kManifestVersion = 1;
// How long server 0 waits for the other servers' files, once its own are finished.
constexpr std::uint64_t kPartsNs = 60'000'000'000;
// Whole checkpoints to keep: a program may still read the previous one when the next is whole.
constexpr std::size_t kWholeOnes = 2;
constexpr std::size_t kOwnerBytesMax = 512;
// The pause after the second failure in a row, and the longest one.
constexpr std::uint64_t kPauseNs = 1'000'000'000;
constexpr std::uint64_t kPauseMaxNs = 64 * kPauseNs;

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

}  // namespace

// -------------------------------------------------------------------------------------------
// Names

std::string checkpoint_folder(const std::string& folder, Checkpoint checkpoint) {
  return folder + "/" + std::string(kFolder) + std::to_string(checkpoint);
}

std::string part_file(const char* what, int server, int servers) {
  return std::string(what) + "-" + std::to_string(server) + "-of-" + std::to_string(servers);
}

std::vector<Checkpoint> list_checkpoints(const std::string& folder) {
  std::vector<Checkpoint> numbers;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kFolder)) continue;
    Checkpoint number = 0;
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + kFolder.size(), end, number);
    if (error == std::errc() && at == end && number < kCheckpointMax) numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::string missing_file(const std::string& checkpoint_folder, int servers) {
  for (int server = 0; server < servers; ++server) {
    for (const char* what : {kPartFile, kLateFile}) {
      std::string path = checkpoint_folder + "/" + part_file(what, server, servers);
      if (!exists(path)) return path;
    }
  }
  return "";
}

bool is_whole(const std::string& checkpoint_folder) {
  const std::string path = checkpoint_folder + "/" + kManifestFile;
  if (!exists(path)) return false;
  auto reader = RecordReader::open(path);
  if (!reader) return true;
  const auto record = reader.value().next();
  if (!record || !record.value()) return true;
  const auto manifest = decode_manifest(record.value()->note);
  return !manifest || missing_file(checkpoint_folder, manifest.value().servers).empty();
}

void encode(const Manifest& manifest, std::vector<std::byte>& out) {
  Writer writer(out);
  writer.u32(kManifestVersion);
  writer.varint(manifest.checkpoint);
  writer.varint(static_cast<std::uint64_t>(manifest.servers));
}

Result<Manifest> decode_manifest(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Manifest manifest;
  if (in.u32("manifest.version") != kManifestVersion && in.ok()) {
    return Error{.code = ErrorCode::kMismatch,
                 .text = "it was written by another version of ciranda"};
  }
  manifest.checkpoint = in.varint("manifest.checkpoint", kCheckpointMax);
  manifest.servers = static_cast<int>(in.varint("manifest.servers", kServersMax));
  if (in.ok() && manifest.servers == 0) in.fail("manifest.servers", "are none");
  if (in.ok() && in.remaining() > 0) in.fail("manifest", "goes on after its end");
  if (!in.ok()) return in.error();
  return manifest;
}

// -------------------------------------------------------------------------------------------
// Parts

Result<std::unique_ptr<CheckpointFiles>> CheckpointFiles::open(std::string folder,
                                                               ServerProtocol& protocol,
                                                               const ServerProtocolOptions& options,
                                                               const Origin& origin) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed || ::access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
    return Error{
        .code = ErrorCode::kSystem,
        .text = "cannot write checkpoints to " + folder + ": " +
                (failed ? failed : std::error_code(errno, std::generic_category())).message()};
  }
  std::unique_ptr<CheckpointFiles> files(new CheckpointFiles(std::move(folder), protocol, options));
  const auto numbers = list_checkpoints(files->folder_);
  if (!numbers.empty()) files->latest_ = numbers.back();
  if (options.server == 0) CIRANDA_TRY(files->claim(origin));
  protocol.keep_checkpoints(files.get(), files->latest_);
  return files;
}

CheckpointFiles::~CheckpointFiles() {
  child_.end();
  // Closing the file would not release the lock: a forked process may hold it too.
  if (owner_.valid()) ::flock(owner_.get(), LOCK_UN);
}

// Locks the folder for this job. Only server 0 announces checkpoints, so its lock is enough, even
// if the other servers are on other hosts.
Status CheckpointFiles::claim(const Origin& origin) {
  const std::string path = folder_ + "/" + kOwnerFile;
  owner_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!owner_.valid()) return Error::from_errno("cannot open " + path, errno);
  if (::flock(owner_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    owner_.reset();
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "another job writes its checkpoints to " + folder_ +
                         "; give each job a folder of its own"};
  }  // other errors: the file system has no locks, so a second job goes unnoticed
  std::string owner(kOwnerBytesMax, '\0');
  const ssize_t count = ::pread(owner_.get(), owner.data(), owner.size(), 0);
  owner.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  first_own_ = first_own(owner, origin);
  owner = std::to_string(first_own_) + " " + job_;
  const auto size = static_cast<ssize_t>(owner.size());
  if (::pwrite(owner_.get(), owner.data(), owner.size(), 0) != size ||
      ::ftruncate(owner_.get(), size) != 0) {
    return Error::from_errno("cannot write " + path, errno);
  }
  return {};
}

// Returns the number of this job's first checkpoint. `owner`: the previous contents of the file,
// which are such a number, a space and the job.
Checkpoint CheckpointFiles::first_own(const std::string& owner, const Origin& origin) const {
  Checkpoint first = 0;
  const char* const end = owner.data() + owner.size();
  const auto [at, error] = std::from_chars(owner.data(), end, first);
  const bool known = error == std::errc() && at != end && *at == ' ';
  if (known && !origin.job.empty() && std::string_view(at + 1, end) == origin.job) return first;
  for (const Checkpoint number : list_checkpoints(folder_)) {
    std::error_code ignored;
    if (origin.restored.empty() || !std::filesystem::equivalent(checkpoint_folder(folder_, number),
                                                                origin.restored, ignored)) {
      continue;
    }
    if (!known) return number;
    if (first <= number) return first;  // otherwise a third job used the folder meanwhile
  }
  return latest_ + 1;
}

// Delays the next checkpoint after a failure. The first failure causes no delay: it may be the only
// one.
void CheckpointFiles::pause(std::uint64_t now_ns) {
  again_ns_ = now_ns + pause_ns_;
  pause_ns_ = std::clamp(2 * pause_ns_, kPauseNs, kPauseMaxNs);
}

// Delays the next checkpoint, and prints `why` unless it differs from the last failure only in the
// checkpoint's number.
void CheckpointFiles::complain(Checkpoint checkpoint, const std::string& why) {
  const std::string folder = checkpoint_folder(folder_, checkpoint);
  std::string what = why;
  if (const std::size_t at = what.find(folder); at != std::string::npos) {
    what.erase(at, folder.size());
  }
  pause(monotonic_ns());
  if (what == std::exchange(said_, what)) return;
  std::fprintf(stderr,
               "ciranda-ps: checkpoint %llu was not made, and the one before it stays: %s\n",
               static_cast<unsigned long long>(checkpoint), why.c_str());
}

FileNames CheckpointFiles::names(const char* what, Checkpoint checkpoint) const {
  const std::string folder = checkpoint_folder(folder_, checkpoint) + "/";
  const bool is_of_all = std::string_view(what) == kManifestFile;
  const std::string name = is_of_all ? what : part_file(what, server_, servers_);
  return {.unfinished = folder + "unfinished-" + name, .finished = folder + name};
}

std::optional<Checkpoint> CheckpointFiles::announce() {
  CIRANDA_ASSERT(server_ == 0);  // by ServerProtocol::keep_checkpoints()
  if (!done() || (again_ns_ != 0 && monotonic_ns() < again_ns_)) return std::nullopt;
  const std::string folder = checkpoint_folder(folder_, latest_ + 1);
  if (::mkdir(folder.c_str(), 0700) != 0) {
    complain(latest_ + 1, Error::from_errno("cannot make " + folder, errno).text);
    return std::nullopt;
  }
  return awaited_ = ++latest_;
}

void CheckpointFiles::begin(Checkpoint checkpoint) {
  CIRANDA_ASSERT(checkpoint >= latest_);
  child_.end();
  late_.reset();
  latest_ = checkpoint;
  awaited_ = server_ == 0 ? checkpoint : 0;
  deadline_ns_ = 0;
  const std::string folder = checkpoint_folder(folder_, checkpoint);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return give_up(Error::from_errno("cannot make " + folder, errno).text);
  }
  auto late = RecordWriter::create(names(kLateFile, checkpoint).unfinished);
  if (!late) return give_up(late.error().text);
  late_.emplace(std::move(late).value());
  const Status begun =
      child_.begin(protocol_, names(kPartFile, checkpoint), "there is no new checkpoint");
  if (!begun) give_up(begun.error().text);
}

void CheckpointFiles::add(const Change& change, const Journal::Data& data) {
  if (!late_) return;
  encoded_.clear();
  encode(change, encoded_);
  if (const Status added = late_->append(encoded_, data); !added) give_up(added.error().text);
}

void CheckpointFiles::close() {
  if (!late_) return;
  Status closed = late_->append({}, {});
  if (closed) closed = late_->sync();
  late_.reset();
  if (closed) closed = finish_file(names(kLateFile, latest_));
  if (!closed) give_up(closed.error().text);
}

// Does nothing if it is too late for that push: the checkpoint is whole, or a newer one has been
// announced.
void CheckpointFiles::withdraw(Checkpoint checkpoint) {
  CIRANDA_ASSERT(!late_ && checkpoint <= latest_);  // I29: it was closed
  if (checkpoint != latest_ || is_whole(checkpoint_folder(folder_, checkpoint))) return;
  give_up("a worker that was lost came back with a push that may belong to this checkpoint");
}

void CheckpointFiles::give_up(const std::string& why) {
  complain(latest_, why);
  child_.end();
  late_.reset();
  awaited_ = 0;
  for (const char* what : {kPartFile, kLateFile}) {
    const FileNames both = names(what, latest_);
    ::unlink(both.unfinished.c_str());
    ::unlink(both.finished.c_str());
  }
}

// -------------------------------------------------------------------------------------------
// Whole checkpoints

void CheckpointFiles::tend(std::uint64_t now_ns) {
  CIRANDA_ASSERT(awaited_ == 0 || (server_ == 0 && awaited_ == latest_));  // I29
  const bool ran = child_.running();
  if (!child_.look_after(/*wait=*/false)) return;
  if (ran && !child_.made()) {  // the child has printed why
    awaited_ = 0;
    pause(now_ns);
    return;
  }
  if (awaited_ == 0 || late_ || !exists(names(kLateFile, awaited_).finished)) return;
  if (deadline_ns_ == 0) deadline_ns_ = now_ns + kPartsNs;
  const std::string missing = missing_file(checkpoint_folder(folder_, awaited_), servers_);
  if (missing.empty()) {
    const Status written = write_manifest();
    if (written) succeed();
    if (!written) complain(awaited_, written.error().text);
  } else if (now_ns < deadline_ns_) {
    return;
  } else {
    complain(awaited_, missing + " is not there after " + std::to_string(kPartsNs / 1'000'000'000) +
                           " s; do all servers write to the same folder?");
  }
  awaited_ = 0;
}

std::uint64_t CheckpointFiles::next_deadline_ns() const {
  const bool waits = awaited_ != 0 && !late_ && deadline_ns_ != 0;
  return child_.running() || waits ? monotonic_ns() + kChildPollNs : kNever;
}

Status CheckpointFiles::write_manifest() const {
  CIRANDA_ASSERT(server_ == 0 && awaited_ == latest_ && !late_);  // I29: this part is closed
  const FileNames both = names(kManifestFile, awaited_);
  auto writer = RecordWriter::create(both.unfinished);
  if (!writer) return writer.error();
  std::vector<std::byte> note;
  encode(Manifest{.checkpoint = awaited_, .servers = servers_}, note);
  CIRANDA_TRY(writer.value().append(note, {}));
  CIRANDA_TRY(writer.value().sync());
  return finish_file(both);
}

void CheckpointFiles::succeed() {
  said_.clear();
  pause_ns_ = again_ns_ = 0;
  remove_older();
}

// Removes checkpoints before the latest kWholeOnes whole ones, and all that are not whole: they
// cannot become whole any more.
void CheckpointFiles::remove_older() const {
  CIRANDA_ASSERT(awaited_ != 0);  // which has just become whole
  std::size_t whole = 0;
  auto numbers = list_checkpoints(folder_);
  std::ranges::reverse(numbers);
  for (const Checkpoint number : numbers) {
    if (number < first_own_) return;
    const std::string folder = checkpoint_folder(folder_, number);
    const bool counts = number <= awaited_ && is_whole(folder);
    const bool is_kept = number > awaited_ || (counts && whole < kWholeOnes);
    whole += counts ? 1 : 0;
    if (is_kept) continue;
    ::unlink((folder + "/" + kManifestFile).c_str());  // first, so that the rest is not whole
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
}

}  // namespace ciranda::ps
