#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/decided_pushes.h"
#include "core/ps/decide/gate.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/parameters.h"
#include "core/ps/decide/push.h"
#include "core/ps/decide/row_tables.h"
#include "core/ps/decide/vectors.h"

namespace ciranda::ps {

// One server's pieces of the parameters, tables of rows and vectors. It decides each push once,
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
  Shard(const Shard&) = delete;  // the gate refers to the model's mode
  Shard& operator=(const Shard&) = delete;

  // Returns false if memory could not be allocated; the shard is then unusable.
  bool has_memory() const { return parameters_.has_memory() && rows_.has_memory(); }

  const Model& model() const { return parameters_.model(); }
  // Call it before any worker has entered.
  void set_mode(const Mode& mode) { parameters_.set_mode(mode); }
  const Layout& layout() const { return parameters_.layout(); }
  const Parameters& parameters() const { return parameters_; }

  // Adds a worker, or a new connection or life of it: see Gate::enter(). `memory` has
  // layout().memory_bytes() and must stay valid until leave(). `decided`: see Declare.
  void enter(Worker worker, std::byte* memory, std::uint64_t decided = 0);
  // The worker's gradients are at `memory` from here on, layout().gradient_bytes() long.
  void move_gradients(Worker worker, const std::byte* memory) { at(worker).gradients = memory; }
  // Copies the first parameters from the worker's memory. Called once.
  void give(Worker worker);
  bool given() const { return given_; }
  // Writes the current parameters into the worker's memory and returns their version.
  std::uint64_t pull(Worker worker);
  // Returns the worker's clock as this server counts it.
  std::uint64_t clock(Worker worker) const { return gate_.clock(worker); }
  // Returns how many of the worker's pushes were applied, stale or late. A worker that is started
  // again continues after these. ServerProtocol saves and restores the number.
  std::uint64_t pushes(Worker worker) const { return decided_.pushes(worker); }
  void set_pushes(Worker worker, std::uint64_t pushes) { decided_.restore_pushes(worker, pushes); }
  // Returns the seq of the worker's latest decided push.
  std::uint64_t decided(Worker worker) const { return decided_.latest(worker); }

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
  void hear(Worker worker) { gate_.hear(worker); }

  // Returns an error if the work is impossible, and allocates its memory: see Vectors::reserve().
  Status check(const VectorWork& work) { return vectors_.reserve(work); }
  // Does the work and returns its dot products; the errors are check()'s. The shard must have
  // parameters. The workers' memory stays unchanged.
  Result<std::vector<double>> work(const VectorWork& work);

  // Copies rows to `into`: see RowTables::pull().
  Status pull_rows(std::size_t table, std::span<const std::uint64_t> rows, std::byte* into);
  // Applies a worker's push of rows once: see RowTables::push(). An invalid table or row is
  // kInvalidArgument.
  Status push_rows(Worker worker, const PushRows& push, std::span<const std::uint64_t> rows,
                   const std::byte* gradients);
  // Returns the seq of the worker's latest decided push of rows.
  std::uint64_t decided_rows(Worker worker) const { return rows_.decided(worker); }

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
  // Copies the parameters, state and rows that `part` holds of this shard: see
  // Parameters::take_over().
  void take_over(const Shard& part);
  // Replays a change from the journal. `data`: the data that was written with it, concatenated.
  // kMalformed: the change does not fit this shard.
  Status repeat(const Change& change, std::span<const std::byte> data);

  std::uint64_t version() const { return version_; }
  const PushCounters& counters() const { return decided_.counters(); }
  // Bytes of parameters, state and rows.
  std::uint64_t held_bytes() const { return parameters_.held_bytes() + rows_.held_bytes(); }

 private:
  struct Memory {
    std::byte* all = nullptr;  // null: the worker has not entered
    const std::byte* gradients = nullptr;
  };
  Memory& at(Worker worker) {
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < memory_.size());
    return memory_[static_cast<std::size_t>(worker)];
  }
  void repeat_answer(const Push& push, std::vector<Ack>& acks);
  void push_alone(const Push& push, std::vector<Ack>& acks);
  void push_in_round(Push push, std::vector<Ack>& acks);
  void finish_round(std::vector<Ack>& acks);
  void release(std::vector<Ack>& acks);
  // Applies `pushes`, in the order of their workers, as one update. Also writes the new parameters
  // into `targets`, the memory of workers.
  void apply(std::span<const Push> pushes, double scale, std::span<std::byte* const> targets);
  void update(Parameters::Update update);
  void skip(const Push& push, Outcome outcome);
  void write_applied(std::span<const Push> pushes, double scale);

  Parameters parameters_;
  Vectors vectors_;
  RowTables rows_;
  Gate gate_;
  DecidedPushes decided_;
  std::vector<Memory> memory_;  // by worker
  bool given_ = false;
  std::uint64_t version_ = 0;
  Journal* journal_ = nullptr;
};

}  // namespace ciranda::ps
