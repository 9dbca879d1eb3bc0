#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/assert.h"
#include "core/base/zero_array.h"
#include "core/plan/step_runs.h"
#include "core/ps/decide/layout.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/rows.h"
#include "core/ps/decide/task_parts.h"
#include "core/ps/decide/vectors.h"

namespace ciranda::ps {

// A push of a worker's gradients. All members but `base` are the same for every server.
struct Push {
  Worker worker = 0;
  std::uint64_t seq = 0;   // one more than the worker's previous push; the first is 1
  std::uint64_t base = 0;  // the server's version that the gradients were computed from
  // One more than the largest clock that the worker knows as its own. It is the same for every
  // server, so that no two workers can wait for each other at different servers.
  std::uint64_t clock = 0;
  double scale = 1.0;                           // factor of the gradients
  std::vector<kernels::UpdateRule> rules = {};  // one per table, unless rule_slots is set
  // One per slot, through all tables: true if it has a gradient. If it has none, but another push
  // of the same round has one, the zeros that must lie in this worker's memory are added.
  std::vector<bool> used = {};
  TaskPart of = {};
  // The vector that the gradients are added to, see Vectors. 0: they update the parameters.
  VectorId into = kParametersVector;
  // The number of slots of each rule, in the order of the tables. No rule spans two tables.
  // Empty: each rule is for a table.
  std::vector<std::uint32_t> rule_slots = {};
  bool operator==(const Push&) const = default;
};

enum class Outcome : std::uint8_t {
  kApplied,
  kDuplicate,  // decided before, or another worker has pushed this part of its task
  kStale,      // computed from parameters that are too old: not applied
  kLate,       // its round finished without it: not applied
};
inline constexpr int kOutcomeCount = 4;

// The answer to a push. The parameters in the worker's memory are then those of `version`.
struct Ack {
  Worker worker = 0;
  std::uint64_t seq = 0;
  Outcome outcome = Outcome::kApplied;
  std::uint64_t version = 0;  // number of pushes applied; kSync: of rounds
  std::uint64_t clock = 0;    // the worker's clock as the server counts it, maybe above the push's
  std::uint64_t held_ns = 0;  // time that it waited for other workers; set by ServerProtocol
  std::uint64_t checkpoint = 0;  // the latest announced one, if this is server 0; set likewise
  bool operator==(const Ack&) const = default;
};

struct ShardCounters {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  // Number of pushes by staleness: 0, 1, 2, 3, 4 to 7, 8 to 15, …; the last bin counts all above.
  std::array<std::uint64_t, 16> staleness{};
  std::uint64_t gradient_bytes = 0;   // read
  std::uint64_t parameter_bytes = 0;  // written to workers
};

struct Change;
struct PushRows;
class Journal;

// One server's pieces of the parameters and of the optimizer's state. It decides each push once,
// applies it whole or not at all, in its worker's order, and answers it when the mode lets the
// worker continue. It holds pointers to the memory of workers that have entered, and accesses that
// memory only in calls whose comments say so.
//
// Not thread-safe. Never blocks.
class Shard {
 public:
  // check() must have accepted `model`. `workers`: number of workers of the job; each counts until
  // it leaves, also before it enters.
  Shard(Model model, int servers, int server, int workers);

  // Returns false if memory could not be allocated; the shard is then unusable.
  bool has_memory() const;

  const Model& model() const { return model_; }
  // Call it before any worker has entered.
  void set_mode(const Mode& mode) { model_.mode = mode; }
  const Layout& layout() const { return layout_; }
  int server() const { return server_; }

