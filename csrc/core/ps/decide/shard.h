#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/zero_array.h"
#include "core/plan/step_runs.h"
#include "core/ps/decide/layout.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/rows.h"
#include "core/ps/decide/task_parts.h"
#include "core/ps/decide/vectors.h"

namespace ciranda::ps {

// A worker's gradients, for all servers the same.
struct Push {
  Worker worker = 0;
  std::uint64_t seq = 0;   // one more than that of its push before; the first is 1
  std::uint64_t base = 0;  // the server's version that they were made from
  // One more than the largest that this worker knows as its own: the same to all servers, so that
  // no two workers can wait for each other, each at another server.
  std::uint64_t clock = 0;
  double scale = 1.0;                           // they are to be multiplied by that
  std::vector<kernels::UpdateRule> rules = {};  // by table, or see rule_slots
  // By slot, of all tables: it has a gradient. In a round one that has none adds zeros, which lie
  // in its memory, where another worker has one.
  std::vector<bool> used = {};
  TaskPart of = {};
  // They are added to that vector, see Vectors, and not to the parameters.
  VectorId into = kParametersVector;
  // For how many slots each rule is, of all tables in their order, none of two tables; empty: a
  // rule a table.
  std::vector<std::uint32_t> rule_slots = {};
  bool operator==(const Push&) const = default;
};

enum class Outcome : std::uint8_t {
  kApplied,
  kDuplicate,  // it was decided before, or another worker has pushed that part of its task
  kStale,      // made from parameters too old: not applied
  kLate,       // its round went on without it: not applied
};
inline constexpr int kOutcomeCount = 4;

// The answer to a push. The worker's parameters are those of `version` by then.
struct Ack {
  Worker worker = 0;
  std::uint64_t seq = 0;
  Outcome outcome = Outcome::kApplied;
  std::uint64_t version = 0;     // pushes applied; with kSync rounds
  std::uint64_t clock = 0;       // what counts as its worker's, which may be more than it has told
  std::uint64_t held_ns = 0;     // that it was held back for other workers; told by the protocol
  std::uint64_t checkpoint = 0;  // the latest that was announced, by server 0; told by the protocol
  bool operator==(const Ack&) const = default;
};

struct ShardCounters {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  // Pushes by their staleness: 0, 1, 2, 3, 4 to 7, 8 to 15, …; the last is all above.
  std::array<std::uint64_t, 16> staleness{};
  std::uint64_t gradient_bytes = 0;   // read
  std::uint64_t parameter_bytes = 0;  // written to workers
};

struct Change;
struct PushRows;
class Journal;

// What one server holds: its pieces of the parameters and of the optimizer's state. It decides
// about each push once, applies it whole or not at all, in its worker's order, and answers it when
// the mode lets the worker go on. Memory of a worker that is here is mapped here, and is read and
// written in the calls that say so, and then only.
//
// Not thread-safe. Never blocks.
class Shard {
 public:
  // `model`: check() has accepted it. `workers`: that the job was started with; each counts until
  // it has left, also before it comes.
  Shard(Model model, int servers, int server, int workers);

  // Else it is of no use.
  bool has_memory() const;

  const Model& model() const { return model_; }
  // Before anybody has entered.
  void set_mode(const Mode& mode) { model_.mode = mode; }
  const Layout& layout() const { return layout_; }
  int server() const { return server_; }

  // A new life of the worker, whose memory, layout().memory_bytes() long, is this from here on.
  // What an earlier life has pushed and nobody has answered is forgotten; `decided`: of its pushes,
  // by any server. One that comes back is at the clock of the slowest that counts (is silent, where
  // none does), so that it keeps nobody, on whichever servers its earlier lives' pushes are in.
  void enter(Worker worker, std::byte* memory, std::uint64_t decided = 0);
  // Its gradients lie there from here on, layout().gradient_bytes() long.
  void move_gradients(Worker worker, const std::byte* memory) { at(worker).gradients = memory; }
  // Its parameters are the first ones of all. Once.
  void give(Worker worker);
  bool given() const { return given_; }
  // What it would get with an answer, now.
  std::uint64_t pull(Worker worker);
  // What counts as its clock.
  std::uint64_t clock(Worker worker) const { return at(worker).clock; }
  // Its pushes that were applied, stale or late, each once: a process that is started again goes on
  // behind these. They are kept by the protocol.
  std::uint64_t pushes(Worker worker) const { return at(worker).pushes; }
  void set_pushes(Worker worker, std::uint64_t pushes) { at(worker).pushes = pushes; }
  // The seq of its latest push that was decided.
  std::uint64_t decided(Worker worker) const { return at(worker).decided; }

