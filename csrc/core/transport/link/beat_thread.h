#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/base/result.h"

namespace ciranda {

// A wait of the thread: for news of any of these sockets, or for the deadline (monotonic_ns).
struct Attention {
  std::vector<pollfd> sockets = {};
  std::uint64_t deadline_ns = kNever;
};

// A thread that sends beats, so that a process keeps its lease while its program computes. A
// worker's thread also sends the bytes that a call has left in the queues.
//
// start() and stop() are for the owner; any thread may call wake().
class BeatThread {
 public:
  // Sends due beats and queued bytes, and returns the next wait.
  using Look = std::function<Attention()>;

  BeatThread() = default;
  ~BeatThread() { stop(); }
  BeatThread(const BeatThread&) = delete;
  BeatThread& operator=(const BeatThread&) = delete;

  // Starts the thread `name` (see start_thread), which calls `look` at once, and then after each
  // wait. Call it once.
  Status start(const char* name, Look look);
  // Ends the thread's wait.
  void wake();
  // Blocks until the thread has ended. Idempotent. Does not block in a forked child, which has no
  // such thread.
  void stop();
  // Closes the descriptor in a forked child, which has no such thread. Async-signal-safe.
  void close_in_forked_child() noexcept { wake_.reset(); }

 private:
  void run(const Look& look);

  Fd wake_;  // an eventfd
  std::atomic<bool> stops_{false};
  pid_t pid_ = 0;  // of the process that has the thread
  std::thread thread_;
};

}  // namespace ciranda
