#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ciranda::sim {

// How often things happened, so that a test can tell that they happened at all.
struct Coverage {
  std::uint64_t schedules = 0;
  std::uint64_t frames = 0;
  std::uint64_t runs = 0;
  std::uint64_t resubmits = 0;
  std::uint64_t cached_requests = 0;
  std::uint64_t rooted = 0;    // runs of gather, scatter and reduce
  std::uint64_t messages = 0;  // that arrived
  std::uint64_t crossed = 0;   // times that a job got stuck with two ranks that both sent
  std::uint64_t mismatches = 0;
  std::uint64_t without_splits = 0;  // errors because the root of a scatter gave no rows
  std::uint64_t too_many_rows = 0;
  std::uint64_t without_memory = 0;  // errors because a rank has none for its host
  std::uint64_t duplicates = 0;      // a name submitted while it was not free
  std::uint64_t left = 0;            // errors because a rank had left
  std::uint64_t fused = 0;           // fused ops of more than one member
  std::uint64_t lost = 0;            // schedules in which a rank crashed or was cut off
  std::uint64_t malformed = 0;       // schedules in which a rank sent bytes that are no frame
  std::uint64_t pauses = 0;
  std::uint64_t added = 0;           // groups
  std::uint64_t removed = 0;         // groups
  std::uint64_t kept_groups = 0;     // that were to be removed
  std::uint64_t in_groups = 0;       // runs in groups that were added
  std::uint64_t joins = 0;           // of all ranks
  std::uint64_t without_joined = 0;  // runs without a rank that has joined
  std::uint64_t refused_joined = 0;  // errors because a rank has joined
  std::uint64_t strangers = 0;       // submissions that the engine would have refused
};

// Runs one whole job, 2–8 ranks from first submission to the last shutdown or failure, over a
// simulated network; `seed` decides everything. Each Response is checked against the oracle, and
// after each event the invariants of docs/invariants.md that have to do with negotiation.
// Returns the first violation, nullopt if there is none.
std::optional<std::string> run_schedule(std::uint64_t seed, Coverage& coverage);

}  // namespace ciranda::sim
