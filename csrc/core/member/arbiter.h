#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/assert.h"
#include "core/base/result.h"
#include "core/member/futility.h"
#include "core/member/hosts.h"
#include "core/member/leases.h"
#include "core/member/messages.h"
#include "core/member/news.h"
#include "core/member/suspicions.h"
#include "core/wire/types.h"

namespace ciranda::member {

struct ArbiterOptions {
  int np = 1;            // members of the first epoch
  int min_np = 1;        // the job trains with as few members
  int max_np = 1;        // and with no more
  int spares = 0;        // processes that are started beyond np
  int reset_limit = -1;  // how many processes are started in place of lost ones; -1: no limit
  // How long the job waits for enough members, after its start and after a loss, and for a missing
  // rank when all others are at the program's end.
  std::uint64_t elastic_timeout_ns = 0;
  // How long the first ready process waits at least for min_np ready ones.
  std::uint64_t start_timeout_ns = 0;
  // How long a process may be silent after its first Beat before it is killed; 0: for ever.
  std::uint64_t lease_ns = 0;
  std::vector<HostOptions> hosts = {};  // none: all processes are on one host
  std::vector<HostNumber> homes = {};   // of the first slots: where to start them at first
  // Further hosts may come. As many processes are started as there is room for, up to max_np and
  // the spares.
  bool hosts_may_join = false;
  std::uint64_t suspicion_ns = Suspicions::kGraceNs;  // see there
};

// How a process ended.
enum class ExitKind : std::uint8_t { kClean, kError, kSignal };

enum class EndReason : std::uint8_t {
  kFinished,       // all members came to the end of the program
  kFailed,         // a process failed after it had been told to leave
  kFailedAtStart,  // a process failed before the job held state, or too many starts in a row did
  kTooFewRanks,    // fewer than min_np could be brought together in time
  kNoState,        // nobody who held the state of the training is left
  kResetLimit,     // fewer than min_np are left, and no more may be started
  kStuck,          // ranks were lost again and again at one step
  kUnfinished,     // a rank was lost at the program's end, and no process can do the rest of it
  kLeftEarly,      // a rank has ended its program, and another one needs it for a step
};

// --- What the arbiter wants to be done ---

// Start a process under this number, in this slot, which is free, on this host.
struct Start {
  Incarnation incarnation = 0;
  int slot = 0;
  HostNumber host = 0;
  bool operator==(const Start&) const = default;
};
// Kill the process. It counts as gone once exited() says so.
struct Kill {
  Incarnation incarnation = 0;
  bool operator==(const Kill&) const = default;
};
// Send it this message.
struct Send {
  Incarnation incarnation = 0;
  std::vector<std::byte> bytes;
  bool operator==(const Send&) const = default;
};

// Give the host up, as one that is silent, and say host_lost(): a host `by` cannot reach it.
struct GiveUp {
  HostNumber host = 0;
  HostNumber by = 0;
  bool operator==(const GiveUp&) const = default;
};

// The job is over, which is said once and last. After kFinished no process is left. After any other
// reason the caller ends those that are left.
struct End {
  EndReason reason = EndReason::kFinished;
  Incarnation incarnation = 0;  // the process at fault; 0: none
  std::uint64_t step = 0;       // kLeftEarly: in which it is needed
  bool operator==(const End&) const = default;
};

using Action = std::variant<Start, Kill, Send, News, GiveUp, End>;
using Actions = std::vector<Action>;  // in the order in which to do them

// Decides who is a member of an elastic job, and when. Processes are started, become ready and
// become members; an epoch is one membership. The rules are in docs/protocol.md.
//
// Not thread-safe. Never blocks. The caller passes in the time, which never goes back.
class Arbiter {
 public:
  // 1 <= min_np <= np <= max_np <= kLocalRanksMax, and so np + spares; so max_np + spares, if hosts
  // may join.
  explicit Arbiter(const ArbiterOptions& options);

