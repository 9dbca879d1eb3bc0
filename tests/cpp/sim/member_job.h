#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ciranda::sim {

// How often things happened, so that a test can tell that they happened at all.
struct MemberCoverage {
  std::uint64_t jobs = 0;
  std::uint64_t finished = 0;      // jobs that trained to their end
  std::uint64_t steps = 0;         // applied by a rank
  std::uint64_t urgent = 0;        // epochs after a loss
  std::uint64_t planned = 0;       // epochs that grow
  std::uint64_t interrupted = 0;   // meetings and recoveries that a newer epoch ended
  std::uint64_t behind = 0;        // ranks that got a newer state from a survivor
  std::uint64_t half_applied = 0;  // steps that a rank gave up and another one applied
  std::uint64_t ended_late = 0;
  std::uint64_t bad_messages = 0;
  std::uint64_t waits = 0;             // for new members
  std::uint64_t without = 0;           // jobs whose program has no loop
  std::uint64_t called_back = 0;       // ranks at their end that had to go on
  std::uint64_t silent = 0;            // processes that were killed for it
  std::uint64_t outlasted_pauses = 0;  // by processes that have a lease
  std::uint64_t told_deaths = 0;       // members of whose death another one has told
  std::uint64_t before_reaping = 0;    // epochs, counted for each such member not reaped yet
  std::uint64_t stalls = 0;            // of the launcher, so long that leases began anew
  std::uint64_t lost_in_tail = 0;      // members, after their last loop
  std::uint64_t replaced_at_end = 0;  // jobs in which another process did what such a one had to do
  std::uint64_t left_early = 0;       // jobs that ended because a rank's program had ended early
  std::uint64_t left_for_others = 0;  // members that were needed in an epoch that was over
  std::uint64_t lost_before_state = 0;  // members
  std::uint64_t state_of_the_lost =
      0;                     // jobs whose first state was formed with a member that is lost
  std::uint64_t failed = 0;  // jobs by how they ended, like the next seven
  std::uint64_t failed_at_start = 0;
  std::uint64_t too_few = 0;
  std::uint64_t no_state = 0;
  std::uint64_t reset_limit = 0;
  std::uint64_t stuck = 0;
  std::uint64_t stuck_by_errors = 0;
  std::uint64_t unfinished = 0;
  std::uint64_t of_hosts = 0;  // jobs on several hosts
  std::uint64_t lost_hosts = 0;
  std::uint64_t returned_hosts = 0;
  std::uint64_t joined_hosts = 0;
  std::uint64_t started_elsewhere = 0;   // processes, on another host than the one before in a slot
  std::uint64_t left_hosts = 0;          // whose machines were to be gone soon
  std::uint64_t released = 0;            // their members that were told to leave
  std::uint64_t lost_while_leaving = 0;  // hosts
  std::uint64_t short_cuts = 0;          // of an agent from the launcher, for less than a lease
  std::uint64_t cuts_between = 0;        // of two hosts, each of which reaches the launcher
  std::uint64_t outlasted_cuts = 0;      // meetings that were held after one
  std::uint64_t given_up = 0;            // hosts that another one cannot reach
  std::uint64_t old_suspicions = 0;      // of an epoch that was over
  std::uint64_t met_elsewhere = 0;       // epochs whose rank 0 is not on the first host
};

// Plays one whole elastic job of an arbiter (member::Arbiter) and simulated ranks, in one thread
// and in time that is told; `seed` decides everything. Ranks are killed, fail, pause and send
// nonsense at any event, and the launcher stands still; messages and exits arrive late. Hosts end,
// leave, join, and their agents are cut from the launcher, for less than a lease and for longer, or
// two hosts from each other.
// After each event the arbiter's decisions are compared with what it has been told, and the ranks'
// states with each other; when the faults have ceased, the job must end. Returns the first
// violation with all that happened before it, nullopt if there is none.
std::optional<std::string> run_member_job(std::uint64_t seed, MemberCoverage& coverage);

}  // namespace ciranda::sim
