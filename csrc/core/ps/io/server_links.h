#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/base/assert.h"
#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/server_link.h"
#include "core/ps/io/wait_notice.h"

namespace ciranda::ps {

// A worker's links to all its servers. While it waits for one server, it keeps moving data to and
// from servers on other hosts, so that no server waits for another. It also sends the beats.
//
// Errors name the server in `rank`: kRankLost, or the error with which the server refused. Not
// thread-safe.
class ServerLinks {
 public:
  struct Pace {
    std::uint64_t beat_ns = 2'000'000'000;  // interval of beats, which say that the worker lives
    // A server is lost when its host has not responded for this long.
    std::uint64_t silence_ms = 60'000;
  };
  static constexpr int kNobody = -1;  // no server in particular

  ServerLinks() = default;  // no links
  // `notice` reports long waits, and must outlive this object; null: no reports.
  ServerLinks(std::vector<std::unique_ptr<ServerLink>> links, Pace pace,
              WaitNotice* notice = nullptr);

  int count() const { return static_cast<int>(links_.size()); }
  // Sends a message. Blocks only while a server on this host reads nothing.
  Status send(int server, const Message& message);
  bool has_queued() const;

  // Returns the server's next message; blocks until it arrives. `to_do_what`: what the server
  // should do, for reports of long waits; null: it may take any time, and nothing is reported.
  Result<Message> next(int server, const char* to_do_what = nullptr);
  // Returns true if the server has refused this worker with a reason, rather than been lost.
  bool refuses(int server) const { return refuses_[at(server)]; }
  // Replaces the link to a lost server. Messages that were received over the old link are dropped.
  void replace(int server, std::unique_ptr<ServerLink> link);
  // advance() does the part of next() that does not block; news_of() returns what to wait for
  // afterwards. If advance() finds that a server other than `server` is lost, it says nothing: the
  // next call of next() for the lost server does, and by then that server may be back.
  void advance(int server);
  std::vector<pollfd> news_of(int server) const;

  // Sends a Beat, if one is due, to each server that has been sent a message before.
  void beat_if_due();
  std::uint64_t next_beat_ns() const { return next_beat_ns_; }

  // Sends Leave; `checkpoint` is the latest that the worker knows. Blocks until servers on other
  // hosts have read it, for some seconds at most.
  void leave(std::uint64_t checkpoint = 0);
  // Closes all links. Async-signal-safe, so that a forked child may call it.
  void close() noexcept;

 private:
  Status carry(int server);
  Error lost(int server);
  Status wait(int server, std::uint64_t deadline_ns);
  std::size_t at(int server) const {
    CIRANDA_ASSERT(static_cast<std::size_t>(server) < links_.size());
    return static_cast<std::size_t>(server);
  }

  Error refused_by(int server, const Refused& refused);

  std::vector<std::unique_ptr<ServerLink>> links_;  // by server
  // The previous links, closed. They are kept because a child that is forked during replace() may
  // access them.
  std::vector<std::unique_ptr<ServerLink>> replaced_;
  std::vector<bool> refuses_;
  std::vector<bool> broken_;
  std::vector<bool> entered_;  // Enter has been sent
  Pace pace_;
  WaitNotice* notice_ = nullptr;
  std::vector<std::deque<Message>> heard_;  // by server: received, and not returned by next() yet
  std::uint64_t next_beat_ns_ = 0;
};

}  // namespace ciranda::ps
