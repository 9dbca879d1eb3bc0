#pragma once

#include <cstdint>
#include <optional>

#include "core/base/fd.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/member/messages.h"
#include "core/settings/config.h"
#include "core/transport/link/beat_thread.h"

namespace ciranda {

// This process's end of the socket to the arbiter of an elastic job, which runs in the launcher
// (core/member). Thread-safe.
class Member {
 public:
  // Takes the descriptor over; `config.fd` is valid. Starts a thread that tells the arbiter several
  // times a second that the process runs, until the object's end.
  explicit Member(const MemberConfig& config);

  member::Incarnation incarnation() const { return incarnation_; }
  // Readable when the arbiter has said something that newest() has not returned yet.
  int fd() const { return socket_.get(); }

  // Sends a message. Returns kRankLost if the launcher is gone.
  Status say(const member::FromRank& message) const;

  // What the arbiter has said last.
  struct Order {
    std::optional<member::NewEpoch> epoch;  // the newest that lists this process
    bool over = false;  // all members are at the end of their programs, or this host leaves
  };
  // Reads what has come, and returns the newest order. Does not block. Returns kRankLost if the
  // launcher is gone.
  Result<Order> newest() EXCLUDES(mutex_);
  // Blocks until the arbiter says something, at most `timeout_ms`. Returns true if it has.
  Result<bool> wait(std::uint64_t timeout_ms) const;

 private:
  const member::Incarnation incarnation_;
  const Fd socket_;
  Mutex mutex_;
  Order order_ GUARDED_BY(mutex_);
  BeatThread beats_;
};

}  // namespace ciranda
