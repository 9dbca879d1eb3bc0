#include "core/transport/tcp/socket_set.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "core/base/assert.h"

namespace ciranda {

Result<SocketSet> SocketSet::create() {
  SocketSet set;
  set.epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!set.epoll_.valid()) return Error::from_errno("epoll_create1", errno);
  return set;
}

Status SocketSet::add(int descriptor, std::uint32_t number) {
  CIRANDA_ASSERT(number != kArmed);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = number;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return {};
  return Error::from_errno("epoll_ctl", errno);
}

void SocketSet::remove(int descriptor) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

void SocketSet::arm(const std::vector<Watched>& sockets) {
  if (sockets == armed_) return;
  disarm();
  for (const Watched& watched : sockets) {
    if (watched.socket < 0) continue;
    epoll_event event{};
    event.events =
        EPOLLONESHOT | (watched.readable ? EPOLLIN : 0u) | (watched.writable ? EPOLLOUT : 0u);
    event.data.u32 = kArmed;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watched.socket, &event) != 0 && errno == EEXIST) {
      event.events = EPOLLONESHOT | EPOLLIN | EPOLLOUT;  // one socket, both directions
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, watched.socket, &event);
    }
    armed_.push_back(watched);
  }
}

void SocketSet::disarm() {
  for (const Watched& watched : armed_) remove(watched.socket);
  armed_.clear();
}

std::span<const std::uint32_t> SocketSet::wait(std::uint64_t deadline_ns) {
  epoll_event events[kCalledAtOnce];
  const int count = ::epoll_wait(epoll_.get(), events, kCalledAtOnce, poll_timeout_ms(deadline_ns));
  const auto called = std::span(called_).first(static_cast<std::size_t>(std::max(count, 0)));
  for (std::size_t i = 0; i < called.size(); ++i) called[i] = events[i].data.u32;
  return called;
}

}  // namespace ciranda
