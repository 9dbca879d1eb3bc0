#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/transport/tcp/socket_io.h"

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

  // Arms these and no others, where they are sockets (-1: none); each wakes the sleeper once, who
  // then disarms them before the next arm(): what is armed already stays as it is.
  void arm(const std::vector<Watched>& sockets);
  void disarm();

  // Sleeps until the deadline (monotonic_ns, or kNever) at the latest; gives the numbers of what
  // there is news of, which stay until the next wait(). What found no room among them comes then.
  std::span<const std::uint32_t> wait(std::uint64_t deadline_ns);

  // In a forked child. Async-signal-safe.
  void close() noexcept { epoll_.reset(); }

 private:
  static constexpr int kCalledAtOnce = 16;

  Fd epoll_;
  std::vector<Watched> armed_;
  std::array<std::uint32_t, kCalledAtOnce> called_ = {};  // the sleeper's
};

}  // namespace ciranda
