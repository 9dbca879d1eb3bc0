#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/engine/carrier.h"
#include "core/engine/rank_context.h"
#include "core/negotiate/negotiator.h"
#include "core/transport/local/shm_log.h"

namespace ciranda {

// Requests of this rank out, and the frames of all ranks in, in the one order. On one host the log
// is that order. On several it also takes frames to the host's first rank, which carries them to
// the order and brings them back.
//
// One thread at a time. Never blocks.
class FrameExchange {
 public:
  // Both outlive it.
  FrameExchange(RankContext& rank, const Negotiator& negotiator, std::uint64_t patience_ns);

  // Goes out with the next send(); at once where the frame is full. `group`: that of the request.
  void add(Request request, GroupId group);
  // Appends what the log has room for, in order. True if that was anything. Of what had found no
  // room before, the sleepers of this rank are told.
  bool send();
  // Group of the frames appended since the last call; the World's if they belong to several.
  std::optional<GroupId> take_appended_group() {
    return std::exchange(appended_group_, std::nullopt);
  }
  // The last frame of this rank, after all others. False: no room yet.
  bool say_goodbye();

  // Hands the frames that have arrived to `handler`, one by one, until it returns false.
  // True if there was any, also one that is still on its way to other hosts.
  using FrameHandler = std::function<bool(Rank from, std::span<const std::byte> frame)>;
  bool read(const FrameHandler& handler);
  // As ShmLog's.
  bool readable() const { return log_.readable(); }
  bool unread() const { return log_.unread(); }
  // This rank reads no further.
  void stop_reading() { log_.stop_reading(); }

  // Frames of this rank wait for room in the log.
  bool unsent() const { return !unsent_.empty(); }
  // Of operations that have ended.
  void drop_unsent() { unsent_.clear(); }
  // The same, or frames that it carries wait.
  bool stuck() const { return unsent() || (carrier_ && !carrier_->idle()); }
  // Local ranks that have read less than this one, appended to `out`: they make room.
  void lagging(std::vector<Rank>& out) const;
  // Those of them that something waits for.
  void blocked_on(std::vector<Rank>& out) const {
    if (stuck()) lagging(out);
  }

  // Carries frames to other hosts and back. An error names the first rank of the host that is lost,
  // lost_host() its number. True if anything moved.
  Result<bool> carry();
  int lost_host() const { return carrier_->lost_host(); }
  // What the lost host sent before it was lost goes to the log.
  void take_last_words(int host);
  // That host said goodbye before.
  void part_with(int host) { carrier_->part_with(host); }
  // As carry()'s, where another host's kernel has answered nothing for `limit_ms`.
  Status check_answers(std::uint64_t limit_ms);
  // Best effort; what other hosts told, if they did.
  void tell_failure(const Error& why);
  const Error* reported_failure() const;

  // On several hosts: that rank has said goodbye, which may not be in the order yet.
  bool leaving(int local) const { return leaving_[static_cast<std::size_t>(local)]; }
  // What this rank and its host had to say has got where it is needed. Peers must hear of a goodbye
  // before they see a socket closed.
  bool carried_everything() const;

  // Appends what carry() waits for.
  void watched(std::vector<Watched>& out) const;
  // Closes the connections. Async-signal-safe.
  void close() noexcept;

 private:
  bool append(std::span<const std::byte> frame);
  Carrier::Deliver into_log();

  RankContext& rank_;
  const Negotiator& negotiator_;
  ShmLog log_;
  std::unique_ptr<Carrier> carrier_;  // the first rank of one of several hosts
  std::vector<bool> leaving_;         // by local rank
  Frame frame_;
  std::optional<GroupId> frame_group_;  // of its requests; of several groups: the World
  std::optional<GroupId> appended_group_;
  std::size_t frame_bytes_ = 0;
  std::deque<std::vector<std::byte>> unsent_;  // frames the full log refused
  std::vector<std::byte> encoded_;             // scratch
};

}  // namespace ciranda