  // Adds a worker, or a new connection or life of it. `memory` has layout().memory_bytes() and must
  // stay valid until leave(). An unanswered push of the worker is forgotten. `decided`: see
  // Declare. After leave() a worker returns at the clock of the slowest worker that counts or, with
  // kSync, of the latest round. If none counts, the slowest silent one decides. So the worker
  // delays nobody, whichever servers its earlier pushes have reached.
  void enter(Worker worker, std::byte* memory, std::uint64_t decided = 0);
  // The worker's gradients are at `memory` from here on, layout().gradient_bytes() long.
  void move_gradients(Worker worker, const std::byte* memory) { at(worker).gradients = memory; }
  // Copies the first parameters from the worker's memory. Called once.
  void give(Worker worker);
  bool given() const { return given_; }
  // Writes the current parameters into the worker's memory and returns their version.
  std::uint64_t pull(Worker worker);
  // Returns the worker's clock as this server counts it.
  std::uint64_t clock(Worker worker) const { return at(worker).clock; }
  // Returns how many of the worker's pushes were applied, stale or late. A worker that is started
  // again continues after these. ServerProtocol saves and restores the number.
  std::uint64_t pushes(Worker worker) const { return at(worker).pushes; }
  void set_pushes(Worker worker, std::uint64_t pushes) { at(worker).pushes = pushes; }
  // Returns the seq of the worker's latest decided push.
  std::uint64_t decided(Worker worker) const { return at(worker).decided; }

  // Returns an error if the push is invalid: its worker has not entered or still waits for an
  // answer, a rule has no state, the number of slots or the seq is wrong, or the vector is.
  // Allocates the memory that the push needs; kSystem: there is not enough.
  Status check(const Push& push);
  // Handles a push that check() has accepted. Reads its gradients, and writes parameters into the
  // memory of each worker that it answers. Also appends answers that waited for this push.
  void push(Push push, std::vector<Ack>& acks);
  // The worker is gone and counts no more. Its memory is not accessed again, and its unanswered
  // push is forgotten. Appends the answers that waited for it, and writes their workers'
  // parameters.
  void leave(Worker worker, std::vector<Ack>& acks);
  // The worker is connected but silent: nobody waits for it until hear(). Its push stays, and will
  // be answered. Appends the answers that waited for it, and writes their workers' parameters.
  void fall_silent(Worker worker, std::vector<Ack>& acks);
  void hear(Worker worker);

  // Copies this server's elements of a state array (an index in kernels::state_arrays) into memory
  // of the table's size.
  void copy_state(std::size_t table, std::size_t array, std::byte* into) const;
  // Does the same for the table's parameters.
  void copy_parameters(std::size_t table, std::byte* into) const;
  // Returns an error if the work is impossible, and allocates its memory: see Vectors::reserve().
  Status check(const VectorWork& work) { return vectors_.reserve(work); }
  // Does the work and returns its dot products; the errors are check()'s. The shard must have
  // parameters. The workers' memory stays unchanged.
  Result<std::vector<double>> work(const VectorWork& work);

  // --- Tables of rows. An invalid table or row is kInvalidArgument. ---

  // Copies rows to `into`, one after another. `rows`: rows of this server, ascending.
  Status pull_rows(std::size_t table, std::span<const std::uint64_t> rows, std::byte* into);
  // Applies a worker's push of rows. It counts once, by its seq and by its part of a task.
  // `gradients` has those of the rows one after another; or initial values, if the push begins.
  Status push_rows(Worker worker, const PushRows& push, std::span<const std::uint64_t> rows,
                   const std::byte* gradients);
  // Returns the seq of the worker's latest decided push of rows.
  std::uint64_t decided_rows(Worker worker) const { return at(worker).decided_rows; }
  // Returns the number of steps of each slot, through all tables.
  std::span<const std::int64_t> steps() const { return steps_; }

  // Writes every change of the state to `journal` from here on, before it changes any parameters.
  // null: to none.
  void keep_journal(Journal* journal) { journal_ = journal; }
  // Appends the state, except the contents of arrays(). Which workers have entered, and their
  // memory, is not saved.
  void save(std::vector<std::byte>& out) const;
  using Arrays = std::vector<std::span<std::byte>>;
  // Returns the memory of parameters, state, vectors and rows, in this order.
  Arrays arrays();
  // Restores what save() has written, for a shard of the same model and server, into a new one. The
  // caller then fills arrays(). Every worker counts. kMalformed names the field and its offset.
  Status restore(std::span<const std::byte> saved);
  // Copies the parameters and state that `part` holds of this shard. A slot's number of steps is
  // the larger of both. `part` has the same tables, and may be of any number of servers.
  void take_over(const Shard& part);
  // Replays a change from the journal. `data`: the data that was written with it, concatenated.
  // kMalformed: the change does not fit this shard.
  Status repeat(const Change& change, std::span<const std::byte> data);

