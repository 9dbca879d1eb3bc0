#include "core/engine/cycle.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/base/relax_core.h"
#include "core/base/yield_point.h"
#include "core/wire/pair.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kPatienceNs = 10 * kSecondNs;  // at most, see Aggregator
constexpr std::uint32_t kTurnsWithoutClock = 16;       // idle turns between two looks at the clock

}  // namespace

Cycle::Cycle(RankContext& rank)
    : rank_(rank),
      negotiator_({.size = rank.size(),
                   .cache_entries = rank.options.cache_entries,
                   .hosts = rank.remote.hosts,
                   .host = rank.remote.host}),
      frames_(rank, negotiator_, patience_ns()),
      peers_(rank),
      dispatcher_(rank, negotiator_, frames_, peers_) {}

// Short enough that a stall report can name the missing ranks.
std::uint64_t Cycle::patience_ns() const {
  std::uint64_t patience_ns = kPatienceNs;
  for (const std::uint64_t stall_ns :
       {rank_.options.stall_warning_ns, rank_.options.stall_shutdown_ns}) {
    if (stall_ns > 0) patience_ns = std::min(patience_ns, stall_ns / 4);
  }
  return patience_ns;
}

// -------------------------------------------------------------------------------------------
// A turn

bool Cycle::run() {
  if (failure_) return publish();  // what was submitted too late fails too
  if (stopped_reading_) return false;
  if (rank_.control.failed()) {
    take_what_arrived();
    fail(rank_.control.failure());
    return true;
  }
  bool moved = publish();
  moved = read_frames() || moved;
  if (carry()) {
    moved = true;
    if (!failure_) read_frames();
  }
  moved = advance() || moved;
  yield_point();
  if (moved) ring();
  yield_point();
  if (dispatcher_.take_finished()) rank_.flags().waiters.ring();
  return moved;
}

bool Cycle::drive(std::span<const Handle> handles) {
  std::uint64_t idle_since_ns = 0;
  for (std::uint32_t idle_turns = 0;; ++idle_turns) {
    while (!handles.empty() && handles.front()->done()) handles = handles.subspan(1);
    if (handles.empty()) return true;
    if (run()) {
      idle_turns = 0;
      continue;
    }
    if (rank_.pace.load(std::memory_order_relaxed).spin_ns == 0 || needs().will_wake())
      return false;
    // A peer that is at work answers sooner than this thread could read the clock or relax.
    if (idle_turns % kTurnsWithoutClock != kTurnsWithoutClock - 1) continue;
    relax_core();
    const std::uint64_t now = monotonic_ns();
    if (idle_turns < kTurnsWithoutClock) idle_since_ns = now;
    if (now - idle_since_ns > rank_.pace.load(std::memory_order_relaxed).spin_ns) return false;
  }
}

bool Cycle::tell() {
  if (!publish()) return false;
  carry();
  ring();
  return true;
}

// A frame concerns the ranks of its group; the other ranks get it with the next frame for them. The
// backends ring for their own changes.
void Cycle::ring() {
  const std::optional<GroupId> group = frames_.take_appended_group();
  if (!rank_.one_host() || group == kWorldGroup) return rank_.bells.ring_all();
  rank_.bells.ring_members(group ? members_of(*group) : std::span<const Rank>());
}

std::span<const Rank> Cycle::members_of(GroupId id) {
  CIRANDA_ASSERT(rank_.one_host());  // ranks are local ranks
  if (is_pair(id)) {
    const Pair pair = pair_of(id);
    CIRANDA_ASSERT(is_in_world(pair, rank_.size()));  // by GroupDirectory::check_member()
    pair_ = {pair.from, pair.to};
    return pair_;
  }
  if (!last_appended_group_ || last_appended_group_->id != id)
    last_appended_group_ = rank_.groups.find(id);
  return last_appended_group_ ? rank_.members_here(*last_appended_group_)
                              : rank_.local_ranks();  // the group has been removed
}

bool Cycle::publish() {
  if (rank_.queue.empty() && !frames_.unsent() && !dispatcher_.may_ask()) return false;
  if (failure_) {
    dispatcher_.finish_all(*failure_);  // submitted after the failure
    rank_.flags().waiters.ring();
    return true;
  }
  CIRANDA_ASSERT(!said_goodbye_);  // nothing is submitted or left unsent by then
  dispatcher_.take_submissions();
  bool sent = frames_.send();
  if (frames_.unsent()) sent = ask_for_room() || sent;
  return sent;
}

// Called when the log is full. Wakes the ranks that must make room, and lets the background thread
// listen, so that it sends the frames when there is room, whoever drives meanwhile. Returns true if
// a frame was sent at once.
bool Cycle::ask_for_room() {
  rank_.flags().background_listens.store(1, std::memory_order_seq_cst);
  yield_point();
  const bool sent = frames_.send();  // room made before that rang nobody
  if (frames_.unsent()) wake_laggards();
  return sent;
}

