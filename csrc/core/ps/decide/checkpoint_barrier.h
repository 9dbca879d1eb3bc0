#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/ps/decide/journal.h"

namespace ciranda::ps {

using Checkpoint = std::uint64_t;  // its number; 0: none

// Where a server's part of a checkpoint goes.
class CheckpointKeeper {
 public:
  virtual ~CheckpointKeeper() = default;
  // The number of the next one, for which there is a place by then; nothing where the one before is
  // not done with, or there can be none.
  virtual std::optional<Checkpoint> announce() = 0;
  // What the server holds now is its part, and what is added until it is closed. Gives up one that
  // is not closed.
  virtual void begin(Checkpoint checkpoint) = 0;
  virtual void add(const Change& change, const Journal::Data& data) = 0;
  virtual void close() = 0;
  // The latest has been closed too early: it shall not be one.
  virtual void withdraw() = 0;
};

// Decides which changes belong to this server's part of a checkpoint. In a checkpoint all servers
// have the same pushes of each worker, and nobody waits for it. This is the snapshot of Chandy and
// Lamport ("Distributed Snapshots: Determining Global States of Distributed Systems", 1985), with
// the message Mark as its barrier. A worker that hears of a checkpoint sends a Mark to all servers
// between two pushes; its earlier pushes belong to the checkpoint. A server's part begins with what
// the server holds at the first Mark, and adds the later pushes of workers that have not sent
// theirs.
//
// Not thread-safe. Never blocks.
class CheckpointBarrier final : public Journal {
 public:
  explicit CheckpointBarrier(int workers) : members_(static_cast<std::size_t>(workers)) {}

  // `latest`: there may have been ones up to that before this server was made; it has no part of
  // one that was begun then.
  void keep(CheckpointKeeper* keeper, Checkpoint latest) {
    keeper_ = keeper;
    latest_ = latest;
  }
  // Changes go on to that one. null: to none.
  void forward_to(Journal* next) { next_ = next; }
  void enter(Worker worker) { members_[static_cast<std::size_t>(worker)] = {.here = true}; }
  void leave(Worker worker);
  // A push of the worker comes, which has not been decided. One that was not here when a checkpoint
  // was closed, and is at other servers, may have one that belongs to it.
  void expect_push(Worker worker);
  // The worker's pushes from here on are behind that checkpoint.
  void mark(Worker worker, Checkpoint checkpoint);
  // All workers have left: there is one more, of what there is.
  void end();
  // Whether changes have to be written here.
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
  Checkpoint closed_ = 0;  // the latest that was
};

}  // namespace ciranda::ps
