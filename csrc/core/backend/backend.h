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

// Returns the total bytes of the inputs.
inline std::uint64_t bytes_of(const Buffers& buffers) {
  std::uint64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.in_bytes;
  return bytes;
}

using Done = std::function<void(const Status&, const std::shared_ptr<DeviceEvent>& finished)>;

// A FusedOp together with this rank's memory: what a backend runs.
struct Execution {
  FusedOp op;  // its root is the index of a member
  // Its position among all executions of the World, including those of groups that this rank is no
  // member of. Numbers rise and are the same on all ranks.
  std::uint64_t number = 0;
  Buffers buffers = {};  // by member; empty for in_arena
  // in_arena: the bucket's memory of each member on this host that has not joined, ascending.
  std::vector<std::byte*> arena = {};
  std::uint64_t arena_bytes = 0;
  // Shared step: the work on bytes [begin, begin + bytes) of the buckets in `arena`, instead of
  // their reduction. Any rank that has not joined may run it, for any piece of whole chunks; each
  // chunk is run exactly once.
  std::function<void(std::uint64_t begin, std::uint64_t bytes, std::span<std::byte* const> arena)>
      work = {};
  // allgather, alltoall, reducescatter (always one member): in bytes, see StagedShape::offsets.
  std::vector<std::uint64_t> offsets = {};
  // Device memory, by member: the stream to queue on, the same for all members, and the event that
  // makes the buffers ready.
  std::vector<DeviceWork> device = {};
  // Called exactly once, from advance() or abort(); an empty status is success. For device memory
  // it is called when everything is queued, and `finished` passes when the work is done. Otherwise
  // `finished` is null.
  Done done = {};
};

// The seam between the engine and whatever runs agreed operations on raw memory. The engine starts
// the same executions in the same order on every rank and calls advance() whenever it drives. One
// thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual bool supports(const FusedOp& op) const = 0;
  virtual void start(Execution&& execution) = 0;
  // Does everything that needs no other rank. Returns true if it did anything.
  virtual bool advance() = 0;
  // Returns true if every execution is done.
  virtual bool idle() const = 0;
  // Appends to `out` the ranks of this host, by local rank, that must act before advance() can do
  // more.
  virtual void blocked_on(std::vector<Rank>& out) const = 0;
  // Completes all executions with `why`. Does not block.
  virtual void abort(const Error& why) = 0;
  // Returns why advance() can do nothing more, or null. An error means that the World must fail.
  virtual const Error* broken() const { return nullptr; }
  // Returns true if advance() has nothing to do until the backend calls wake(). Waiting threads may
  // then sleep at once.
  virtual bool will_wake() const { return false; }
  // Returns after how many nanoseconds advance() should be called even if nobody rings a bell, and
  // even if idle(): a device may still work on executions that are done here. 0: a bell will ring.
  virtual std::uint64_t look_again_ns() const { return 0; }
};

}  // namespace ciranda
