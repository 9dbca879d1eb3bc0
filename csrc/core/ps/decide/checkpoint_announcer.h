#pragma once

#include <cstdint>
#include <optional>

#include "core/ps/decide/checkpoint_barrier.h"

namespace ciranda::ps {

// Decides when server 0 announces the next checkpoint. The answers to pushes tell it to the
// workers.
//
// Not thread-safe. Never blocks.
class CheckpointAnnouncer {
 public:
  // A checkpoint is announced `pushes` pushes (kSync: rounds) or `ns` after the previous one,
  // whichever comes first. 0: not for that reason.
  CheckpointAnnouncer(std::uint64_t pushes, std::uint64_t ns) : pushes_(pushes), ns_(ns) {}

  // Announces checkpoints to `keeper` from here on; null: none, for another server than 0.
  // `latest`: the last checkpoint that was announced before.
  void keep(CheckpointKeeper* keeper, Checkpoint latest);
  // A push was decided. `version`: the shard's.
  void after_push(std::uint64_t version, std::uint64_t now_ns);
  // Returns the latest announced checkpoint; 0: none.
  Checkpoint latest() const { return latest_; }

 private:
  const std::uint64_t pushes_;
  const std::uint64_t ns_;
  CheckpointKeeper* keeper_ = nullptr;
  Checkpoint latest_ = 0;
  std::uint64_t version_ = 0;        // the shard's at the latest one
  std::optional<std::uint64_t> at_;  // time of the latest one, or of the first push
};

}  // namespace ciranda::ps
