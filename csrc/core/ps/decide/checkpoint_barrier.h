#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/ps/decide/journal.h"

namespace ciranda::ps {

using Checkpoint = std::uint64_t;  // the number of a checkpoint; 0: none

// Stores a server's parts of checkpoints.
class CheckpointKeeper {
 public:
  virtual ~CheckpointKeeper() = default;
  // Makes a place for the next checkpoint and returns its number. Returns nothing if the previous
  // checkpoint is unfinished, or no checkpoint can be made now.
  virtual std::optional<Checkpoint> announce() = 0;
  // Begins the server's part: what the server holds now, and the changes added until close(). Gives
  // up a previous part that is not closed.
  virtual void begin(Checkpoint checkpoint) = 0;
  virtual void add(const Change& change, const Journal::Data& data) = 0;
  virtual void close() = 0;
  // The latest part was closed too early: its checkpoint must not become valid.
  virtual void withdraw(Checkpoint checkpoint) = 0;
};

// Decides which changes belong to this server's part of a checkpoint. The parts of all servers have
// the same pushes of each worker, and no worker waits for a checkpoint. This is the snapshot of
// Chandy and Lamport ("Distributed Snapshots: Determining Global States of Distributed Systems",
// 1985), with the message Mark as its barrier. When a worker learns of a checkpoint, it sends a
// Mark to all servers between two pushes; its earlier pushes belong to the checkpoint. A server's
// part begins with what the server holds at the first Mark, and adds the later pushes of workers
// that have not sent theirs.
//
// Not thread-safe. Never blocks.
class CheckpointBarrier final : public Journal {
 public:
  explicit CheckpointBarrier(int workers) : members_(static_cast<std::size_t>(workers)) {}

  // Stores checkpoints in `keeper` from here on. `latest`: the last checkpoint that may have been
  // begun before this server was made; it has no part in checkpoints up to that one.
  void keep(CheckpointKeeper* keeper, Checkpoint latest) {
    keeper_ = keeper;
    latest_ = latest;
  }
  // Forwards every change to `next` from here on. null: to none.
  void forward_to(Journal* next) { next_ = next; }
  void enter(Worker worker) { members_[static_cast<std::size_t>(worker)] = {.here = true}; }
  void leave(Worker worker);
  // Call it before an undecided push of the worker. If the latest part was closed while the worker
  // was connected only to other servers, the push may belong to it. The part is then withdrawn.
  void expect_push(Worker worker);
  // The worker's later pushes do not belong to the checkpoint. Begins it, if it is new.
  void mark(Worker worker, Checkpoint checkpoint);
  // All workers have left: makes one more checkpoint, of the final state.
  void end();
  // Returns true if write() has to be called for each change.
  bool wants_changes() const { return open_ || next_ != nullptr; }
  void write(const Change& change, const Data& data) override;

 private:
  void begin(Checkpoint checkpoint);
  struct Member {
    bool here = false;
    Checkpoint marked = 0;
  };
  bool is_behind(Worker worker) const;
  void close_if_complete();

  std::vector<Member> members_;
  CheckpointKeeper* keeper_ = nullptr;
  Journal* next_ = nullptr;
  Checkpoint latest_ = 0;
  bool open_ = false;
  Checkpoint closed_ = 0;  // the latest closed one; 0: none, or withdrawn
};

}  // namespace ciranda::ps
