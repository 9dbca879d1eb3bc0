#pragma once

#include <pthread.h>

#include <cstdint>

namespace ciranda {

// A lock of one process, in memory that processes share. One of its threads holds it while it
// writes to other memory that they share. The other processes revoke it when they go on without
// that process: from then on nobody can write any more. A thread that is killed while it holds the
// lock gives it back when the kernel looks at the robust futexes that it holds: then it runs no
// more of the program, although its process may take long to end.
//
// The memory is zeroed and aligned to 64 bytes. The methods are thread-safe.
class alignas(64) RevocableLock {
 public:
  // Called once, before anything else, by the process that writes.
  void make();
  // Returns true if the thread may write until it calls release(); false if the lock is revoked for
  // `epoch`. Blocks while another thread holds it.
  bool acquire(std::uint64_t epoch);
  void release();
  // Revokes the lock for epochs before this one. Blocks until nobody holds it. Returns false, and
  // does nothing, where the system has no robust futexes.
  bool revoke(std::uint64_t epoch);

 private:
  void lock();

  pthread_mutex_t mutex_;
  bool is_made_;
  std::uint64_t revoked_before_;
};

}  // namespace ciranda
