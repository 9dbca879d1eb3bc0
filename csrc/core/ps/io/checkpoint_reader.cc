#include "core/ps/io/checkpoint_reader.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/saved_protocol.h"

namespace ciranda::ps {
namespace {

constexpr const char* kDamaged = "it is damaged, or cut off";

Error cannot_use(const std::string& path, const std::string& why,
                 ErrorCode code = ErrorCode::kMalformed) {
  return {.code = code, .text = "the checkpoint's file " + path + " cannot be used: " + why};
}

// Returns the next record; kMalformed if it is missing.
Result<RecordReader::Record> next(RecordReader& reader, const std::string& path) {
  auto record = reader.next();
  if (!record) return record.error();
  if (!record.value()) return cannot_use(path, kDamaged);
  return std::move(*record.value());
}

Result<RecordReader> open_file(const std::string& path) {
  auto reader = RecordReader::open(path);
  if (!reader && reader.error().code == ErrorCode::kMalformed) return cannot_use(path, kDamaged);
  return reader;
}

// Reads what a server held, and the id of its job.
Status read_snapshot(const std::string& path, std::string& job, std::unique_ptr<Shard>& held) {
  auto reader = open_file(path);
  if (!reader) return reader.error();
  auto record = next(reader.value(), path);
  if (!record) return record.error();
  const auto saved = decode_saved_protocol(record.value().note);
  if (!saved) return cannot_use(path, saved.error().text, saved.error().code);
  auto shard = make_shard(saved.value());
  if (!shard) return cannot_use(path, shard.error().text, shard.error().code);
  const Shard::Arrays arrays = shard.value()->arrays();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (i > 0) record = next(reader.value(), path);
    if (!record) return record.error();
    if (record.value().data.size() != arrays[i].size()) return cannot_use(path, kDamaged);
    std::ranges::copy(record.value().data, arrays[i].begin());
  }
  job = saved.value().job_id;
  held = std::move(shard).value();
  return {};
}

Status repeat_late(const std::string& path, Shard& shard) {
  auto reader = open_file(path);
  if (!reader) return reader.error();
  for (;;) {
    const auto record = next(reader.value(), path);
    if (!record) return record.error();
    if (record.value().note.empty()) return {};
    const auto change = decode_change(record.value().note);
    const Status repeated =
        change ? shard.repeat(change.value(), record.value().data) : Status(change.error());
    if (!repeated) return cannot_use(path, repeated.error().text, repeated.error().code);
  }
}

}  // namespace

Result<CheckpointReader> CheckpointReader::open(const std::string& path) {
  std::string folder = path;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  if (::access((folder + "/" + kManifestFile).c_str(), F_OK) != 0) {
    const auto numbers = list_checkpoints(folder);
    const auto newest = std::ranges::find_if(
        numbers.rbegin(), numbers.rend(),
        [&](Checkpoint number) { return is_whole(checkpoint_folder(folder, number)); });
    if (newest == numbers.rend()) {
      return Error{.code = ErrorCode::kInvalidArgument,
                   .text = "there is no complete checkpoint in " + path};
    }
    folder = checkpoint_folder(folder, *newest);
  }
  const std::string name = folder + "/" + kManifestFile;
  auto file = open_file(name);
  if (!file) return file.error();
  const auto record = next(file.value(), name);
  if (!record) return record.error();
  const auto manifest = decode_manifest(record.value().note);
  if (!manifest) return cannot_use(name, manifest.error().text, manifest.error().code);
  return CheckpointReader(std::move(folder), manifest.value().servers);
}

std::string CheckpointReader::part_name(int server) const {
  return folder_ + "/" + part_file(kPartFile, server, servers_);
}

Result<CheckpointReader::Part> CheckpointReader::part(int server) const {
  Part part;
  CIRANDA_TRY(read_snapshot(part_name(server), part.job, part.shard));
  if (part.shard->layout().servers() != servers_ || part.shard->parameters().server() != server) {
    return cannot_use(part_name(server), "it belongs to another server");
  }
  CIRANDA_TRY(repeat_late(folder_ + "/" + part_file(kLateFile, server, servers_), *part.shard));
  return part;
}

Result<std::unique_ptr<Shard>> CheckpointReader::share(int server, int servers, int workers) const {
  CIRANDA_ASSERT(servers_ >= 1);  // by decode_manifest()
  std::unique_ptr<Shard> share;
  std::string job;
  for (int each = 0; each < servers_; ++each) {
    const auto read = part(each);
    if (!read) return read.error();
    const Shard& one = *read.value().shard;
    if (!share) job = read.value().job;
    if (!share) share = std::make_unique<Shard>(one.model(), servers, server, workers);
    const std::string other = difference(share->model(), one.model());
    if (!other.empty() || read.value().job != job) {
      return cannot_use(part_name(each), "it belongs to another job than the part of server 0: " +
                                             (other.empty() ? "that job is '" + job + "'" : other));
    }
    if (share->has_memory()) share->take_over(one);
    if (!share->has_memory()) {
      return Error{.code = ErrorCode::kSystem,
                   .text = "there is no memory for " + std::to_string(share->held_bytes()) +
                           " bytes of parameters and state"};
    }
  }
  return share;
}

}  // namespace ciranda::ps
