#pragma once

#include <atomic>
#include <thread>

#include "core/base/result.h"
#include "core/engine/rank_context.h"
#include "core/engine/seat.h"

namespace ciranda {

// Takes the seat where no user's thread does: when a peer is stuck on this rank or has died, when
// there is news of other hosts, with overlap also when there is any. Asleep else.
class BackgroundThread {
 public:
  // Both outlive it.
  BackgroundThread(RankContext& rank, Seat& seat) : rank_(rank), seat_(seat) {}

  Status start();
  bool started() const { return thread_.joinable(); }
  // Blocks until it has ended.
  void stop();
  // In a child made by fork: it exists in the parent only.
  void abandon() { thread_.detach(); }

 private:
  void loop();
  void show_where();

  RankContext& rank_;
  Seat& seat_;
  std::atomic<bool> stopping_{false};
  std::uint32_t asked_where_ = 0;  // and answered, or too soon
  std::uint64_t last_report_ns_ = 0;
  std::thread thread_;
};

}  // namespace ciranda
