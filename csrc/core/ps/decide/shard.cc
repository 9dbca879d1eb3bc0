#include "core/ps/decide/shard.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/refusal.h"
#include "core/wire/types.h"

namespace ciranda::ps {
namespace {

// A vector has the elements that the server has of the parameters.
std::vector<Vectors::Run> runs_of(const Parameters& parameters) {
  std::vector<Vectors::Run> runs;
  for (const Layout::Piece& piece : parameters.layout().pieces(parameters.server())) {
    runs.push_back({.at = piece.at,
                    .elements = static_cast<std::size_t>(piece.end - piece.begin),
                    .dtype = parameters.model().tables[piece.table].dtype});
  }
  return runs;
}

}  // namespace

Shard::Shard(Model model, int servers, int server, int workers)
    : parameters_(std::move(model), servers, server),
      decided_(workers),
      members_(static_cast<std::size_t>(workers)),
      vectors_(runs_of(parameters_), layout().share_bytes(server)),
      rows_(this->model(), servers, server, workers) {
  CIRANDA_ASSERT(workers <= kLocalRanksMax);
}

// -------------------------------------------------------------------------------------------
// Workers come and go

void Shard::enter(Worker worker, std::byte* memory, std::uint64_t decided) {
  Member& member = at(worker);
  if (member.presence == Presence::kGone) {
    const std::uint64_t others = clock_of_the_others(/*or_silent=*/true);
    if (others != UINT64_MAX) member.clock = others;
  }
  member.presence = Presence::kHere;
  member.memory = memory;
  member.gradients = memory;
  decided_.skip_to(worker, decided);
  member.parked.reset();
  member.held.reset();
}

void Shard::give(Worker worker) {
  CIRANDA_ASSERT(!given_ && at(worker).memory != nullptr);  // I22
  given_ = true;
  parameters_.read_from(at(worker).memory);
}

std::uint64_t Shard::pull(Worker worker) {
  CIRANDA_ASSERT(given_);  // I22
  parameters_.write_to(at(worker).memory);
  return version_;
}

void Shard::leave(Worker worker, std::vector<Ack>& acks) {
  Member& member = at(worker);
  member.presence = Presence::kGone;
  member.memory = nullptr;
  member.parked.reset();
  member.held.reset();
  finish_round(acks);
  release(acks);
}

void Shard::fall_silent(Worker worker, std::vector<Ack>& acks) {
  if (!at(worker).counts()) return;
  at(worker).presence = Presence::kSilent;
  finish_round(acks);
  release(acks);
}

// The clock must not go back here: the worker may be ahead of the slowest, with its answer held.
void Shard::hear(Worker worker) {
  Member& member = at(worker);
  if (member.presence != Presence::kSilent) return;
  const std::uint64_t others = clock_of_the_others(/*or_silent=*/false);
  if (others != UINT64_MAX) member.clock = std::max(member.clock, others);
  member.presence = Presence::kHere;
}

// Returns the clock for a worker that returns, at which it delays nobody and nobody delays it.
std::uint64_t Shard::clock_of_the_others(bool or_silent) const {
  return model().mode.kind == ModeKind::kSync ? round_clock_ : slowest_clock(or_silent);
}

// Returns the smallest clock of the workers that count. If none counts: UINT64_MAX or, if
// `or_silent`, the smallest clock of the silent workers.
std::uint64_t Shard::slowest_clock(bool or_silent) const {
  std::uint64_t counting = UINT64_MAX;
  std::uint64_t silent = UINT64_MAX;
  for (const Member& member : members_) {
    if (member.counts()) counting = std::min(counting, member.clock);
    if (member.presence == Presence::kSilent) silent = std::min(silent, member.clock);
  }
  return counting == UINT64_MAX && or_silent ? silent : counting;
}

// -------------------------------------------------------------------------------------------
// Pushes

Status Shard::check(const Push& push) {
  if (push.worker < 0 || static_cast<std::size_t>(push.worker) >= members_.size()) {
    return refused_push(push.worker, "came, but the job has no such worker");
  }
  const Member& member = at(push.worker);
  if (member.memory == nullptr || !given_)
    return refused_push(push.worker, "came before the worker had the parameters");
  const bool waits =
      member.held ? push.seq > member.held->seq : member.parked && push.seq > member.parked->seq;
  if (waits)
    return refused_push(push.worker, "came before the worker's previous push was answered");
  const std::uint64_t decided = decided_.latest(push.worker);
  if (push.seq > decided + 1 || push.seq == 0) {
    return refused_push(push.worker, "has the number " + std::to_string(push.seq) + " after " +
                                         std::to_string(decided));
  }
  CIRANDA_TRY(parameters_.check(push));
  if (model().mode.kind == ModeKind::kSync && push.scale != 1.0) {
    return refused_push(push.worker, "is scaled, which is not possible in rounds");
  }
  if (model().mode.kind != ModeKind::kAsync && push.into != kParametersVector) {
    return refused_push(push.worker, "is for a vector, which only Async() allows");
  }
  CIRANDA_TRY(parameters_.begin_states(push));
  return vectors_.reserve(push.into);
}

void Shard::push(Push push, std::vector<Ack>& acks) {
  Member& member = at(push.worker);
  if (push.seq <= decided_.latest(push.worker)) {
    decided_.count_duplicate();
    if (member.held && member.held->seq == push.seq) return;  // release() will answer it
    // A worker that has returned has the clock of the slowest. It must not wait for itself (I27).
    member.clock = std::max(member.clock, push.clock);
    const Ack ack{push.worker, push.seq, Outcome::kDuplicate, version_, member.clock};
    if (!may_go_on(push.clock)) {
      member.held = ack;
      member.held_clock = push.clock;
      return;
    }
    pull(push.worker);
    acks.push_back(ack);
    return;
  }
  CIRANDA_ASSERT(given_ && push.seq == decided_.latest(push.worker) + 1);  // I21: by check()
  CIRANDA_ASSERT(!member.held);                                            // I26: by check()
  if (model().mode.kind == ModeKind::kSync) {
    push_in_round(std::move(push), acks);
  } else {
    push_alone(push, acks);
  }
}

void Shard::push_alone(const Push& push, std::vector<Ack>& acks) {
  const Mode& mode = model().mode;
  const Worker worker = push.worker;
  Member& member = at(worker);
  member.clock = std::max(member.clock, push.clock);
  const std::uint64_t staleness = version_ - std::min(push.base, version_);
  decided_.count_staleness(staleness);
  Ack ack{.worker = worker, .seq = push.seq, .outcome = Outcome::kApplied, .clock = member.clock};
  const bool goes_on = may_go_on(push.clock);
  const bool repeated = !decided_.is_first(push.of);
  if (repeated || (mode.kind == ModeKind::kAsync && mode.policy == StalePolicy::kDrop &&
                   staleness > mode.max_staleness)) {
    ack.outcome = repeated ? Outcome::kDuplicate : Outcome::kStale;
    skip(push, ack.outcome);
    pull(worker);
  } else {
    const bool weakened = mode.kind == ModeKind::kAsync && mode.policy == StalePolicy::kScale;
    const double by = weakened ? static_cast<double>(std::max<std::uint64_t>(staleness, 1)) : 1.0;
    const bool adds = push.into != kParametersVector;
    decided_.decide(worker, push.seq, ack.outcome);
    apply({&push, 1}, push.scale / by, {&member.memory, goes_on && !adds ? 1u : 0u});
    if (goes_on && adds) pull(worker);
  }
  ack.version = version_;
  if (goes_on) {
    acks.push_back(ack);
  } else {
    CIRANDA_ASSERT(push.clock <= member.clock);  // I27: it does not wait for itself
    member.held = ack;
    member.held_clock = push.clock;
  }
  release(acks);
}

// kSsp: returns true if no worker that counts is behind `clock` by more than the staleness.
bool Shard::may_go_on(std::uint64_t clock) const {
  if (model().mode.kind != ModeKind::kSsp) return true;
  const std::uint64_t slowest = slowest_clock(/*or_silent=*/false);
  return clock <= slowest || clock - slowest <= model().mode.staleness;
}

void Shard::release(std::vector<Ack>& acks) {
  for (Member& member : members_) {
    if (!member.held || !may_go_on(member.held_clock)) continue;
    CIRANDA_ASSERT(model().mode.kind == ModeKind::kSsp);  // I24: others never wait here
    Ack ack = *std::exchange(member.held, std::nullopt);
    ack.version = pull(ack.worker);
    acks.push_back(ack);
  }
}

void Shard::push_in_round(Push push, std::vector<Ack>& acks) {
  Member& member = at(push.worker);
  if (member.parked) return;  // the same push again, by check(): the round will answer it
  decided_.count_staleness(version_ - std::min(push.base, version_));
  member.clock = std::max(member.clock, push.clock);
  if (push.base < version_) {
    member.clock = std::max(member.clock, round_clock_);
    skip(push, Outcome::kLate);
    pull(push.worker);
    acks.push_back({push.worker, push.seq, Outcome::kLate, version_, member.clock});
    return finish_round(acks);
  }
  member.parked = std::move(push);
  finish_round(acks);
}

// Finishes the round if at most backup_workers are missing. A worker is missing if it counts, has
// no push in the round, and its clock is below the round's. A worker that is not below may be
// waiting for this round at another server. A silent worker's push is part of the round.
void Shard::finish_round(std::vector<Ack>& acks) {
  if (model().mode.kind != ModeKind::kSync) return;
  std::vector<Push> pushes;
  std::vector<std::byte*> targets;
  std::uint64_t clock = UINT64_MAX;
  for (const Member& member : members_) {
    if (!member.parked) continue;
    CIRANDA_ASSERT(member.parked->base >= version_);  // I24: it is of this round
    clock = std::min(clock, member.parked->clock);
    targets.push_back(member.memory);
  }
  const auto missing = static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(), [&](const Member& member) {
        return !member.parked && member.counts() && member.clock < clock;
      }));
  if (targets.empty() || missing > model().mode.backup_workers) return;
  for (Member& member : members_) {
    if (member.parked) pushes.push_back(*std::exchange(member.parked, std::nullopt));
  }
  apply(pushes, 1.0 / static_cast<double>(pushes.size()), targets);
  round_clock_ = std::max(round_clock_, clock);
  for (const Push& push : pushes) {
    Member& member = at(push.worker);
    member.clock = std::max(member.clock, round_clock_);
    decided_.decide(push.worker, push.seq, Outcome::kApplied);
    acks.push_back({push.worker, push.seq, Outcome::kApplied, version_, member.clock});
  }
}

