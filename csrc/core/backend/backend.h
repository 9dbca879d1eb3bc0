#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/device.h"
#include "core/base/inline_vector.h"
#include "core/base/result.h"
#include "core/plan/fusion.h"

namespace ciranda {

// One member's memory on this rank. `in` and `out` may be the same. Both stay valid until the
// execution is done.
struct Buffer {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::uint64_t in_bytes = 0;
  std::uint64_t out_bytes = 0;
};

using Buffers = InlineVector<Buffer, 2>;

// Of the inputs, side by side.
inline std::uint64_t bytes_of(const Buffers& buffers) {
  std::uint64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.in_bytes;
  return bytes;
}

using Done = std::function<void(const Status&, const std::shared_ptr<DeviceEvent>& finished)>;

// A FusedOp with this rank's memory: what a backend runs.
struct Execution {
  FusedOp op;  // its root is the index of a member
  // Its place among all executions of the World, also those of groups that this rank is no member
  // of: rising, and alike on all ranks.
  std::uint64_t number = 0;
  Buffers buffers = {};  // by member; empty for in_arena
  // in_arena: the bucket's memory, of each member on this host that has not joined, ascending.
  std::vector<std::byte*> arena = {};
  std::uint64_t arena_bytes = 0;
  // Of a shared step: what is done with bytes [begin, begin + bytes) of the buckets in `arena`,
  // instead of reducing them. Any rank that has not joined runs it, for any piece of whole chunks,
  // exactly one rank for each.
  std::function<void(std::uint64_t begin, std::uint64_t bytes, std::span<std::byte* const> arena)>
      work = {};
  // allgather, alltoall, reducescatter (always one member): bytes, see StagedShape::offsets.
  std::vector<std::uint64_t> offsets = {};
  // Memory of a device: what puts the buffers' contents there, by member, and where to queue. All
  // members have the same stream.
  std::vector<DeviceWork> device = {};
  // Fires exactly once, from advance() or abort(); an empty status is success. Of memory of a
  // device it fires once everything is queued, and `finished` passes when it is done; else that is
  // null.
  Done done = {};
};

// THE seam: runs agreed operations on raw memory. The engine starts the same executions in the
// same order on every rank and calls advance() whenever it drives. One thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual bool supports(const FusedOp& op) const = 0;
  virtual void start(Execution&& execution) = 0;
  // Does all that can be done without waiting for another rank; true if that was anything.
  virtual bool advance() = 0;
  // Every execution is done.
  virtual bool idle() const = 0;
  // Ranks of this host, by local rank, without whose action advance() can do nothing more, appended
  // to `out`.
  virtual void blocked_on(std::vector<Rank>& out) const = 0;
  // Completes everything with `why`. Does not block.
  virtual void abort(const Error& why) = 0;
  // Why advance() can do nothing more, if so: the World must fail.
  virtual const Error* broken() const { return nullptr; }
  // advance() has nothing to do until the backend calls wake(): who waits may sleep at once.
  virtual bool will_wake() const { return false; }
  // After how long advance() is worth a call though nobody rings a bell, even if idle(): a device
  // may still work on what is done here. 0: somebody will.
  virtual std::uint64_t look_again_ns() const { return 0; }
};

}  // namespace ciranda
