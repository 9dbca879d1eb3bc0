#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine/dispatcher.h"
#include "core/engine/frame_exchange.h"
#include "core/engine/peer_watch.h"
#include "core/engine/rank_context.h"
#include "core/negotiate/negotiator.h"
#include "core/negotiate/stall.h"

namespace ciranda {

// What a rank does whenever somebody drives it: submissions out as a frame, frames in, agreed
// operations to the backends, completions. Also how its World ends.
//
// One thread at a time: whoever has the Seat, which owns it. Never blocks.
class Cycle {
 public:
  explicit Cycle(RankContext& rank);
  Status start() { return peers_.start(); }

  // One turn. True when something moved; then the bells of those whom it concerns were rung.
  bool run();
  // Turns until all handles are done (true), or nothing has moved for the spin time (false).
  bool drive(std::span<const Handle> handles);
  // Of a turn, only the first step, for who shall not be kept: what was submitted is told. True if
  // that was anything.
  bool tell();

  // Reads what a rank of this host has announced, and notices its end.
  void service_peer(int local);
  // Several hosts, some times a second: notices hosts that answer no more, which an unplugged one
  // does. The first rank of a host asks where its ranks are, see ask_where().
  void look_around(std::uint64_t now_ns);

  // Ends the World for every rank, unless it has ended.
  void fail(const Error& why);
  const std::optional<Error>& failure() const { return failure_; }
  // Unfinished operations; after a failure, those that the failure ended.
  std::vector<PendingOperation> pending() const;
  // Of operations that some ranks have not submitted for so long; none: there are none.
  std::optional<std::string> stall_report(std::uint64_t for_ns) const;
  // Of the operations whose names begin with `scope`, those two for which this rank and another one
  // wait, each for the other.
  std::optional<Crossing> crossing(std::string_view scope) const;
  // Asks those ranks of this host where they are that others, anywhere, have waited for long enough
  // to warn. True if there were any.
  bool ask_where(std::uint64_t now_ns);
  Result<std::byte*> resolve_arena(int owner, const ArenaRef& ref, std::uint64_t bytes) {
    return peers_.resolve(owner, ref, bytes);
  }

  // What may be left to do, for who gives up the seat.
  bool readable() const { return frames_.readable(); }
  bool unread() const { return !over() && frames_.unread(); }
  bool stuck() const { return !over() && frames_.stuck(); }
  bool idle() const { return dispatcher_.idle(); }  // no operation runs
  bool unfinished() const { return !dispatcher_.empty(); }
  bool will_wake() const { return dispatcher_.will_wake(); }
  std::uint64_t look_again_ns() const { return dispatcher_.look_again_ns(); }
  // When it is to be run although nobody calls (monotonic_ns, kNever).
  std::uint64_t next_turn_ns() const;
  // Local ranks without whose background thread or call nothing goes on.
  std::vector<Rank> blocked_on() const;
  // Sockets whose news run() would use.
  void watched(std::vector<Watched>& out) const;

  // The end, in this order: what all ranks agreed to is finished first, as far as it can be.
  bool agreed_is_finished() const { return failure_.has_value() || dispatcher_.idle(); }
  void end_submissions(const Error& refused);
  // Tells the peers, once; true when that is where it must be.
  bool say_goodbye();
  void stop_reading();
  void close_connections();
  void close_in_forked_child() noexcept;
  void abandon() noexcept { dispatcher_.abandon(); }

 private:
  bool over() const { return failure_.has_value() || stopped_reading_; }
  bool publish();
  bool ask_for_room();
  void wake_laggards();
  void ring();
  std::span<const Rank> members_of(GroupId id);
  bool read_frames();
  bool carry();
  bool advance();
  // What every rank contributed before one of them was lost is delivered, not failed.
  void take_what_arrived();
  void peer_closed(int local);
  void check_hosts_answer();
  void host_closed(int host, const Error& why);
  std::uint64_t patience_ns() const;

  RankContext& rank_;
  Negotiator negotiator_;
  FrameExchange frames_;
  PeerWatch peers_;
  Dispatcher dispatcher_;
  std::vector<Response> responses_;                   // scratch
  std::array<Rank, 2> pair_{};                        // scratch
  std::shared_ptr<const Group> last_appended_group_;  // in a loop it is the same again
  std::optional<Error> failure_;
  std::vector<PendingOperation> pending_at_failure_;
  std::uint64_t next_ask_ns_ = 0;  // where ranks of this host are
  bool said_goodbye_ = false;
  bool stopped_reading_ = false;
};

}  // namespace ciranda
