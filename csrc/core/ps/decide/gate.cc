#include "core/ps/decide/gate.h"

#include <algorithm>
#include <utility>

namespace ciranda::ps {

Gate::Gate(const Mode& mode, int workers)
    : mode_(mode), members_(static_cast<std::size_t>(workers)) {}

// -------------------------------------------------------------------------------------------
// Workers come and go

void Gate::enter(Worker worker) {
  Member& member = at(worker);
  if (member.presence == Presence::kGone) {
    const std::uint64_t others = clock_of_the_others(/*or_silent=*/true);
    if (others != UINT64_MAX) member.clock = others;
  }
  member.presence = Presence::kHere;
  member.parked.reset();
  member.held.reset();
}

void Gate::leave(Worker worker) {
  Member& member = at(worker);
  member.presence = Presence::kGone;
  member.parked.reset();
  member.held.reset();
}

bool Gate::fall_silent(Worker worker) {
  if (!at(worker).counts()) return false;
  at(worker).presence = Presence::kSilent;
  return true;
}

// The clock must not go back here: the worker may be ahead of the slowest, with its answer held.
void Gate::hear(Worker worker) {
  Member& member = at(worker);
  if (member.presence != Presence::kSilent) return;
  const std::uint64_t others = clock_of_the_others(/*or_silent=*/false);
  if (others != UINT64_MAX) member.clock = std::max(member.clock, others);
  member.presence = Presence::kHere;
}

// -------------------------------------------------------------------------------------------
// Clocks

void Gate::advance(Worker worker, std::uint64_t clock) {
  Member& member = at(worker);
  member.clock = std::max(member.clock, clock);
}

void Gate::settle(Worker worker, std::uint64_t clock) {
  Member& member = at(worker);
  member.clock = std::max({member.clock, clock, round_clock_});
}

// Returns the clock for a worker that returns, at which it delays nobody and nobody delays it.
std::uint64_t Gate::clock_of_the_others(bool or_silent) const {
  return mode_.kind == ModeKind::kSync ? round_clock_ : slowest_clock(or_silent);
}

// Returns the smallest clock of the workers that count. If none counts: UINT64_MAX or, if
// `or_silent`, the smallest clock of the silent workers.
std::uint64_t Gate::slowest_clock(bool or_silent) const {
  std::uint64_t counting = UINT64_MAX;
  std::uint64_t silent = UINT64_MAX;
  for (const Member& member : members_) {
    if (member.counts()) counting = std::min(counting, member.clock);
    if (member.presence == Presence::kSilent) silent = std::min(silent, member.clock);
  }
  return counting == UINT64_MAX && or_silent ? silent : counting;
}

// -------------------------------------------------------------------------------------------
// Bounded staleness

bool Gate::may_go_on(std::uint64_t clock) const {
  if (mode_.kind != ModeKind::kSsp) return true;
  const std::uint64_t slowest = slowest_clock(/*or_silent=*/false);
  return clock <= slowest || clock - slowest <= mode_.staleness;
}

void Gate::hold(const Ack& ack, std::uint64_t clock) {
  Member& member = at(ack.worker);
  CIRANDA_ASSERT(!may_go_on(clock));
  CIRANDA_ASSERT(clock <= member.clock);  // I27: it does not wait for itself
  member.held = ack;
  member.held_clock = clock;
}

bool Gate::holds(Worker worker, std::uint64_t seq) const {
  return at(worker).held && at(worker).held->seq == seq;
}

void Gate::release(std::vector<Ack>& acks) {
  for (Member& member : members_) {
    if (!member.held || !may_go_on(member.held_clock)) continue;
    CIRANDA_ASSERT(mode_.kind == ModeKind::kSsp);  // I24: others never wait here
    acks.push_back(*std::exchange(member.held, std::nullopt));
  }
}

// -------------------------------------------------------------------------------------------
// Rounds

void Gate::park(Push push) {
  Member& member = at(push.worker);
  CIRANDA_ASSERT(mode_.kind == ModeKind::kSync && !member.parked);  // I26
  member.parked = std::move(push);
}

// The round is complete if at most backup_workers are missing. A worker is missing if it counts,
// has no push in the round, and its clock is below the round's. A worker that is not below may be
// waiting for this round at another server. A silent worker's push is part of the round.
std::vector<Push> Gate::take_round(std::uint64_t version) {
  if (mode_.kind != ModeKind::kSync) return {};
  std::size_t count = 0;
  std::uint64_t clock = UINT64_MAX;
  for (const Member& member : members_) {
    if (!member.parked) continue;
    CIRANDA_ASSERT(member.parked->base >= version);  // I24: it is of this round
    clock = std::min(clock, member.parked->clock);
    ++count;
  }
  const auto missing = static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(), [&](const Member& member) {
        return !member.parked && member.counts() && member.clock < clock;
      }));
  if (count == 0 || missing > mode_.backup_workers) return {};
  end_round(clock);
  std::vector<Push> pushes;
  pushes.reserve(count);
  for (Member& member : members_) {
    if (member.parked) pushes.push_back(*std::exchange(member.parked, std::nullopt));
  }
  for (const Push& push : pushes) settle(push.worker, push.clock);
  return pushes;
}

void Gate::end_round(std::uint64_t clock) {
  round_clock_ = std::max(round_clock_, clock);
}

std::uint64_t Gate::unanswered(Worker worker) const {
  const Member& member = at(worker);
  if (member.held) return member.held->seq;
  return member.parked ? member.parked->seq : 0;
}

}  // namespace ciranda::ps
