#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine/cycle.h"
#include "core/engine/rank_context.h"

namespace ciranda {

// The seat is the right to run a rank's Cycle; one thread has it at a time. It owns the cycle, so
// there is no access to the cycle without it. The only way out is leave(), which makes sure that
// some thread does the work that this one leaves behind. docs/threads.md explains how, and
// tests/model/seat.pml proves it.
class CIRANDA_CAPABILITY("seat") Seat {
 public:
  enum class As : std::uint8_t {
    kDriver,      // blocks until its operations are done; peers rely on it to drive
    kPoller,      // runs one turn
    kVisitor,     // looks something up
    kBackground,  // the background thread
  };

  // `rank` must outlive the seat.
  explicit Seat(RankContext& rank) : rank_(rank), cycle_(rank) {}

  // Holds the seat for its own lifetime.
  class CIRANDA_SCOPED_CAPABILITY Taken {
   public:
    // Blocks while another thread has the seat.
    Taken(Seat& seat, As as) ACQUIRE(seat) : seat_(seat), as_(as) { seat_.enter(as); }
    ~Taken() RELEASE() { seat_.leave(as_); }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

   private:
    Seat& seat_;
    const As as_;
  };
  Cycle& cycle() REQUIRES(this) { return cycle_; }

  // For a driver. Runs one more turn, gives up the seat until there may be news or until `until_ns`
  // (monotonic_ns), and takes it again. Does not sleep if that turn found news or all `handles` are
  // done.
  void sleep(std::span<const Handle> handles, std::uint64_t until_ns) REQUIRES(this);
  // Gives up the seat while `fn` runs.
  template <typename Fn>
  void aside(Fn fn) REQUIRES(this) {
    unlock();
    publish();
    fn();
    lock();
  }

  // If the seat is free, runs one turn. If that brought nothing, the ranks of this host for which
  // this rank waits are asked to drive. Does not block.
  void poll(const Handle& handle) EXCLUDES(this);
  // Sends the queued submissions to the peers. If another thread has the seat, that thread sends
  // them when it leaves. Returns true if this call sent any. Does not block.
  bool publish() EXCLUDES(this);

  // Returns true while a user's thread waits for the seat; the background thread then leaves it.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed) != 0; }
  // For the background thread, before it leaves. Runs turns until nothing moves for the spin time
  // or a user's thread wants the seat. Returns when the thread must wake if nobody wakes it
  // (monotonic_ns, kNever).
  std::uint64_t run_until_idle() REQUIRES(this);

  // Gives access without the seat while there is no other thread: before the first one starts, and
  // in a child made by fork.
  Cycle& alone() noexcept CIRANDA_ANNOTATION(no_thread_safety_analysis) { return cycle_; }

 private:
  void enter(As as) ACQUIRE();
  void leave(As as) RELEASE();
  void lock() ACQUIRE();
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  bool leaves_work(As as) REQUIRES(this);
  bool listen() REQUIRES(this);
  bool peer_sleeps() const;
  void arm() REQUIRES(this);
  void ask_to_drive(std::span<const Rank> blockers);

  RankContext& rank_;
  BareMutex mutex_;
  std::atomic<int> wanted_{0};
  std::atomic<std::uint64_t> next_call_ns_{0};  // when poll() may ask peers again
  Cycle cycle_ GUARDED_BY(this);
  std::vector<Watched> watched_ GUARDED_BY(this);    // scratch
  std::uint64_t next_turn_ns_ GUARDED_BY(this) = 0;  // when the background thread wakes
};

}  // namespace ciranda