void Shard::apply(std::span<const Push> pushes, double scale, std::span<std::byte* const> targets) {
  CIRANDA_ASSERT(std::ranges::count(targets, nullptr) == 0);  // I22
  if (journal_ != nullptr) write_applied(pushes, scale);
  std::vector<const std::byte*> gradients;
  for (const Push& push : pushes) gradients.push_back(at(push.worker).gradients);
  update({.pushes = pushes, .gradients = gradients, .scale = scale, .targets = targets});
}

void Shard::update(Parameters::Update update) {
  const VectorId into = update.pushes.front().into;
  if (into != kParametersVector) update.vector = vectors_.data(into);
  parameters_.update(update);
  ++version_;
}

// -------------------------------------------------------------------------------------------
// Vectors and rows

Result<std::vector<double>> Shard::work(const VectorWork& work) {
  CIRANDA_ASSERT(given_);
  return vectors_.work(work, parameters_.data());
}

Status Shard::pull_rows(std::size_t table, std::span<const std::uint64_t> rows, std::byte* into) {
  CIRANDA_ASSERT(given_);
  return rows_.pull(table, rows, into);
}

Status Shard::push_rows(Worker worker, const PushRows& push, std::span<const std::uint64_t> rows,
                        const std::byte* gradients) {
  CIRANDA_ASSERT(given_);
  CIRANDA_TRY(rows_.check(push, rows));
  if (push.seq <= rows_.decided(worker)) return {};  // decided before
  if (journal_ != nullptr) {
    const auto numbers = std::as_bytes(rows);
    journal_->write({.kind = Change::Kind::kRows, .worker = worker, .rows = push},
                    {numbers, {gradients, rows.size() * rows_.row_bytes(push.table)}});
  }
  rows_.push(worker, push, rows, gradients);
  return {};
}

}  // namespace ciranda::ps
