#include "core/transport/socket_set.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ciranda {
namespace {

constexpr std::size_t kEventsAtOnce = 16;  // the others come with the next wait()

}  // namespace

Result<SocketSet> SocketSet::create() {
  SocketSet set;
  set.epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!set.epoll_.valid()) return Error::from_errno("epoll_create1", errno);
  return set;
}

Status SocketSet::add(int descriptor, std::uint32_t number) {
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

std::span<const std::uint32_t> SocketSet::wait(int timeout_ms, std::span<std::uint32_t> out) const {
  std::array<epoll_event, kEventsAtOnce> events;
  const auto at_most = static_cast<int>(std::min(events.size(), out.size()));
  const int count = ::epoll_wait(epoll_.get(), events.data(), at_most, timeout_ms);
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    out[index] = events[index].data.u32;
  }
  return out.first(static_cast<std::size_t>(std::max(count, 0)));
}

}  // namespace ciranda