// The laggards may compute, or sleep in a call because the frames did not concern them.
void Cycle::wake_laggards() {
  std::vector<Rank> laggards;
  frames_.lagging(laggards);
  rank_.bells.ring_those(laggards);
  for (const Rank local : laggards) rank_.bells.ask_to_drive(local);
}

bool Cycle::read_frames() {
  return frames_.read([this](Rank from, std::span<const std::byte> frame) {
    responses_.clear();
    Status handled = negotiator_.handle_frame(from, frame, coarse_monotonic_ns(), responses_);
    if (handled.ok() && !responses_.empty()) handled = dispatcher_.handle(responses_);
    if (!handled.ok()) fail(handled.error());
    return !failure_;
  });
}

bool Cycle::carry() {
  if (!rank_.first_of_several_hosts() || failure_) return false;
  const auto moved = frames_.carry();
  if (const Error* reported = frames_.reported_failure()) {
    fail(Error(*reported));
    return true;
  }
  if (moved) return moved.value();
  host_closed(frames_.lost_host(), moved.error());
  return true;
}

bool Cycle::advance() {
  bool moved = dispatcher_.advance();
  if (const auto owner = peers_.take_unannounced()) {
    service_peer(*owner);
    moved = true;
  }
  if (const Error* why = dispatcher_.broken()) lose_reach(Error(*why));
  return moved;
}

std::uint64_t Cycle::next_turn_ns() const {
  std::uint64_t in_ns = rank_.one_host() ? kNever : PeerWatch::kLookNs;
  if (const std::uint64_t look_ns = needs().look_again_ns) in_ns = std::min(in_ns, look_ns);
  return in_ns == kNever ? kNever : monotonic_ns() + in_ns;
}

std::vector<Rank> Cycle::blocked_on() const {
  std::vector<Rank> blockers;
  dispatcher_.blocked_on(blockers);
  frames_.blocked_on(blockers);
  return blockers;
}

void Cycle::watched(std::vector<Watched>& out) const {
  if (rank_.one_host() || over()) return;
  frames_.watched(out);
  dispatcher_.watched(out);
}

std::vector<PendingOperation> Cycle::pending() const {
  return failure_ ? pending_at_failure_ : dispatcher_.pending();
}

std::optional<std::string> Cycle::stall_report(std::uint64_t for_ns) const {
  // An operation that waits to be aggregated becomes known to all ranks, and its time begins to
  // count, only when the first ranks of the hosts have lost patience.
  const std::uint64_t held_ns = rank_.one_host() ? 0 : 3 * patience_ns();
  return ciranda::stall_report(negotiator_.waiting(), monotonic_ns(),
                               for_ns - std::min(for_ns, held_ns), kSecondNs);
}

std::optional<Crossing> Cycle::crossing(std::string_view scope) const {
  if (over()) return std::nullopt;
  return find_crossing(negotiator_.waiting(), rank_.rank(), scope);
}

