#include "core/engine/seat.h"

#include <algorithm>

#include "core/base/clock.h"
#include "core/base/relax_core.h"
#include "core/base/yield_point.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kForEverNs = 3600 * kSecondNs;
constexpr std::uint64_t kCallPauseNs = kMsInNs;  // before poll() asks peers again
// How long to sleep while a peer writes a frame. Frames behind it may be for this rank, and their
// writers have rung already.
constexpr std::uint64_t kGlimpseNs = kMsInNs / 10;

// Orders a load behind the locked instruction before it. x86 always keeps that order.
void locked_fence() {
#if !defined(__x86_64__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

// -------------------------------------------------------------------------------------------
// Taking the seat

void Seat::lock() {
  wanted_.fetch_add(1, std::memory_order_relaxed);
  mutex_.lock();
  wanted_.fetch_sub(1, std::memory_order_relaxed);
}

void Seat::enter(As as) {
  if (as == As::kDriver) rank_.flags().drivers.fetch_add(1, std::memory_order_seq_cst);
  if (as == As::kBackground) {
    mutex_.lock();
  } else {
    lock();
  }
  // A thread that drives looks at the sockets to other hosts itself.
  if (as != As::kVisitor && !rank_.one_host()) rank_.sockets.disarm();
}

// A submitter queues before it tries the seat, and the thread that has the seat frees it before it
// looks at the queue. So one of the two threads sees the other.
bool Seat::publish() {
  bool published = false;
  yield_point();
  for (locked_fence(); !rank_.queue.empty() && try_lock(); locked_fence()) {
    yield_point();
    if (cycle_.tell()) published = true;
    const bool stuck = cycle_.stuck();
    unlock();
    yield_point();
    // The log is full. This thread will not learn when the peers have read on.
    if (stuck) rank_.bells.wake_own_background();
  }
  return published;
}

void Seat::poll(const Handle& handle) {
  if (!try_lock()) return;
  const bool moved = cycle_.run();
  const bool done = handle->done();
  const std::vector<Rank> blockers = moved || done ? std::vector<Rank>() : cycle_.blocked_on();
  leave(As::kPoller);
  ask_to_drive(blockers);
}

// A thread that polls without a pause must not keep the peers from their work.
void Seat::ask_to_drive(std::span<const Rank> blockers) {
  const std::uint64_t now = monotonic_ns();
  std::uint64_t next = next_call_ns_.load(std::memory_order_relaxed);
  if (blockers.empty() || now < next) return;
  if (!next_call_ns_.compare_exchange_strong(next, now + kCallPauseNs)) return;
  for (const Rank local : blockers) rank_.bells.ask_to_drive(local);
}

// -------------------------------------------------------------------------------------------
// Sleeping

void Seat::sleep(std::span<const Handle> handles, std::uint64_t until_ns) {
  Doorbell& bell = rank_.flags().waiters;
  const std::uint32_t ticket = bell.announce();
  yield_point();
  const bool news = cycle_.run();  // news before announce() rang nobody
  const std::vector<Rank> blockers = cycle_.blocked_on();
  const std::uint64_t look_again_ns = cycle_.needs().look_again_ns;
  const bool unread = cycle_.unread();
  arm();
  unlock();
  yield_point();
  const bool published = publish();
  if (news || published || !rank_.queue.empty() || all_done(handles)) {
    bell.withdraw();
  } else {
    for (const Rank local : blockers) rank_.bells.ask_to_drive(local);
    const std::uint64_t now = monotonic_ns();
    std::uint64_t sleep_ns = std::min(until_ns > now ? until_ns - now : 1, kForEverNs);
    if (look_again_ns > 0) sleep_ns = std::min(sleep_ns, look_again_ns);
    if (unread) sleep_ns = std::min(sleep_ns, kGlimpseNs);
    yield_point();
    bell.sleep(ticket, sleep_ns);
  }
  lock();
  if (!rank_.one_host()) rank_.sockets.disarm();
}

std::uint64_t Seat::run_until_idle() {
  RankFlags& flags = rank_.flags();
  std::uint64_t idle_since_ns = monotonic_ns();
  while (!wanted()) {
    flags.background_listens.store(0, std::memory_order_relaxed);
    if (cycle_.run()) {
      idle_since_ns = monotonic_ns();
      continue;
    }
    const DriverNeeds needs = cycle_.needs();
    if (!needs.idle && !needs.all_wake &&
        monotonic_ns() - idle_since_ns < rank_.pace.load(std::memory_order_relaxed).spin_ns) {
      relax_core();
      continue;
    }
    if (!listen()) break;
  }
  if (cycle_.stuck()) {
    for (const Rank local : cycle_.blocked_on()) rank_.bells.ask_to_drive(local);
  }
  return next_turn_ns_ = cycle_.next_turn_ns();
}

// -------------------------------------------------------------------------------------------
// Leaving the seat

void Seat::leave(As as) {
  // From here on, peers that are stuck on this rank ask its background thread to drive.
  if (as == As::kDriver) {
    rank_.flags().drivers.fetch_sub(1, std::memory_order_seq_cst);
    locked_fence();
  }
  yield_point();
  const bool call_background = leaves_work(as);
  if (as != As::kVisitor) arm();
  mutex_.unlock();
  yield_point();
  publish();
  if (call_background) rank_.bells.wake_own_background();
}

// Returns true if a thread of a peer sleeps, or its background thread waits for room or for news.
bool Seat::peer_sleeps() const {
  for (Rank local = 0; local < rank_.mesh.size; ++local) {
    if (local == rank_.mesh.self) continue;
    const RankFlags& flags = rank_.control.flags(local);
    if (flags.waiters.sleepers.load() != 0 || flags.background_listens.load() != 0) return true;
  }
  return false;
}

// Returns true if this thread leaves something for the background thread to do.
bool Seat::leaves_work(As as) {
  if (as == As::kBackground) return false;
  if (as == As::kVisitor) return true;  // it may have taken the background thread's turn
  // A peer that relied on this thread announced its sleep before it looked at `drivers`. So both
  // its sleep and what it published before are visible here.
  const DriverNeeds needs = cycle_.needs();
  if (as == As::kDriver && (cycle_.readable() || !needs.idle)) {
    // A backend's thread wakes nobody else while it sees this thread drive. The first rank of a
    // host also carries what the other ranks have appended.
    if (needs.will_wake() || peer_sleeps()) return true;
    if (cycle_.readable() && rank_.first_of_several_hosts()) return true;
  }
  // The background thread fell asleep without a deadline, before there was something to look at
  // again.
  if (next_turn_ns_ == kNever && cycle_.next_turn_ns() != kNever) return true;
  return cycle_.stuck() || listen();
}

// Asks the peers to wake the background thread when there is room for frames, or, with overlap,
// when they have news that no thread of this rank waits for. Returns true if something moved before
// they knew.
bool Seat::listen() {
  const bool overlaps = rank_.pace.load(std::memory_order_relaxed).overlap && cycle_.unfinished();
  if (!overlaps && !cycle_.stuck()) return false;
  rank_.flags().background_listens.store(1, std::memory_order_seq_cst);
  yield_point();
  return cycle_.run();
}

// Lets each socket wake the background thread once. Only sockets that something waits for are
// armed: a peer may be ahead, and its bytes stay in the socket.
void Seat::arm() {
  if (rank_.one_host()) return;
  watched_.clear();
  cycle_.watched(watched_);
  rank_.sockets.arm(watched_);
}

}  // namespace ciranda
