#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/transport/fd.h"
#include "core/transport/socket_io.h"

namespace ciranda {

// What one thread sleeps on, in an epoll: descriptors that stay, each under a number of its own,
// and sockets that others arm for it, for one event each.
//
// wait() by the thread that sleeps; everything else by one thread at a time, also while it sleeps.
class SocketSet {
 public:
  static constexpr std::uint32_t kArmed = UINT32_MAX;  // what wait() calls all armed sockets

  static Result<SocketSet> create();

  Status add(int descriptor, std::uint32_t number);
  void remove(int descriptor);

  // Arms these and no others; each wakes the sleeper once, who then disarms them before the next
  // arm(): what is armed already stays as it is.
  void arm(const std::vector<Watched>& sockets);
  void disarm();

  // Sleeps at most `timeout_ms` (-1: for ever); gives the numbers of what became readable, in the
  // memory of `out`.
  std::span<const std::uint32_t> wait(int timeout_ms, std::span<std::uint32_t> out) const;

  // In a forked child. Async-signal-safe.
  void close() noexcept { epoll_.reset(); }

 private:
  Fd epoll_;
  std::vector<Watched> armed_;
};

}  // namespace ciranda
