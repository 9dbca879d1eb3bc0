#pragma once

#include <pthread.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/result.h"

namespace ciranda {

// Starts a thread that runs `body`, named `name` (at most 15 bytes) in `top -H` and debuggers.
// kSystem if the system has no more threads to give.
template <typename Body>
Result<std::thread> start_thread(const char* name, Body body) {
  try {
    return std::thread([name, body = std::move(body)]() mutable {
      ::pthread_setname_np(::pthread_self(), name);
      body();
    });
  } catch (const std::system_error& refused) {
    return Error::from_errno("cannot start the thread " + std::string(name),
                             refused.code().value());
  }
}

}  // namespace ciranda
