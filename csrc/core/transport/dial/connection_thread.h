#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fd.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/transport/dial/acceptor.h"
#include "core/transport/dial/dialer.h"
#include "core/transport/tcp/socket_set.h"

namespace ciranda {

// The connection thread of a rank: it accepts and dials connections to other hosts while the job
// lasts. So a rank that needs a connection never waits for its peer to drive, and strangers cost
// the driving threads nothing.
//
// Thread-safe. Never blocks, except in its destructor.
class ConnectionThread {
 public:
  // Dialers that run at a time; further orders wait. The acceptor of a rank takes
  // Acceptor::kStrangersMax callers at a time.
  static constexpr std::size_t kDialersMax = 16;

  // Starts the thread. `keys` are those of the acceptor. The new thread calls `warn` now and then
  // with a sentence about strangers.
  static Result<std::unique_ptr<ConnectionThread>> start(
      std::unique_ptr<const ConnectionKeys> keys, Acceptor acceptor,
      std::function<void(const std::string&)> warn = {});
  // Joins the thread. Connections that are not proven yet are closed.
  ~ConnectionThread();
  ConnectionThread(const ConnectionThread&) = delete;
  ConnectionThread& operator=(const ConnectionThread&) = delete;

  // Orders a connection. take() returns it, or the error, which comes at `deadline_ns`
  // (monotonic_ns) at the latest.
  void dial(const Hello& hello, std::vector<Endpoint> candidates, std::uint64_t deadline_ns)
      EXCLUDES(mutex_);

  // Returns the connections that were proven since the last call, accepted or dialed. After a
  // dialer or the acceptor has failed, returns the first such error.
  Result<std::vector<ProvenSocket>> take() EXCLUDES(mutex_);
  // Returns the ranks whose calls have become Dialer::is_unanswered() since the last call; they are
  // called on all the same.
  std::vector<Rank> take_unanswered() EXCLUDES(mutex_);
  int fd() const { return news_.get(); }  // readable when take() has something

  // Closes the listeners and the thread's own descriptors in a forked child, which has no such
  // thread: open listeners would keep peers waiting. Afterwards the object must be neither used nor
  // destroyed. Async-signal-safe.
  void close_in_forked_child() noexcept;

 private:
  struct Order {
    Hello hello;
    std::vector<Endpoint> candidates;
    std::uint64_t deadline_ns = 0;
  };
  struct Call {
    Dialer dialer;
    bool is_told = false;  // that nobody answers
  };

  ConnectionThread(std::unique_ptr<const ConnectionKeys> keys, Acceptor acceptor,
                   std::function<void(const std::string&)> warn);

  void run();
  void start_dialing() EXCLUDES(mutex_);
  void accept_connections();
  void advance_calls();
  void tell_if_unanswered(Call& call) EXCLUDES(mutex_);
  void wait();
  void deliver(ProvenSocket socket) EXCLUDES(mutex_);
  void fail(const Error& why) EXCLUDES(mutex_);

  // Constant after construction.
  const std::unique_ptr<const ConnectionKeys> keys_;
  const std::function<void(const std::string&)> warn_;
  Fd orders_came_;  // eventfd that wakes the thread
  Fd news_;         // eventfd that wakes whoever waits for take()

  // Owned by the thread, which sleeps on sockets_.
  SocketSet sockets_;
  Acceptor acceptor_;
  std::list<Call> calls_;
  bool accepts_ = true;

  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<Order> orders_ GUARDED_BY(mutex_);
  std::vector<ProvenSocket> proven_ GUARDED_BY(mutex_);
  std::vector<Rank> unanswered_ GUARDED_BY(mutex_);
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ciranda
