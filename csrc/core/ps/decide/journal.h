#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/push.h"

namespace ciranda::ps {

// One change of a server's data, or of its knowledge about its workers. Replaying all changes since
// a snapshot, in their order, restores the server to the bit.
struct Change {
  enum class Kind : std::uint8_t {
    kApplied,    // pushes, as one update; comes with their gradients
    kSkipped,    // a push that was decided but not applied
    kEntered,    // a new life of a worker
    kLeft,       // a worker left in order
    kScheduled,  // a task
    kTaskDone,
    kTasksClosed,
    kWorked,   // work with vectors
    kRows,     // a push of rows; comes with their numbers and gradients
    kResumed,  // the state's job is over; the state now belongs to another job
  };
  Kind kind = Kind::kApplied;
  std::vector<Push> pushes = {};        // kApplied: in order of workers; kSkipped: one
  double scale = 1.0;                   // kApplied: factor of the gradients' sum
  Outcome outcome = Outcome::kApplied;  // kSkipped
  Worker worker = 0;                    // kEntered, kLeft (see Enter for the coordinator), kRows
  Life life = 0;                        // kEntered
  std::uint64_t process = 0;            // kEntered
  TaskId task = 0;                      // kScheduled, kTaskDone; kTasksClosed: their number
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
// Accepts arbitrary bytes, and allocates no more than they can encode. kMalformed names the field
// and its offset.
Result<Change> decode_change(std::span<const std::byte> bytes);

// Stores the changes of a server.
class Journal {
 public:
  using Data = std::vector<std::span<const std::byte>>;

  virtual ~Journal() = default;
  // Called before the change is answered, and before it changes any parameters. `data` belongs to
  // the change and is valid during the call. For kApplied it is the server's share of each push's
  // gradients, in the order of the pushes (see Shard::repeat()).
  virtual void write(const Change& change, const Data& data) = 0;
};

}  // namespace ciranda::ps
