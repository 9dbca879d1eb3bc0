#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/ps/decide/layout.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model.h"
#include "core/ps/io/conversation.h"
#include "core/ps/io/server_link.h"
#include "core/trace/timeline.h"
#include "core/transport/link/beat_thread.h"
#include "core/transport/local/memory_segment.h"

namespace ciranda::ps {

// A client's model: the memory from which servers read gradients and to which they write
// parameters, and the pushes and pulls that make them do so. For servers on other hosts the data
// goes through the network.
//
// Thread-safe, except that declare() changes what the functions without a lock return, and
// move_gradients() what gradients() returns. A call with an answer blocks until each server asked
// has answered.
class ParameterClient {
 public:
  // All arguments must outlive this object. `memory`: what messages refer to. `beats` sends what a
  // push leaves in the queues. `timeline`: null: none.
  ParameterClient(Conversation& conversation, BeatThread& beats, WorkerMemory& memory,
                  Timeline* timeline);

  // Tells the servers the model; call it once. `fill` writes this worker's parameters into the
  // memory. On return the memory has the servers' parameters: worker 0's, with all updates since.
  using Fill = std::function<void(const Layout& layout, std::byte* memory)>;
  Status declare(const Model& model, const Fill& fill) EXCLUDES(conversation_.mutex());
  bool declared() const { return declared_; }
  const Model& model() const { return model_; }  // empty before declare()
  // This worker's memory, as Layout describes it; valid after declare(). Servers read the gradients
  // and write the parameters only between a push and its answer, and in calls that say so. Copies
  // keep it mapped.
  const MemorySegment& segment() const { return memory_.memory.segment; }
  // The segment with the gradients: segment(), or the one from move_gradients().
  const MemorySegment& gradients() const { return memory_.gradient_segment(); }
  // Moves the place of the gradients to new memory; the old memory stays as it is.
  Status move_gradients() EXCLUDES(conversation_.mutex());
  const Layout& layout() const {
    CIRANDA_ASSERT(memory_.layout);
    return *memory_.layout;
  }
  // Versions of the parameters in the memory, by server.
  std::vector<std::uint64_t> versions() const EXCLUDES(conversation_.mutex());

  // Sends the gradients to all servers. `versions`: of the parameters that they were computed from.
  // For the other arguments see Push. Blocks for the answers to the previous push, if they are
  // still missing, but not for its own.
  Status push(std::span<const std::uint64_t> versions, double scale,
              std::vector<kernels::UpdateRule> rules, std::vector<bool> used,
              VectorId into = kParametersVector, std::vector<std::uint32_t> rule_slots = {})
      EXCLUDES(conversation_.mutex());
  // Waits for the answers to the latest push, and returns the largest Outcome in them; kApplied if
  // there was no push since the last call.
  Result<Outcome> answer() EXCLUDES(conversation_.mutex());
  // Writes the newest parameters into the memory.
  Status pull() EXCLUDES(conversation_.mutex());
  // Return a whole state array (kernels::state_arrays) of a table, and the number of steps of each
  // slot (int64).
  Result<MemorySegment> fetch_state(std::size_t table, std::size_t array)
      EXCLUDES(conversation_.mutex());
  Result<MemorySegment> fetch_steps() EXCLUDES(conversation_.mutex());
  // Counts this client's pushes and pulls.
  ClientStats stats() const EXCLUDES(conversation_.mutex());

 private:
  Status hear_ready() REQUIRES(conversation_.mutex());
  Result<MemorySegment> fetch(const Message& question, std::size_t bytes, int servers)
      REQUIRES(conversation_.mutex());
  std::uint64_t gradient_bytes() const;

  Conversation& conversation_;
  BeatThread& beats_;
  WorkerMemory& memory_;
  Timeline* const timeline_;
  Model model_;  // the declared one
  bool declared_ = false;
};

}  // namespace ciranda::ps
