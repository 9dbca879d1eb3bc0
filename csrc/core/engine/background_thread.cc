#include "core/engine/background_thread.h"

#include <unistd.h>

#include <cstdint>
#include <span>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/base/thread.h"
#include "core/base/yield_point.h"

namespace ciranda {

Status BackgroundThread::start() {
  CIRANDA_ASSERT(!started());
  auto thread = start_thread("ciranda", [this] { loop(); });
  if (!thread) return thread.error();
  thread_ = std::move(thread).value();
  return {};
}

void BackgroundThread::stop() {
  CIRANDA_ASSERT(started());  // by Engine, which stops it once
  stopping_.store(true, std::memory_order_release);
  rank_.bells.wake_own_background();
  thread_.join();
}

void BackgroundThread::loop() {
  const auto own = static_cast<std::uint32_t>(rank_.mesh.self);
  const int bell = rank_.peer(rank_.mesh.self).doorbell.get();
  std::uint64_t next_turn_ns = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    const std::span<const std::uint32_t> called = rank_.sockets.wait(next_turn_ns);
    yield_point();
    std::uint64_t rings = 0;
    [[maybe_unused]] const ssize_t drained = ::read(bell, &rings, sizeof rings);
    show_where();
    const Seat::Taken taken(seat_, Seat::As::kBackground);
    Cycle& cycle = seat_.cycle();
    for (const std::uint32_t local : called) {
      if (local != own && local != SocketSet::kArmed) cycle.service_peer(static_cast<int>(local));
    }
    if (const Rank dying = rank_.dying.load(); dying >= 0) cycle.peer_dies(dying);
    cycle.look_around(monotonic_ns());
    next_turn_ns = seat_.run_until_idle();
  }
}

// If several ranks ask, only the first gets an answer, until they have had time to warn again.
void BackgroundThread::show_where() {
  const std::uint32_t asked = rank_.flags().asked_where.load(std::memory_order_relaxed);
  if (asked == asked_where_) return;
  asked_where_ = asked;
  const std::uint64_t now = monotonic_ns();
  const bool too_soon =
      last_report_ns_ != 0 && now - last_report_ns_ < rank_.options.stall_warning_ns / 2;
  if (too_soon || !rank_.options.show_where) return;
  last_report_ns_ = now;
  rank_.options.show_where();
}

}  // namespace ciranda
