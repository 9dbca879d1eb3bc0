#include "core/transport/dial/connection_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/base/thread.h"

namespace ciranda {
namespace {

enum : std::uint32_t { kOrders, kCallers };  // numbers of the permanent descriptors in sockets_

Result<Fd> make_eventfd() {
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return Error::from_errno("eventfd", errno);
  return fd;
}

void raise(const Fd& event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof one);
}

void lower(const Fd& event) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = ::read(event.get(), &count, sizeof count);
}

}  // namespace

Result<std::unique_ptr<ConnectionThread>> ConnectionThread::start(
    std::unique_ptr<const ConnectionKeys> keys, Acceptor acceptor,
    std::function<void(const std::string&)> warn) {
  auto orders_came = make_eventfd();
  if (!orders_came) return orders_came.error();
  auto news = make_eventfd();
  if (!news) return news.error();
  auto sockets = SocketSet::create();
  if (!sockets) return sockets.error();
  CIRANDA_TRY(sockets.value().add(orders_came.value().get(), kOrders));
  CIRANDA_TRY(sockets.value().add(acceptor.fd(), kCallers));
  std::unique_ptr<ConnectionThread> connection_thread(
      new ConnectionThread(std::move(keys), std::move(acceptor), std::move(warn)));
  connection_thread->orders_came_ = std::move(orders_came).value();
  connection_thread->news_ = std::move(news).value();
  connection_thread->sockets_ = std::move(sockets).value();
  auto thread = start_thread("ciranda-calls", [self = connection_thread.get()] { self->run(); });
  if (!thread) return thread.error();
  connection_thread->thread_ = std::move(thread).value();
  return connection_thread;
}

ConnectionThread::ConnectionThread(std::unique_ptr<const ConnectionKeys> keys, Acceptor acceptor,
                                   std::function<void(const std::string&)> warn)
    : keys_(std::move(keys)), warn_(std::move(warn)), acceptor_(std::move(acceptor)) {}

ConnectionThread::~ConnectionThread() {
  if (!thread_.joinable()) return;  // start() failed
  stopping_.store(true);
  raise(orders_came_);
  thread_.join();
}

void ConnectionThread::dial(const Hello& hello, std::vector<Endpoint> candidates,
                            std::uint64_t deadline_ns) {
  {
    const MutexLock lock(mutex_);
    orders_.push_back({hello, std::move(candidates), deadline_ns});
  }
  raise(orders_came_);
}

Result<std::vector<ProvenSocket>> ConnectionThread::take() {
  lower(news_);
  const MutexLock lock(mutex_);
  if (failure_) return *failure_;
  return std::exchange(proven_, {});
}

std::vector<Rank> ConnectionThread::take_unanswered() {
  const MutexLock lock(mutex_);
  return std::exchange(unanswered_, {});
}

void ConnectionThread::close_in_forked_child() noexcept {
  sockets_.close();
  acceptor_.close_listeners();
  orders_came_.reset();
  news_.reset();
}

void ConnectionThread::run() {
  for (;;) {
    lower(orders_came_);  // first, so that a later order raises it again
    if (stopping_.load()) return;
    start_dialing();
    accept_connections();
    advance_calls();
    wait();
  }
}

void ConnectionThread::start_dialing() {
  CIRANDA_ASSERT(calls_.size() <= kDialersMax);
  const MutexLock lock(mutex_);
  const std::size_t count = std::min(orders_.size(), kDialersMax - calls_.size());
  for (std::size_t i = 0; i < count; ++i) {
    Order& order = orders_[i];
    calls_.push_back({Dialer(*keys_, order.hello, std::move(order.candidates), order.deadline_ns)});
  }
  orders_.erase(orders_.begin(), orders_.begin() + static_cast<std::ptrdiff_t>(count));
}

void ConnectionThread::accept_connections() {
  if (!accepts_) return;
  auto proven = acceptor_.poll(monotonic_ns());
  if (!proven) {
    accepts_ = false;
    sockets_.remove(acceptor_.fd());
    return fail(proven.error());
  }
  for (ProvenSocket& socket : proven.value()) deliver(std::move(socket));
  if (!warn_) return;
  if (const auto sentence = acceptor_.summary(monotonic_ns())) warn_(*sentence);
}

void ConnectionThread::advance_calls() {
  for (auto call = calls_.begin(); call != calls_.end();) {
    auto proven = call->dialer.advance(monotonic_ns());
    if (proven && !proven.value()) {
      tell_if_unanswered(*call++);
      continue;
    }
    if (proven) {
      deliver(std::move(*proven.value()));
    } else {
      fail(proven.error());
    }
    call = calls_.erase(call);
    raise(orders_came_);  // there is room for the next order
  }
}

void ConnectionThread::tell_if_unanswered(Call& call) {
  if (call.is_told || !call.dialer.is_unanswered(monotonic_ns())) return;
  call.is_told = true;
  const MutexLock lock(mutex_);
  unanswered_.push_back(call.dialer.to());
}

void ConnectionThread::wait() {
  std::vector<Watched> dialed;
  std::uint64_t deadline_ns = acceptor_.next_deadline_ns().value_or(kNever);
  for (const Call& call : calls_) {
    dialed.push_back(call.dialer.watched());
    deadline_ns = std::min(deadline_ns, call.dialer.next_deadline_ns());
  }
  sockets_.arm(dialed);
  sockets_.wait(deadline_ns);
  sockets_.disarm();
}

void ConnectionThread::deliver(ProvenSocket socket) {
  {
    const MutexLock lock(mutex_);
    proven_.push_back(std::move(socket));
  }
  raise(news_);
}

void ConnectionThread::fail(const Error& why) {
  {
    const MutexLock lock(mutex_);
    if (!failure_) failure_ = why;
  }
  raise(news_);
}

}  // namespace ciranda
