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

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/transport/acceptor.h"
#include "core/transport/call.h"
#include "core/transport/fd.h"
#include "core/transport/socket_set.h"

namespace ciranda {

// Takes and places the calls of a rank as long as its job lasts, in a thread of its own: nobody who
// waits for a connection waits for another rank to drive, and strangers cost no driver anything.
//
// Thread-safe. Never blocks, but for its end.
class Switchboard {
 public:
  // The others wait: each called rank hears kStrangersMax at a time.
  static constexpr std::size_t kCallsMax = 16;

  // `keys` are those of the acceptor. `warn` gets one sentence about strangers now and then, in the
  // switchboard's thread.
  static Result<std::unique_ptr<Switchboard>> start(
      std::unique_ptr<const ConnectionKeys> keys, Acceptor acceptor,
      std::function<void(const std::string&)> warn = {});
  // Joins the thread. Whoever is not proven yet is hung up on.
  ~Switchboard();
  Switchboard(const Switchboard&) = delete;
  Switchboard& operator=(const Switchboard&) = delete;

  // Places a call; what comes of it comes by take().
  void call(const Hello& hello, std::vector<Endpoint> candidates, std::uint64_t deadline_ns)
      EXCLUDES(mutex_);

  // The connections that were proven since, of either side's calls. An Error tells, from then on,
  // of the first call that failed.
  Result<std::vector<ProvenSocket>> take() EXCLUDES(mutex_);
  int fd() const { return news_.get(); }  // readable when take() has something

  // In a forked child, which has no such thread: closes what would keep callers waiting. The object
  // is of no use any more, not even to its destructor. Async-signal-safe.
  void close_in_forked_child() noexcept;

 private:
  struct Order {
    Hello hello;
    std::vector<Endpoint> candidates;
    std::uint64_t deadline_ns = 0;
  };

  Switchboard(std::unique_ptr<const ConnectionKeys> keys, Acceptor acceptor,
              std::function<void(const std::string&)> warn);

  void run();
  void place_calls() EXCLUDES(mutex_);
  void serve_callers();
  void advance_calls();
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
  std::list<Call> calls_;
  bool takes_calls_ = true;

  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<Order> orders_ GUARDED_BY(mutex_);
  std::vector<ProvenSocket> proven_ GUARDED_BY(mutex_);
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ciranda