  std::uint64_t version() const { return version_; }
  const ShardCounters& counters() const { return counters_; }
  // Bytes of parameters and state.
  std::uint64_t held_bytes() const;

 private:
  enum class Presence : std::uint8_t { kExpected, kHere, kSilent, kGone };
  struct Member {
    Presence presence = Presence::kExpected;
    bool counts() const { return presence == Presence::kExpected || presence == Presence::kHere; }
    std::byte* memory = nullptr;
    const std::byte* gradients = nullptr;
    std::uint64_t decided = 0;
    std::uint64_t decided_rows = 0;
    std::uint64_t pushes = 0;
    std::uint64_t clock = 0;     // of its latest push, or the one that counts instead
    std::optional<Push> parked;  // kSync: waits until its round is complete
    std::optional<Ack> held;     // kSsp: waits until no worker is too far behind held_clock
    std::uint64_t held_clock = 0;
  };
  using Used = std::vector<bool>;

  Member& at(Worker worker) {
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < members_.size());
    return members_[static_cast<std::size_t>(worker)];
  }
  const Member& at(Worker worker) const {
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < members_.size());
    return members_[static_cast<std::size_t>(worker)];
  }
  void push_alone(const Push& push, std::vector<Ack>& acks);
  void push_in_round(Push push, std::vector<Ack>& acks);
  void finish_round(std::vector<Ack>& acks);
  void release(std::vector<Ack>& acks);
  std::uint64_t slowest_clock(bool or_silent) const;
  std::uint64_t clock_of_the_others(bool or_silent) const;
  bool may_go_on(std::uint64_t clock) const;
  // Applies `pushes`, in the order of their workers, as one update. Also writes the new parameters
  // into the memory of `targets`.
  void apply(std::span<const Push* const> pushes, double scale, std::span<const Worker> targets);
  // The pushes of one update and their gradients, which are laid out as in a worker's memory or, if
  // `packed`, like this server's own arrays.
  struct Update {
    std::span<const Push* const> pushes;
    std::vector<const std::byte*> gradients;
    bool packed = false;
    double scale = 1.0;
    std::span<const Worker> targets = {};
  };
  struct RuleRun : StepRun {
    const kernels::UpdateRule* rule = nullptr;
  };
  void make(const Update& update);
  std::vector<RuleRun> runs_of(std::size_t table, const Update& update, const Used& used) const;
  void make_piece(const Layout::Piece& piece, const Update& update, std::span<const RuleRun> runs);
  Status check_form(const Push& push) const;
  Status begin_states(const Push& push);
  Status check_rows(std::size_t table, std::span<const std::uint64_t> rows) const;
  Status check_push(const PushRows& push, std::span<const std::uint64_t> rows) const;
  Status repeat_rows(const Change& change, std::span<const std::byte> data);
  void apply_rows(Worker worker, const PushRows& push, std::span<const std::uint64_t> rows,
                  const std::byte* gradients);
  static std::vector<Vectors::Run> runs_of(const Model& model, const Layout& layout, int server);
  void skip(const Push& push, Outcome outcome);
  void write_applied(std::span<const Push* const> pushes, double scale) const;
  void copy_parameters(Worker worker);
  void copy_table(std::size_t table, const std::byte* from, std::byte* into) const;
  void copy_range(const Layout::Piece& piece, std::int64_t begin, std::int64_t end,
                  std::span<const Worker> targets);
  void count(Worker worker, Outcome outcome);
  void count_staleness(std::uint64_t staleness);
  std::size_t element_bytes(std::size_t table) const {
    return dtype_bytes(model_.tables[table].dtype);
  }

  Model model_;
  const Layout layout_;
  const int server_;
  const std::vector<std::size_t> first_slot_;  // by table, see first_slots()
  std::vector<Member> members_;
  bool given_ = false;
  std::uint64_t version_ = 0;
  std::uint64_t round_clock_ = 0;  // kSync: of the latest round
  std::vector<std::int64_t> steps_;
  TaskParts parts_;
  TaskParts row_parts_;
  ZeroArray parameters_;           // of share_bytes()
  std::vector<ZeroArray> states_;  // as many as the rule with the most state needs
  Vectors vectors_;
  std::vector<RowShare> rows_;  // by table of rows
  ShardCounters counters_;
  Journal* journal_ = nullptr;
};

}  // namespace ciranda::ps
