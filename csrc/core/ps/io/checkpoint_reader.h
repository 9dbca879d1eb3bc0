#pragma once

#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/ps/decide/shard.h"
#include "core/ps/io/checkpoint_files.h"

namespace ciranda::ps {

// Reads a checkpoint, in a job with any number of servers or in none. Errors name the file:
// kMalformed where it is damaged or cut off, kMismatch where it is of another version of ciranda,
// kInvalidArgument where there is none. Blocks for the disk. Not thread-safe.
class CheckpointReader {
 public:
  // `path`: of a checkpoint, or of a job's checkpoints: then the newest that is whole.
  static Result<CheckpointReader> open(const std::string& path);

  const std::string& folder() const { return folder_; }
  int servers() const { return servers_; }
  // What a server holds that begins with it: one of any number, with so many workers.
  Result<std::unique_ptr<Shard>> share(int server, int servers, int workers) const;

 private:
  struct Part {
    std::string job;
    std::unique_ptr<Shard> shard;  // whose layout is that of servers()
  };
  Result<Part> part(int server) const;
  std::string part_name(int server) const;
  CheckpointReader(std::string folder, int servers)
      : folder_(std::move(folder)), servers_(servers) {}

  std::string folder_;
  int servers_;
};

}  // namespace ciranda::ps