  Actions start(std::uint64_t now_ns);
  // The process has ended and is reaped. Before this call the caller passes in all that it can read
  // from all processes, from this one too, so that nobody's Formed is missed.
  Actions exited(Incarnation incarnation, ExitKind how, std::uint64_t now_ns);
  // The process has sent these bytes.
  Actions said(Incarnation incarnation, std::span<const std::byte> bytes, std::uint64_t now_ns);
  // For a job on several hosts, several times in a lease: the host runs. Before this call the
  // caller passes in all that the host's processes had said by then.
  Actions host_beats(HostNumber host, std::uint64_t now_ns);
  // The host will be gone soon. Nothing is started there from now on, and its members are told to
  // leave as soon as the others can go on without them. Lost or not, it returns by host_returned().
  Actions host_leaves(HostNumber host, std::uint64_t now_ns);
  // The host is gone with all its processes, or cannot be reached for so long that they end
  // themselves. Nothing that they say or do counts from now on.
  Actions host_lost(HostNumber host, std::uint64_t now_ns);
  // A further host can be used, with this number of processes. It has the next number.
  Actions host_joins(int slots, std::string meet_at, std::uint64_t now_ns);
  // A host that was lost, or has left, can be used again. Nothing runs there, and its ranks will
  // listen at `meet_at`.
  Actions host_returned(HostNumber host, std::string meet_at, std::uint64_t now_ns);
  // deadline() has passed.
  Actions tick(std::uint64_t now_ns);
  // Returns when to call tick() at the latest; nothing if no time is waited for.
  std::optional<std::uint64_t> deadline() const;

 private:
  enum class Stage : std::uint8_t {
    kStarting,
    kReady,
    kMember,
    kDone,      // it came to its end, and never was a member
    kReleased,  // it was a member, and was told to leave with its host
  };
  struct Process {
    int slot = 0;
    HostNumber host = 0;
    Stage stage = Stage::kStarting;
    int place = -1;             // a member's
    EpochNumber joined = 0;     // the first epoch that it is a member of
    EpochNumber formed = 0;     // the newest epoch that it has formed
    EpochNumber end_since = 0;  // of its AtEnd; 0: it has said none
    bool at_end = false;        // it has said AtEnd in the newest epoch
    bool killed = false;        // it was told to die, and is not reaped yet
    bool died = false;          // a member has said so: it does nothing any more
    EpochNumber died_in = 0;    // the newest epoch at that time
    bool holds_state() const { return formed != 0; }
    bool is_member() const { return stage == Stage::kMember && !killed; }
    bool may_be_member() const {
      return stage != Stage::kDone && stage != Stage::kReleased && !killed;
    }
    // The oldest epoch that it can have in mind in its next messages.
    EpochNumber oldest_epoch() const {
      return end_since != 0 ? end_since : std::max(joined, formed);
    }
  };
  using Processes = std::map<Incarnation, Process>;

  void hear(Process& process, const FromRank& message, std::uint64_t now_ns);
  void hear_formed(Process& process, const Formed& message, std::uint64_t now_ns);
  void hear_at_end(Process& process, const AtEnd& message);
  void hear_died(Incarnation incarnation, std::uint64_t now_ns);
  void hear_left_early(const LeftEarly& message);
  void hear_unreachable(const Process& process, const Unreachable& message, std::uint64_t now_ns);
  void hear_doomed(Process& process, const Result<FromRank>& message, std::uint64_t now_ns);
  std::vector<Incarnation> processes_on(HostNumber host) const;
  void lose_with_host(Incarnation incarnation, std::uint64_t now_ns);
  std::vector<Incarnation> who_can_be_released() const;
  void release(Incarnation incarnation);
  bool may_host_come() const;
  void suppose_formed(const Process& gone);
  void end_late(Incarnation incarnation, const Process& process, ExitKind how);
  void vacate(Incarnation incarnation, const Process& process, std::uint64_t now_ns);
  void replace(Incarnation incarnation, const Process& process, ExitKind how);

