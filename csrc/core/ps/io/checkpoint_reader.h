#pragma once

#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/ps/decide/shard.h"
#include "core/ps/io/checkpoint_files.h"

namespace ciranda::ps {

// Reads a checkpoint, for a server of any job or for a program without servers. Errors name the
// file: kMalformed if it is damaged or cut off, kMismatch if another version of ciranda wrote it,
// kInvalidArgument if there is no checkpoint. Blocks for the disk. Not thread-safe.
class CheckpointReader {
 public:
  // Opens the checkpoint at `path`, or the newest whole checkpoint in the folder `path`.
  static Result<CheckpointReader> open(const std::string& path);

  const std::string& folder() const { return folder_; }
  int servers() const { return servers_; }
  // Returns what server `server` of `servers` holds if it begins with this checkpoint. `servers`
  // and `workers` may differ from those of the job that wrote it.
  Result<std::unique_ptr<Shard>> share(int server, int servers, int workers) const;

 private:
  struct Part {
    std::string job;
    std::unique_ptr<Shard> shard;  // laid out for servers() servers
  };
  Result<Part> part(int server) const;
  std::string part_name(int server) const;
  CheckpointReader(std::string folder, int servers)
      : folder_(std::move(folder)), servers_(servers) {}

  std::string folder_;
  int servers_;
};

}  // namespace ciranda::ps
