#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/shard.h"

namespace ciranda::ps {

// One thing that changed what a server holds or knows of its workers. All of them since a snapshot,
// repeated in their order, make the server again, to the bit.
struct Change {
  enum class Kind : std::uint8_t {
    kApplied,    // pushes, in one update: their gradients go with it
    kSkipped,    // a push that was decided and not applied
    kEntered,    // a life of a worker
    kLeft,       // a worker, in order
    kScheduled,  // a task
    kTaskDone,
    kTasksClosed,
    kWorked,   // with vectors
    kRows,     // a push of rows, whose numbers and gradients go with it
    kResumed,  // the job that this was the state of is over: it is that of another one
  };
  Kind kind = Kind::kApplied;
  std::vector<Push> pushes = {};        // kApplied: by worker; kSkipped: one
  double scale = 1.0;                   // kApplied: of the gradients' sum
  Outcome outcome = Outcome::kApplied;  // kSkipped
  Worker worker = 0;                    // kEntered, kLeft: or the coordinator, see Enter
  Life life = 0;                        // kEntered
  std::uint64_t process = 0;            // kEntered
  TaskId task = 0;                      // kScheduled, kTaskDone; kTasksClosed: of how many
  std::int32_t copies = 1;              // kScheduled
  bool failed = false;                  // kTaskDone
  std::string text = {};                // kScheduled: the call; kTaskDone: see TaskOutcome;
                                        // kResumed: the job
  PushRows rows = {};                   // kRows
  VectorWork work = {};                 // kWorked
  bool operator==(const Change&) const = default;
};
inline constexpr int kChangeKindCount = 10;

// Appends the change's bytes to `out`.
void encode(const Change& change, std::vector<std::byte>& out);
// Of anything; allocates only what the bytes can hold. kMalformed names field and offset.
Result<Change> decode_change(std::span<const std::byte> bytes);

// Where a server's changes are kept.
class Journal {
 public:
  using Data = std::vector<std::span<const std::byte>>;

  virtual ~Journal() = default;
  // Before it takes effect. `data`: what belongs to it, read within the call: for each push, in
  // their order, the server's share of its gradients (Shard::repeat()).
  virtual void write(const Change& change, const Data& data) = 0;
};

}  // namespace ciranda::ps
