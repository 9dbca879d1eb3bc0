#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "core/base/result.h"
#include "core/transport/local/control_block.h"

namespace ciranda {

// Tells within a millisecond that a process of this host has begun to end. A killed process closes
// its sockets only after the kernel has freed its memory, which takes 40 to 200 ms for one that has
// loaded torch. But the kernel first looks at the futexes that the process holds
// (set_robust_list(2)), and wakes who waits for them.
//
// A thread of its own holds this rank's LifeMark and waits for that of the next rank. So the ranks
// form a ring, in which one rank notices each death, and tells the others. A rank that has left is
// skipped. Who has no mark yet is noticed by its sockets alone.
//
// start(), stop() and abandon() are for the owner.
class LifeWatch {
 public:
  // Called once, with the local rank whose process ends, from the thread.
  using Died = std::function<void(Rank local)>;

  LifeWatch() = default;
  ~LifeWatch() { stop(); }
  LifeWatch(const LifeWatch&) = delete;
  LifeWatch& operator=(const LifeWatch&) = delete;

  // The control block must outlive the object. Call it once.
  Status start(const ControlBlock& control, Rank self, int ranks, Died died);
  // Says that this rank leaves, which is no death. Blocks until the thread has ended. Idempotent.
  void stop();
  // For a child made by fork, where the thread does not exist.
  void abandon() {
    if (thread_.joinable()) thread_.detach();
  }

 private:
  void run(const ControlBlock& control, Rank self, int ranks, const Died& died);

  std::atomic<bool> stops_{false};
  std::atomic<LifeMark*> awaited_{nullptr};
  std::thread thread_;
};

}  // namespace ciranda
