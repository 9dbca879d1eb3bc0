#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/push.h"

namespace ciranda::ps {

// Decides which workers wait for which others. With kSsp the answer to a push is held until no
// worker that counts is too far behind. With kSync a push waits until its round is complete.
//
// Not thread-safe. Never blocks.
class Gate {
 public:
  // `mode` must outlive the gate. Each worker counts until it leaves, also before it enters.
  Gate(const Mode& mode, int workers);

  // The worker is there, maybe again. Its unanswered push is forgotten. After leave() it gets a new
  // clock: with kSync that of the latest round, else that of the slowest worker that counts or, if
  // none counts, of the slowest silent worker. So it delays nobody, whichever servers its earlier
  // pushes have reached.
  void enter(Worker worker);
  // The worker is gone and counts no more. Its unanswered push is forgotten.
  void leave(Worker worker);
  // Nobody waits for the worker until hear(). Its unanswered push stays. Returns false if it did
  // not count before.
  bool fall_silent(Worker worker);
  void hear(Worker worker);

  // Returns the worker's clock as this server counts it.
  std::uint64_t clock(Worker worker) const { return at(worker).clock; }
  // A push of this clock came from the worker.
  void advance(Worker worker, std::uint64_t clock);
  // The worker's push of this clock is decided. The worker's clock becomes at least this one and at
  // least that of the latest round.
  void settle(Worker worker, std::uint64_t clock);

  // Returns true if a push of this clock can be answered. Always true without kSsp.
  bool may_go_on(std::uint64_t clock) const;
  // Holds the answer to a push of this clock until it may_go_on().
  void hold(const Ack& ack, std::uint64_t clock);
  // Returns true if the answer to this push is held.
  bool holds(Worker worker, std::uint64_t seq) const;
  // Appends the held answers whose pushes may_go_on() now. They are held no more.
  void release(std::vector<Ack>& acks);

  // kSync: the push waits for its round. It replaces no other.
  void park(Push push);
  bool is_parked(Worker worker) const { return at(worker).parked.has_value(); }
  // Returns the pushes of the round, in the order of their workers, and begins the next one.
  // `version`: the shard's. Returns nothing if the round is incomplete, or without kSync.
  std::vector<Push> take_round(std::uint64_t version);
  // Replays a round whose slowest push had this clock.
  void end_round(std::uint64_t clock);

  // Returns the seq of the worker's push that is held or parked. 0: none is.
  std::uint64_t unanswered(Worker worker) const;

  // --- Saved state: the clocks ---

  std::uint64_t round_clock() const { return round_clock_; }
  void restore_round(std::uint64_t clock) { round_clock_ = clock; }
  void restore(Worker worker, std::uint64_t clock) { at(worker).clock = clock; }

 private:
  enum class Presence : std::uint8_t { kExpected, kHere, kSilent, kGone };
  struct Member {
    Presence presence = Presence::kExpected;
    bool counts() const { return presence == Presence::kExpected || presence == Presence::kHere; }
    std::uint64_t clock = 0;     // of its latest push, or the one that counts instead
    std::optional<Push> parked;  // kSync: waits until its round is complete
    std::optional<Ack> held;     // kSsp: waits until no worker is too far behind held_clock
    std::uint64_t held_clock = 0;
  };
  Member& at(Worker worker) {
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < members_.size());
    return members_[static_cast<std::size_t>(worker)];
  }
  const Member& at(Worker worker) const {
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < members_.size());
    return members_[static_cast<std::size_t>(worker)];
  }
  std::uint64_t slowest_clock(bool or_silent) const;
  std::uint64_t clock_of_the_others(bool or_silent) const;

  const Mode& mode_;
  std::vector<Member> members_;
  std::uint64_t round_clock_ = 0;  // kSync: of the latest round
};

}  // namespace ciranda::ps
