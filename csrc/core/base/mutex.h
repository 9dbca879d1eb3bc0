#pragma once

#include <mutex>

// clang's -Wthread-safety needs annotated types, and libstdc++ does not annotate its own. This thin
// wrapper is the only place in core that names std::mutex.
#if defined(__clang__)
#define CIRANDA_ANNOTATION(x) __attribute__((x))
#else
#define CIRANDA_ANNOTATION(x)
#endif

#define CIRANDA_CAPABILITY(x) CIRANDA_ANNOTATION(capability(x))
#define CIRANDA_SCOPED_CAPABILITY CIRANDA_ANNOTATION(scoped_lockable)
#define GUARDED_BY(x) CIRANDA_ANNOTATION(guarded_by(x))
#define REQUIRES(...) CIRANDA_ANNOTATION(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) CIRANDA_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) CIRANDA_ANNOTATION(release_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) CIRANDA_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define EXCLUDES(...) CIRANDA_ANNOTATION(locks_excluded(__VA_ARGS__))
#define RETURN_CAPABILITY(x) CIRANDA_ANNOTATION(lock_returned(x))

namespace ciranda {

// For a class that is a capability itself and has its own functions to acquire and release it.
using BareMutex = std::mutex;

class CIRANDA_CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

class CIRANDA_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace ciranda