  // Does whatever is due now.
  void decide(std::uint64_t now_ns);
  void evict_silent(std::uint64_t now_ns);
  void give_up_out_of_reach(std::uint64_t now_ns);
  void end_if_one_left_early();
  bool all_members_are_at_end() const;
  void leave_together(std::uint64_t now_ns);
  bool program_has_no_loop() const;
  void finish();
  void form_again(std::uint64_t now_ns);
  void wait_for_members(int size, std::uint64_t now_ns);
  void change_as_planned();
  void send_epoch(bool planned);
  NewEpoch next_epoch() const;
  void remember_epoch();
  void let_all_leave();

  bool waits() const { return waiting_since_.has_value(); }
  std::optional<std::uint64_t> deadline_of_waiting() const;
  std::optional<std::uint64_t> deadline_of_finishing() const;
  int wanted_members() const;
  std::vector<Incarnation> ready_by_slot() const;
  std::vector<Incarnation> members_by_place() const;
  int count(bool (Process::*is)() const) const;
  bool is_reaping() const;
  bool is_dying() const;
  bool somebody_holds_state() const;
  int room() const;
  int missing() const;
  int untaken_places(const std::set<int>& but) const;
  int take_place();
  Rank rank_in_epoch(Incarnation incarnation) const;

  void begin_waiting(std::uint64_t now_ns);
  int slots() const;
  void start_idle_slots();
  void start_one(int slot, HostNumber host);
  void evict(Incarnation incarnation, Process& process, std::uint64_t now_ns);
  void kill(Incarnation incarnation, Process& process);
  void end(EndReason reason, Incarnation incarnation = 0, std::uint64_t step = 0);
  void tell_formed(std::uint64_t step, std::uint64_t now_ns);
  Actions take();

  const ArbiterOptions options_;
  std::uint64_t now_ns_ = 0;  // of the latest call
  bool has_state_ = false;  // all members of an epoch have formed it, so a step may have been made
  bool is_over_ = false;    // all members were told to leave
  bool has_ended_ = false;

  // --- Processes, and starts in place of lost ones ---

  Hosts hosts_{options_.hosts};
  std::map<int, HostNumber> idle_slots_;  // to be started when there is room, best on this host
  std::set<int> begun_slots_;             // that have had a process
  Processes processes_;                   // those that are not reaped
  Leases leases_;
  Incarnation last_incarnation_ = 0;
  int done_ = 0;                 // processes that came to their end and never were members
  int starts_left_;              // -1: any number
  bool no_more_starts_ = false;  // a process was not replaced

  // --- Losses of members ---

  struct Vacancy {
    int place = 0;
    Incarnation incarnation = 0;  // it had the place until it was lost
  };
  std::vector<Vacancy> vacated_;  // newcomers take the last one
  int places_given_ = 0;          // places from here on were never taken
  // Nobody took them after released members, which came to the program's end all the same.
  std::set<int> finished_places_;
  Suspicions suspicions_{options_.suspicion_ns};  // in the newest epoch
  Futility futility_;
  LossNews loss_news_;

  // --- Epochs ---

  EpochNumber epoch_ = 0;             // the newest one
  std::vector<Incarnation> members_;  // in the order of ranks; some may be gone
  bool planned_ = false;
  bool is_formed_ = false;               // by all its members
  std::optional<LeftEarly> left_early_;  // as a member of the newest epoch has said
  struct Epoch {
    std::vector<int> places;  // of its members
    std::size_t formed = 0;   // by so many of them, gone ones too
  };
  std::map<EpochNumber, Epoch> epochs_;  // those that a member can still have in mind

  // --- Waiting for members ---

  std::optional<std::uint64_t> waiting_since_;  // since the start or a loss, until an epoch is sent
  std::optional<std::uint64_t> first_ready_;
  std::optional<std::uint64_t> unfinished_since_;  // all members wait at the end for a missing rank
  Actions actions_;
};

}  // namespace ciranda::member
