#include "core/transport/link/beat_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/assert.h"
#include "core/base/thread.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {

Status BeatThread::start(const char* name, Look look) {
  CIRANDA_ASSERT(!thread_.joinable() && look);
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return Error::from_errno("eventfd", errno);
  auto thread = start_thread(name, [this, look = std::move(look)] { run(look); });
  if (!thread) return thread.error();
  thread_ = std::move(thread).value();
  pid_ = ::getpid();
  return {};
}

void BeatThread::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void BeatThread::stop() {
  if (!thread_.joinable()) return;
  if (::getpid() != pid_) return thread_.detach();
  stops_ = true;
  wake();
  thread_.join();
}

void BeatThread::run(const Look& look) {
  while (!stops_) {
    Attention attention = look();
    attention.sockets.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
    ::poll(attention.sockets.data(), attention.sockets.size(),
           poll_timeout_ms(attention.deadline_ns));
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t had = ::read(wake_.get(), &count, sizeof count);
  }
}

}  // namespace ciranda