bool Cycle::ask_where(std::uint64_t now_ns) {
  const std::vector<Rank>& here = rank_.local_ranks();
  std::vector<Rank> missing;
  for (const StalledOp& stalled : negotiator_.waiting()) {
    if (now_ns < stalled.since_tick + rank_.options.stall_warning_ns) continue;
    std::set_intersection(here.begin(), here.end(), stalled.missing.begin(), stalled.missing.end(),
                          std::back_inserter(missing));
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  for (const Rank rank : missing) {
    const int local = rank_.local_of(rank);
    rank_.control.flags(local).asked_where.fetch_add(1, std::memory_order_relaxed);
    rank_.bells.ask_to_drive(local);
  }
  return !missing.empty();
}

// -------------------------------------------------------------------------------------------
// Failure and lost peers

void Cycle::fail(const Error& why) {
  if (failure_) return;
  pending_at_failure_ = dispatcher_.pending();
  failure_ = rank_.control.fail(why);
  frames_.tell_failure(*failure_);
  dispatcher_.abort(*failure_);
  dispatcher_.finish_all(*failure_);
  frames_.drop_unsent();
  rank_.bells.ring_alarm();
}

void Cycle::take_what_arrived() {
  read_frames();
  if (!failure_) advance();
}

void Cycle::service_peer(int local) {
  const Result<bool> open = peers_.receive_segments(local);
  if (!open) return fail(open.error());
  if (!open.value()) peer_closed(local);
}

void Cycle::peer_closed(int local) {
  peers_.forget(local);
  if (over()) return;
  take_what_arrived();  // a goodbye came before the end of its socket
  if (failure_) return;
  if (negotiator_.has_left(rank_.global(local)) || frames_.leaving(local)) {
    if (local == 0 && !rank_.one_host()) close(rank_.global(local));
    return;
  }
  fail(rank_.control.failed() ? rank_.control.failure() : peers_.lost(local));
}

// A host is lost with its first rank: no other rank carries its frames.
void Cycle::host_closed(int host, const Error& why) {
  if (over()) return;
  CIRANDA_ASSERT(host >= 0 && static_cast<std::size_t>(host) < rank_.remote.hosts.size() &&
                 host != rank_.remote.host);
  frames_.take_last_words(host);
  take_what_arrived();
  if (failure_) return;
  const std::vector<Rank>& ranks = rank_.remote.hosts[static_cast<std::size_t>(host)];
  const bool nothing_follows = host == 0 && negotiator_.has_left(ranks.front());
  if (nothing_follows) close(ranks.front());
  if (nothing_follows || negotiator_.have_left(ranks)) return frames_.part_with(host);
  lose_reach({.code = ErrorCode::kRankLost,
              .text = why.text + "; host " + std::to_string(host) + " is lost",
              .rank = ranks.front()});
}

// This rank is gone, from which the operations of several hosts get their order, or which carries
// those of this host there.
void Cycle::close(Rank left) {
  if (dispatcher_.is_closed()) return;
  dispatcher_.close({.code = ErrorCode::kRankLeft,
                     .text = "rank " + std::to_string(left) +
                             " has shut down, and nothing follows on this host; let every rank do "
                             "the same steps before it ends",
                     .rank = left});
  rank_.flags().waiters.ring();
}

// This rank itself has noticed: nobody has told it so.
void Cycle::lose_reach(const Error& why) {
  if (failure_) return;
  if (rank_.control.failed()) return fail(rank_.control.failure());
  const std::vector<Rank>& here = rank_.local_ranks();
  const bool is_elsewhere = why.rank >= 0 && std::ranges::find(here, why.rank) == here.end();
  if (is_elsewhere && rank_.options.unreachable) rank_.options.unreachable(why.rank);
  fail(why);
}

// If all ranks of a host are missing, no rank waits there, so the first one asks although it does
// not wait.
void Cycle::look_around(std::uint64_t now_ns) {
  if (rank_.one_host() || over() || !peers_.due(now_ns)) return;
  check_hosts_answer();
  const std::uint64_t every_ns = rank_.options.stall_warning_ns;
  const bool asks = rank_.first_of_several_hosts() && every_ns > 0 && now_ns >= next_ask_ns_;
  if (asks && ask_where(now_ns)) next_ask_ns_ = now_ns + every_ns;
}

void Cycle::check_hosts_answer() {
  const std::uint64_t limit_ms = peers_.answer_limit_ms();
  if (const Status answers = frames_.check_answers(limit_ms); !answers) {
    return host_closed(frames_.lost_host(), answers.error());
  }
  rank_.remote.links.each([&](const DataLink& link) {
    if (failure_ || negotiator_.has_left(link.peer)) return;
    const Status answers = ciranda::check_answers(link.stream.fd(), limit_ms);
    if (!answers) lose_reach(peers_.lost_host(link, answers.error().text));
  });
  for (const Rank rank : rank_.remote.links.unanswered()) {
    if (rank_.options.unreachable) rank_.options.unreachable(rank);
  }
}

// -------------------------------------------------------------------------------------------
// The end

void Cycle::end_submissions(const Error& refused) {
  CIRANDA_ASSERT(!said_goodbye_ && !stopped_reading_);
  if (!agreed_is_finished()) {
    const std::string self = std::to_string(rank_.rank());
    fail({.code = ErrorCode::kRankLeft,
          .text = "rank " + self + " shut down in the middle of an operation",
          .rank = rank_.rank()});
  }
  rank_.queue.close(refused);
  dispatcher_.finish_all(
      {.code = ErrorCode::kShutdown,
       .text = "ciranda was shut down on this rank before the operation was done"});
  frames_.drop_unsent();
  rank_.flags().waiters.ring();
}

// The log may be full of frames that a computing peer has not read. This rank reads everything
// before its goodbye: if that makes an operation agreed which has ended here, the peers must be
// told.
bool Cycle::say_goodbye() {
  if (failure_) return true;
  CIRANDA_ASSERT(!unfinished());  // I10: by end_submissions()
  said_goodbye_ = said_goodbye_ || frames_.say_goodbye();
  read_frames();
  carry();
  if (said_goodbye_ && frames_.carried_everything()) return true;
  rank_.bells.ring_all();
  wake_laggards();
  return false;
}

void Cycle::stop_reading() {
  stopped_reading_ = true;
  frames_.stop_reading();
}

void Cycle::close_connections() {
  CIRANDA_ASSERT(stopped_reading_);  // by Engine::shutdown(): nobody uses them any more
  for (LocalMesh::Peer& peer : rank_.mesh.peers) peer.socket.reset();
  rank_.remote.links.close_all();
  frames_.close();
}

// While a child holds these descriptors, the peers would not notice that the parent has died.
void Cycle::close_in_forked_child() noexcept {
  for (LocalMesh::Peer& peer : rank_.mesh.peers) {
    peer.socket.reset();
    peer.doorbell.reset();
  }
  if (rank_.mesh.place) rank_.mesh.place->forget_in_forked_child();
  rank_.remote.links.close_in_forked_child();
  frames_.close();
  rank_.sockets.close();
}

}  // namespace ciranda
