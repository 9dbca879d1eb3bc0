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

// Does the work of a rank each time a thread drives it: sends submissions as a frame, reads frames,
// hands agreed operations to the backends and completes handles. Also fails and ends the World.
//
// Owned by the Seat. Only the thread that has the seat may call it. Never blocks.
class Cycle {
 public:
  explicit Cycle(RankContext& rank);
  Status start() { return peers_.start(); }

  // Runs one turn. Returns true if something moved; the ranks concerned have been woken by then.
  bool run();
  // Runs turns until all handles are done (returns true) or nothing has moved for the spin time
  // (returns false).
  bool drive(std::span<const Handle> handles);
  // Sends pending submissions and returns; the next driver does the rest of the turn. Returns true
  // if there were any.
  bool tell();

  // Reads the memory announcements of a rank of this host, and notices if the rank has ended.
  void service_peer(int local);
  // The process of this local rank has begun to end. Idempotent.
  void peer_dies(int local) { peer_closed(local); }
  // On several hosts, checks a few times a second that the other hosts still answer: an unplugged
  // host closes no connection. On the first rank of a host, also calls ask_where() when it is due.
  void look_around(std::uint64_t now_ns);

  // Fails the World on every rank, unless it has failed already.
  void fail(const Error& why);
  const std::optional<Error>& failure() const { return failure_; }
  // Returns the unfinished operations; after a failure, those that the failure ended.
  std::vector<PendingOperation> pending() const;
  // Describes the operations that some ranks have not submitted for at least `for_ns`; nullopt if
  // there are none.
  std::optional<std::string> stall_report(std::uint64_t for_ns) const;
  // Returns the first crossing of this rank with another, among operations whose names begin with
  // `scope`; see find_crossing().
  std::optional<Crossing> crossing(std::string_view scope) const;
  // Asks some ranks of this host to show where they are: those for which any rank of the job has
  // waited long enough for a stall warning. Returns true if there were any.
  bool ask_where(std::uint64_t now_ns);
  Result<std::byte*> resolve_arena(int owner, const ArenaRef& ref, std::uint64_t bytes) {
    return peers_.resolve(owner, ref, bytes);
  }

  // The work that may be left when a thread gives up the seat.
  bool readable() const { return frames_.readable(); }
  bool unread() const { return !over() && frames_.unread(); }
  bool stuck() const { return !over() && frames_.stuck(); }
  bool unfinished() const { return !dispatcher_.empty(); }
  DriverNeeds needs() const { return dispatcher_.needs(); }
  // Returns when the cycle must run even if nobody wakes this rank (monotonic_ns, kNever).
  std::uint64_t next_turn_ns() const;
  // Returns the local ranks that must drive, or make a call, before this rank can make progress.
  std::vector<Rank> blocked_on() const;
  // Appends the sockets on which news would let run() make progress.
  void watched(std::vector<Watched>& out) const;

  // The end of the World. The engine first lets the agreed operations finish, as far as they can,
  // and then calls these in this order.
  bool agreed_is_finished() const { return failure_.has_value() || needs().idle; }
  void end_submissions(const Error& refused);
  // Tells the peers that this rank leaves, once. Returns true when the goodbye has arrived wherever
  // it is needed.
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
  // Handles the frames that arrived before a rank was lost: an operation that every rank
  // contributed to then succeeds.
  void take_what_arrived();
  void peer_closed(int local);
  void check_hosts_answer();
  void host_closed(int host, const Error& why);
  void lose_reach(const Error& why);
  void close(Rank left);
  std::uint64_t patience_ns() const;

  RankContext& rank_;
  Negotiator negotiator_;
  FrameExchange frames_;
  PeerWatch peers_;
  Dispatcher dispatcher_;
  std::vector<Response> responses_;                   // scratch
  std::array<Rank, 2> pair_{};                        // scratch
  std::shared_ptr<const Group> last_appended_group_;  // a cache: a loop uses the same group again
  std::optional<Error> failure_;
  std::vector<PendingOperation> pending_at_failure_;
  std::uint64_t next_ask_ns_ = 0;  // the next ask_where()
  bool said_goodbye_ = false;
  bool stopped_reading_ = false;
};

}  // namespace ciranda
