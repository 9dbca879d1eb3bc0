#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/engine/carrier.h"
#include "core/engine/rank_context.h"
#include "core/negotiate/negotiator.h"
#include "core/transport/local/shm_log.h"

namespace ciranda {

// Sends this rank's Requests in frames and reads the frames of all ranks, in the one order of the
// job. On one host the log is that order. On several hosts a rank's frames also go through the log
// to the first rank of its host, which carries them to the order and brings them back.
//
// Only for the thread that has the seat. Never blocks.
class FrameExchange {
 public:
  // Both must outlive the exchange.
  FrameExchange(RankContext& rank, const Negotiator& negotiator, std::uint64_t patience_ns);

  // Adds a Request to the frame that the next send() sends; sends a full frame at once. `group`:
  // the group of the Request.
  void add(Request request, GroupId group);
  // Appends to the log, in order, the frames for which it has room. Returns true if it appended
  // any. Wakes this rank's own sleepers if a frame that had waited for room was appended.
  bool send();
  // Group of the frames appended since the last call; the World's if they belong to several.
  std::optional<GroupId> take_appended_group() {
    return std::exchange(appended_group_, std::nullopt);
  }
  // Appends the last frame of this rank. Returns false while there is no room for it and those
  // before it.
  bool say_goodbye();

  // Passes each arrived frame of the order to `handler` until that returns false. Returns true if
  // there was any frame, even one that has no place in the order yet.
  using FrameHandler = std::function<bool(Rank from, std::span<const std::byte> frame)>;
  bool read(const FrameHandler& handler);
  // See ShmLog.
  bool readable() const { return log_.readable(); }
  bool unread() const { return log_.unread(); }
  // Tells writers not to wait for this rank any more.
  void stop_reading() { log_.stop_reading(); }

  // Returns true if frames of this rank wait for room in the log.
  bool unsent() const { return !unsent_.empty(); }
  // Drops those frames; their operations must have ended.
  void drop_unsent() { unsent_.clear(); }
  // Returns true if frames of this rank, or frames that it carries, wait.
  bool stuck() const { return unsent() || (carrier_ && !carrier_->idle()); }
  // Appends the local ranks that have read less than this one: only they can make room.
  void lagging(std::vector<Rank>& out) const;
  // Appends the lagging ranks if frames wait for them.
  void blocked_on(std::vector<Rank>& out) const {
    if (stuck()) lagging(out);
  }

  // Carries frames to other hosts and back. Returns true if anything moved. An error of a lost host
  // names its first rank; lost_host() returns its number.
  Result<bool> carry();
  int lost_host() const {
    CIRANDA_ASSERT(carrier_ != nullptr);  // only a carrier loses hosts
    return carrier_->lost_host();
  }
  // Appends to the log what the lost host sent before it was lost.
  void take_last_words(int host);
  // Closes the connection to a host that has said goodbye.
  void part_with(int host) {
    CIRANDA_ASSERT(carrier_ != nullptr);
    carrier_->part_with(host);
  }
  // Returns an error like carry()'s if another host's kernel has not answered for `limit_ms`.
  Status check_answers(std::uint64_t limit_ms);
  // tell_failure() reports a failure to the other hosts, best effort. reported_failure() returns
  // what another host has reported, or null.
  void tell_failure(const Error& why);
  const Error* reported_failure() const;

  // Returns true if that local rank has said goodbye, even if the order does not have it yet. Only
  // on several hosts.
  bool leaving(int local) const { return leaving_[static_cast<std::size_t>(local)]; }
  // Returns true if everything that this rank and its host had to send has arrived wherever it is
  // needed. Peers must learn of a goodbye before they see a socket closed.
  bool carried_everything() const;

  // Appends the sockets that carry() waits for.
  void watched(std::vector<Watched>& out) const;
  // Closes the connections. Async-signal-safe.
  void close() noexcept;

 private:
  bool append(std::span<const std::byte> frame);
  Carrier::Deliver into_log();

  RankContext& rank_;
  const Negotiator& negotiator_;
  ShmLog log_;
  std::unique_ptr<Carrier> carrier_;  // on the first rank of each of several hosts
  std::vector<bool> leaving_;         // by local rank
  Frame frame_;
  std::optional<GroupId> frame_group_;  // of its Requests; the World if they have several
  std::optional<GroupId> appended_group_;
  std::size_t frame_bytes_ = 0;
  std::deque<std::vector<std::byte>> unsent_;  // frames for which the log had no room
  std::vector<std::byte> encoded_;             // scratch
};

}  // namespace ciranda
