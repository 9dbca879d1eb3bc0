#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {

// An epoll on which one thread sleeps. It watches permanent descriptors, each with its own number,
// and armed sockets, each for one event.
//
// Only the sleeping thread calls wait(). One thread at a time calls the other members, also while
// the first one sleeps.
class SocketSet {
 public:
  static constexpr std::uint32_t kArmed = UINT32_MAX;  // the number of every armed socket

  static Result<SocketSet> create();

  Status add(int descriptor, std::uint32_t number);
  void remove(int descriptor);

  // Arms exactly these sockets; entries with socket -1 are ignored. Each socket wakes the sleeper
  // once. arm() leaves the sockets alone if the list equals the last one, so the caller must call
  // disarm() after a wake-up and before the next arm().
  void arm(const std::vector<Watched>& sockets);
  void disarm();

  // Blocks until there is an event or until the deadline (monotonic_ns, or kNever). Returns the
  // numbers of the ready descriptors, at most kCalledAtOnce; the next call returns the rest. The
  // span is valid until then.
  std::span<const std::uint32_t> wait(std::uint64_t deadline_ns);

  // Closes the epoll in a forked child. Async-signal-safe.
  void close() noexcept { epoll_.reset(); }

 private:
  static constexpr int kCalledAtOnce = 16;

  Fd epoll_;
  std::vector<Watched> armed_;
  std::array<std::uint32_t, kCalledAtOnce> called_ = {};  // result of wait()
};

}  // namespace ciranda
