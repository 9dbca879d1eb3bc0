#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/server_link.h"
#include "core/ps/io/wait_notice.h"

namespace ciranda::ps {

// A worker's links to all its servers. While one server is waited for the others' links go on where
// they carry data, so that none waits for another, and the servers hear that the worker lives.
//
// An error is kRankLost with the server in its `rank`, or what a server has refused, with the same.
// Not thread-safe.
class ServerLinks {
 public:
  struct Pace {
    std::uint64_t beat_ns = 2'000'000'000;  // how often servers are told that the worker lives
    // A server whose host has answered nothing for so long is lost.
    std::uint64_t silence_ms = 60'000;
  };
  static constexpr int kNobody = -1;  // no server in particular

  ServerLinks() = default;  // of none
  // `notice`, which must outlive this, is told of long waits. Null: nobody is.
  ServerLinks(std::vector<std::unique_ptr<ServerLink>> links, Pace pace,
              WaitNotice* notice = nullptr);

  int count() const { return static_cast<int>(links_.size()); }
  // Does not wait, unless a server on this host reads nothing.
  Status send(int server, const Message& message);
  bool has_queued() const;

  // The next message of that server. Blocks until it is there. `to_do_what`: what the server is
  // waited for to do; null where that may take as long as it takes.
  Result<Message> next(int server, const char* to_do_what = nullptr);
  // It has hung up on this worker with a reason, and not just gone.
  bool refuses(int server) const { return refuses_[at(server)]; }
  // A new link to a server that is lost. What was heard from it and not wanted is forgotten.
  void replace(int server, std::unique_ptr<ServerLink> link);
  // Does what next() does without waiting, and then what news to wait for. Of another server's end
  // it is said where that one is wanted: it may be back by then.
  void advance(int server);
  std::vector<pollfd> news_of(int server) const;

  // Tells the servers that the worker lives, if it is time to: those that have heard of it.
  void beat_if_due();
  std::uint64_t next_beat_ns() const { return next_beat_ns_; }

  // Tells them that it leaves, which knows of that checkpoint, and waits, for some seconds at most,
  // until those on other hosts have
  // heard it.
  void leave(std::uint64_t checkpoint = 0);
  // In a forked child. Async-signal-safe.
  void close() noexcept;

 private:
  Status carry(int server);
  Error lost(int server);
  Status wait(int server, std::uint64_t deadline_ns);
  std::size_t at(int server) const { return static_cast<std::size_t>(server); }

  Error refused_by(int server, const Refused& refused);

  std::vector<std::unique_ptr<ServerLink>> links_;  // by server
  // The link before that one, closed: a process that is forked now may look at it.
  std::vector<std::unique_ptr<ServerLink>> replaced_;
  std::vector<bool> refuses_;
  std::vector<bool> broken_;
  std::vector<bool> entered_;  // the server has been told who this is
  Pace pace_;
  WaitNotice* notice_ = nullptr;
  std::vector<std::deque<Message>> heard_;  // by server, before it was wanted
  std::uint64_t next_beat_ns_ = 0;
};

}  // namespace ciranda::ps
