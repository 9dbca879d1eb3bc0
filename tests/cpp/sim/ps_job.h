#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ciranda::sim {

// How often things happened, so that a test can tell that they happened at all.
struct PsCoverage {
  std::uint64_t jobs = 0;
  std::uint64_t pushes = 0;  // answered by all servers
  std::uint64_t waits = 0;   // pushes that one server answered later
  std::uint64_t stale = 0;   // pushes that were dropped
  std::uint64_t late = 0;    // pushes that missed a round
  std::uint64_t pulls = 0;
  std::uint64_t moves = 0;       // of gradients to other memory
  std::uint64_t duplicates = 0;  // answered
  std::uint64_t crashes = 0;
  std::uint64_t in_part = 0;  // crashes with a push that some servers have got and some have not
  std::uint64_t restarts = 0;
  std::uint64_t silences = 0;   // leases that ended
  std::uint64_t strangers = 0;  // older lives that tried again
  std::uint64_t impatient = 0;  // pushes before the answer to the one before
  std::uint64_t server_crashes = 0;
  std::uint64_t checkpoints = 0;  // whole
  std::uint64_t late_pushes = 0;  // that came after a server's part of one was begun
  std::uint64_t returns = 0;      // workers' to a server that came back
};

// Plays one whole job of servers (ps::ServerProtocol) and workers, from the first Enter to the last
// Leave, in one thread and in time that is told; `seed` decides everything. Links keep the order of
// a connection and nothing else. After each event the servers' answers, versions and what they have
// written are compared with the oracle's; at the end all faults cease, and everybody must get done.
// Returns the first violation with all that happened before it, nullopt if there is none.
std::optional<std::string> run_ps_job(std::uint64_t seed, PsCoverage& coverage);

}  // namespace ciranda::sim
