#pragma once

#include <atomic>
#include <thread>

#include "core/base/result.h"
#include "core/engine/rank_context.h"
#include "core/engine/seat.h"

namespace ciranda {

// Drives when no thread of the user does: if a peer is stuck on this rank or has died, if there is
// news from other hosts, and with overlap on any news. Otherwise it sleeps.
class BackgroundThread {
 public:
  // Both must outlive this object.
  BackgroundThread(RankContext& rank, Seat& seat) : rank_(rank), seat_(seat) {}

  Status start();
  bool started() const { return thread_.joinable(); }
  // Blocks until the thread has ended.
  void stop();
  // For a child made by fork, where the thread does not exist.
  void abandon() {
    if (thread_.joinable()) thread_.detach();  // not if the fork came after stop()
  }

 private:
  void loop();
  void show_where();

  RankContext& rank_;
  Seat& seat_;
  std::atomic<bool> stopping_{false};
  std::uint32_t asked_where_ = 0;  // the value of RankFlags::asked_where that was handled last
  std::uint64_t last_report_ns_ = 0;
  std::thread thread_;
};

}  // namespace ciranda