  // Why it cannot be, as a sentence: the worker is not here, a rule without its state, a number of
  // slots or a seq that does not follow, a vector that cannot be. Has memory for what it needs.
  Status check(const Push& push);
  // What check() has accepted. Answers, also those of others' pushes that this one was missing for,
  // are appended to `acks`.
  void push(Push push, std::vector<Ack>& acks);
  // It is gone, and does not count any more. Its memory is not touched from here on, and what it
  // has pushed and nobody has answered is forgotten.
  void leave(Worker worker, std::vector<Ack>& acks);
  // It is here but says nothing: nobody waits for it until it is heard again. What it has pushed
  // stays, and is answered.
  void fall_silent(Worker worker, std::vector<Ack>& acks);
  void hear(Worker worker);

  // Of a table's state the array of that number (kernels::state_arrays) into memory of the table's
  // size, those elements that this server holds.
  void copy_state(std::size_t table, std::size_t array, std::byte* into) const;
  // The same of its parameters.
  void copy_parameters(std::size_t table, std::byte* into) const;
  // Why it cannot be, as Vectors says. Has memory for what it needs.
  Status check(const VectorWork& work) { return vectors_.reserve(work); }
  // Once it has parameters. Errors as check()'s. What workers have in their memory stays.
  Result<std::vector<double>> work(const VectorWork& work);
  // --- Tables of rows; kInvalidArgument for a table or rows that cannot be ---

  // `rows`: this server's, ascending. One behind the other into memory of as many.
  Status pull_rows(std::size_t table, std::span<const std::uint64_t> rows, std::byte* into);
  // A worker's push: counts once, by its number and by what part of a task it is. `gradients`: of
  // those rows, one behind the other.
  Status push_rows(Worker worker, const PushRows& push, std::span<const std::uint64_t> rows,
                   const std::byte* gradients);
  // The number of its latest that was decided.
  std::uint64_t decided_rows(Worker worker) const { return at(worker).decided_rows; }
  // By slot, of all tables: steps that it has made.
  std::span<const std::int64_t> steps() const { return steps_; }

  // From here on everything that changes the state is written there first. null: nowhere.
  void keep_journal(Journal* journal) { journal_ = journal; }
  // All that there is to keep, but for what arrays() hold: those of the parameters and of the
  // state, one behind the other. Memory of workers and who is here are not kept.
  void save(std::vector<std::byte>& out) const;
  using Arrays = std::vector<std::span<std::byte>>;
  Arrays arrays();
  // What save() has written, of a shard of the same model and place; this one is new, and its
  // arrays() are to be filled by the caller. kMalformed names field and offset. Every worker counts
  // as expected.
  Status restore(std::span<const std::byte> saved);
  // Its parameters and state are those of `part` where that holds them, and slots have made as many
  // steps as the most. `part`: of the same tables, and any number of servers.
  void take_over(const Shard& part);
  // What has become of a change once more; `data`: what was written with it, one behind the other.
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
    std::uint64_t clock = 0;     // of its latest push, or what counts for it
    std::optional<Push> parked;  // kSync: until its round is full
    std::optional<Ack> held;     // kSsp: until the others are near that push's clock
    std::uint64_t held_clock = 0;
  };
  using Used = std::vector<bool>;

  Member& at(Worker worker) { return members_[static_cast<std::size_t>(worker)]; }
  const Member& at(Worker worker) const { return members_[static_cast<std::size_t>(worker)]; }
  void push_alone(const Push& push, std::vector<Ack>& acks);
  void push_in_round(Push push, std::vector<Ack>& acks);
  void finish_round(std::vector<Ack>& acks);
  void release(std::vector<Ack>& acks);
  std::uint64_t slowest_clock(bool or_silent) const;
  std::uint64_t clock_of_the_others(bool or_silent) const;
  bool may_go_on(std::uint64_t clock) const;
  // `pushes` in the order of their workers, scaled; the new parameters also into `targets`.
  void apply(std::span<const Push* const> pushes, double scale, std::span<const Worker> targets);
  // The pushes of one update and where their gradients lie: as in their workers' memory, or packed
  // like the server's own arrays.
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
  const std::vector<std::size_t> first_slot_;  // by table, among all slots
  std::vector<Member> members_;
  bool given_ = false;
  std::uint64_t version_ = 0;
  std::uint64_t round_clock_ = 0;  // kSync: of the latest round
  std::vector<std::int64_t> steps_;
  TaskParts parts_;
  TaskParts row_parts_;
  ZeroArray parameters_;           // of share_bytes()
  std::vector<ZeroArray> states_;  // as many as the rule with most of them has
  Vectors vectors_;
  std::vector<RowShare> rows_;  // by table of rows
  ShardCounters counters_;
  Journal* journal_ = nullptr;
};

}  // namespace ciranda::ps
