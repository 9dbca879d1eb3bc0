#include "core/base/revocable_lock.h"

#include <algorithm>
#include <cerrno>

#include "core/base/assert.h"

namespace ciranda {

void RevocableLock::make() {
  CIRANDA_ASSERT(!is_made_);
  pthread_mutexattr_t shared;
  CIRANDA_ASSERT(::pthread_mutexattr_init(&shared) == 0);
  is_made_ = ::pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0 &&
             ::pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST) == 0 &&
             ::pthread_mutex_init(&mutex_, &shared) == 0;
  ::pthread_mutexattr_destroy(&shared);
}

void RevocableLock::lock() {
  const int result = ::pthread_mutex_lock(&mutex_);
  CIRANDA_ASSERT(result == 0 || result == EOWNERDEAD);
  // Nothing is torn: the lock's own word is written at once.
  if (result == EOWNERDEAD) CIRANDA_ASSERT(::pthread_mutex_consistent(&mutex_) == 0);
}

bool RevocableLock::acquire(std::uint64_t epoch) {
  if (!is_made_) return true;
  lock();
  if (epoch >= revoked_before_) return true;
  ::pthread_mutex_unlock(&mutex_);
  return false;
}

void RevocableLock::release() {
  if (is_made_) ::pthread_mutex_unlock(&mutex_);
}

bool RevocableLock::revoke(std::uint64_t epoch) {
  if (!is_made_) return false;
  lock();
  revoked_before_ = std::max(revoked_before_, epoch);
  ::pthread_mutex_unlock(&mutex_);
  return true;
}

}  // namespace ciranda
