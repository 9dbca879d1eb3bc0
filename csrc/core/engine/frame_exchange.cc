#include "core/engine/frame_exchange.h"

#include <atomic>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"

namespace ciranda {
namespace {

void add_to(std::optional<GroupId>& all, GroupId group) {
  all = !all || *all == group ? group : kWorldGroup;
}

}  // namespace

FrameExchange::FrameExchange(RankContext& rank, const Negotiator& negotiator,
                             std::uint64_t patience_ns)
    : rank_(rank),
      negotiator_(negotiator),
      log_(rank.control.log_memory(), rank.mesh.size, rank.mesh.self),
      leaving_(static_cast<std::size_t>(rank.mesh.size), false) {
  if (rank.first_of_several_hosts()) {
    carrier_ = std::make_unique<Carrier>(std::move(rank.remote.control), rank.remote.hosts,
                                         rank.remote.host, negotiator, patience_ns);
  }
}

void FrameExchange::add(Request request, GroupId group) {
  const std::size_t bytes = encoded_bytes(request);
  if (!frame_.requests.empty() && (frame_bytes_ + bytes > kFrameBytesMax / 2 ||
                                   frame_.requests.size() >= kRequestsPerFrameMax)) {
    send();
  }
  CIRANDA_ASSERT(frame_.requests.size() < kRequestsPerFrameMax);  // I8: by send()
  CIRANDA_ASSERT(frame_.requests.empty() == !frame_group_.has_value());
  add_to(frame_group_, group);
  frame_bytes_ += bytes;
  frame_.requests.push_back(std::move(request));
}

bool FrameExchange::send() {
  bool sent = false;
  while (!unsent_.empty() && append(unsent_.front())) {
    unsent_.pop_front();
    add_to(appended_group_, kWorldGroup);
    sent = true;
  }
  // Sleepers of this rank looked for the ranks that hold them up before these frames were in the
  // order. They must look again.
  if (sent) rank_.flags().waiters.ring();
  if (frame_.requests.empty()) return sent;
  CIRANDA_ASSERT(frame_group_.has_value() && frame_bytes_ > 0);  // by add()
  encoded_.clear();
  encode(frame_, encoded_);
  frame_.requests.clear();
  frame_bytes_ = 0;
  const GroupId group = *std::exchange(frame_group_, std::nullopt);
  if (unsent_.empty() && append(encoded_)) {
    add_to(appended_group_, group);
    return true;
  }
  unsent_.push_back(encoded_);
  return sent;
}

bool FrameExchange::say_goodbye() {
  send();
  if (!unsent_.empty()) return false;
  CIRANDA_ASSERT(frame_.requests.empty());  // no Request follows a goodbye
  encoded_.clear();
  encode({.kind = FrameKind::kLeave, .requests = {}}, encoded_);
  // The order may be gone, and with it the way on which the ranks of this host would hear of it.
  if (carrier_ && !log_.try_append(encoded_, rank_.mesh.self, /*ordered=*/false)) return false;
  return append(encoded_);
}

bool FrameExchange::append(std::span<const std::byte> frame) {
  if (rank_.one_host()) return log_.try_append(frame);
  if (carrier_) {
    carrier_->submit(rank_.rank(), frame, monotonic_ns());
    return true;
  }
  if (!log_.try_append(frame, rank_.mesh.self, /*ordered=*/false)) return false;
  // Orders the append before the look at `drivers` in ask_to_drive(): a thread that stops driving
  // looks at the log after it has lowered `drivers`.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  rank_.bells.ask_to_drive(0);
  return true;
}

bool FrameExchange::read(const FrameHandler& handler) {
  bool any = false;
  while (const auto entry = log_.next()) {
    any = true;
    // Another rank wrote the number; the negotiator refuses a frame of nobody.
    const bool from_nobody = !entry->ordered && entry->from >= rank_.mesh.size;
    if (entry->ordered || from_nobody) {
      if (!handler(from_nobody ? kNoRank : entry->from, entry->frame)) break;
      continue;
    }
    if (kind_of(entry->frame) == FrameKind::kLeave) {
      leaving_[static_cast<std::size_t>(entry->from)] = true;
    }
    const bool is_own = entry->from == rank_.mesh.self;  // submitted already
    if (carrier_ && !is_own) {
      carrier_->submit(rank_.global(entry->from), entry->frame, monotonic_ns());
    }
  }
  return any;
}

void FrameExchange::lagging(std::vector<Rank>& out) const {
  for (Rank local = 0; local < rank_.mesh.size; ++local) {
    if (local != rank_.mesh.self && log_.lags_behind(local)) out.push_back(local);
  }
}

// -------------------------------------------------------------------------------------------
// Between hosts

Carrier::Deliver FrameExchange::into_log() {
  return [this](Rank from, std::span<const std::byte> frame) {
    return log_.try_append(frame, from, /*ordered=*/true);
  };
}

Result<bool> FrameExchange::carry() {
  if (!carrier_) return false;
  return carrier_->advance(into_log(), monotonic_ns(), /*caught_up=*/!log_.readable());
}

void FrameExchange::take_last_words(int host) {
  CIRANDA_ASSERT(carrier_ != nullptr);  // only a carrier loses hosts
  carrier_->take_last_words(host, into_log(), monotonic_ns());
}

Status FrameExchange::check_answers(std::uint64_t limit_ms) {
  return carrier_ ? carrier_->check_answers(limit_ms) : Status();
}

void FrameExchange::tell_failure(const Error& why) {
  if (carrier_ && !carrier_->reported_failure()) carrier_->tell_failure(why);
}

const Error* FrameExchange::reported_failure() const {
  return carrier_ && carrier_->reported_failure() ? &*carrier_->reported_failure() : nullptr;
}

// A goodbye can no longer arrive once rank 0, which orders it, or the first rank of this host,
// which carries it, has left.
bool FrameExchange::carried_everything() const {
  const auto left = [this](Rank rank) { return negotiator_.has_left(rank); };
  if (rank_.one_host()) return left(rank_.rank());
  if (carrier_) {
    return carrier_->idle() && (carrier_->alone() || negotiator_.have_left(rank_.local_ranks()));
  }
  return left(rank_.rank()) || left(0) || left(rank_.global(0));
}

void FrameExchange::watched(std::vector<Watched>& out) const {
  if (carrier_) carrier_->watched(out);
}

void FrameExchange::close() noexcept {
  if (carrier_) carrier_->close_all();
}

}  // namespace ciranda
