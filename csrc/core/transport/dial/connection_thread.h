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

// Makes a rank's connections to other hosts as long as its job lasts, in a thread of its own: it
// accepts and dials. So a rank that needs a connection never waits for its peer to drive, and
// strangers cost no driver anything.
//
// Thread-safe. Never blocks, but for its end.
class ConnectionThread {
 public:
  // Dialers at a time; further orders wait. A rank that is dialed hears kStrangersMax at a time.
  static constexpr std::size_t kDialersMax = 16;

  // `keys` are those of the acceptor. `warn` is called with a sentence about strangers now and
  // then, in the new thread.
  static Result<std::unique_ptr<ConnectionThread>> start(
      std::unique_ptr<const ConnectionKeys> keys, Acceptor acceptor,
      std::function<void(const std::string&)> warn = {});
  // Joins the thread. Connections that are not proven yet are closed.
  ~ConnectionThread();
  ConnectionThread(const ConnectionThread&) = delete;
  ConnectionThread& operator=(const ConnectionThread&) = delete;

  // Orders a connection; take() returns it, or its error.
  void dial(const Hello& hello, std::vector<Endpoint> candidates, std::uint64_t deadline_ns)
      EXCLUDES(mutex_);

  // The connections that were proven since the last call, accepted or dialed. Once a dialer has
  // failed, its error.
  Result<std::vector<ProvenSocket>> take() EXCLUDES(mutex_);
  int fd() const { return news_.get(); }  // readable when take() has something

  // Closes, in a forked child, the sockets that would keep peers waiting: the child has no such
  // thread. Afterwards the object must not be used, nor destroyed. Async-signal-safe.
  void close_in_forked_child() noexcept;

 private:
  struct Order {
    Hello hello;
    std::vector<Endpoint> candidates;
    std::uint64_t deadline_ns = 0;
  };

  ConnectionThread(std::unique_ptr<const ConnectionKeys> keys, Acceptor acceptor,
                   std::function<void(const std::string&)> warn);

  void run();
  void start_dialing() EXCLUDES(mutex_);
  void accept_connections();
  void advance_dialers();
  void wait();
  void deliver(ProvenSocket socket) EXCLUDES(mutex_);
  void fail(const Error& why) EXCLUDES(mutex_);

  // Constant after construction.
  const std::unique_ptr<const ConnectionKeys> keys_;
  const std::function<void(const std::string&)> warn_;
  Fd orders_came_;  // eventfd that wakes the thread
  Fd news_;         // eventfd that wakes whoever waits for take()

  // Owned by the thread.
  SocketSet sockets_;  // on which it sleeps
  Acceptor acceptor_;
  std::list<Dialer> dialers_;
  bool accepts_ = true;

  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<Order> orders_ GUARDED_BY(mutex_);
  std::vector<ProvenSocket> proven_ GUARDED_BY(mutex_);
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ciranda
