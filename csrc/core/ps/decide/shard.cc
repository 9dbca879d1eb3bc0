#include "core/ps/decide/shard.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/kernels/update_rule.h"
#include "core/wire/types.h"

namespace ciranda::ps {
namespace {

std::size_t states_max(const Model& model) {
  std::size_t most = 0;
  for (const Table& table : model.tables) {
    most = std::max(most, kernels::state_arrays(table.rule).size());
  }
  return most;
}

Error refused(Worker worker, const std::string& why) {
  return {.code = ErrorCode::kInvalidArgument,
          .text = "a push of worker " + std::to_string(worker) + " " + why};
}

}  // namespace

Shard::Shard(Model model, int servers, int server, int workers)
    : model_(std::move(model)),
      layout_(model_, servers),
      server_(server),
      first_slot_(first_slots(model_)),
      members_(static_cast<std::size_t>(workers)),
      steps_(slot_count(model_)),
      parameters_(layout_.share_bytes(server)),
      vectors_(runs_of(model_, layout_, server), layout_.share_bytes(server)) {
  CIRANDA_ASSERT(workers <= kLocalRanksMax);
  for (std::size_t i = states_max(model_); i > 0; --i) {
    states_.emplace_back(layout_.share_bytes(server));
  }
  for (const RowTable& table : model_.row_tables) rows_.emplace_back(table, servers, server);
}

bool Shard::has_memory() const {
  return parameters_.data != nullptr &&
         std::ranges::all_of(states_, [](const auto& state) { return state.data != nullptr; }) &&
         std::ranges::all_of(rows_, &RowShare::has_memory);
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
  member.decided = std::max(member.decided, decided);
  member.parked.reset();
  member.held.reset();
}

void Shard::give(Worker worker) {
  CIRANDA_ASSERT(!given_ && at(worker).memory != nullptr);  // I22
  given_ = true;
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    const std::size_t bytes = element_bytes(piece.table);
    std::memcpy(parameters_.data + piece.at,
                at(worker).memory + layout_.parameters_at(piece.table) +
                    static_cast<std::size_t>(piece.begin) * bytes,
                static_cast<std::size_t>(piece.end - piece.begin) * bytes);
  }
}

std::uint64_t Shard::pull(Worker worker) {
  copy_parameters(worker);
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
  return model_.mode.kind == ModeKind::kSync ? round_clock_ : slowest_clock(or_silent);
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
    return refused(push.worker, "came, but the job has no such worker");
  }
  const Member& member = at(push.worker);
  if (member.memory == nullptr || !given_)
    return refused(push.worker, "came before the worker had the parameters");
  const bool waits =
      member.held ? push.seq > member.held->seq : member.parked && push.seq > member.parked->seq;
  if (waits) return refused(push.worker, "came before the worker's previous push was answered");
  if (push.seq > member.decided + 1 || push.seq == 0) {
    return refused(push.worker, "has the number " + std::to_string(push.seq) + " after " +
                                    std::to_string(member.decided));
  }
  CIRANDA_TRY(check_form(push));
  if (model_.mode.kind == ModeKind::kSync && push.scale != 1.0) {
    return refused(push.worker, "is scaled, which is not possible in rounds");
  }
  if (model_.mode.kind != ModeKind::kAsync && push.into != kParametersVector) {
    return refused(push.worker, "is for a vector, which only Async() allows");
  }
  CIRANDA_TRY(begin_states(push));
  return vectors_.reserve(push.into);
}

void Shard::push(Push push, std::vector<Ack>& acks) {
  Member& member = at(push.worker);
  if (push.seq <= member.decided) {
    count(push.worker, Outcome::kDuplicate);
    if (member.held && member.held->seq == push.seq) return;  // release() will answer it
    // A worker that has returned has the clock of the slowest. It must not wait for itself (I27).
    member.clock = std::max(member.clock, push.clock);
    const Ack ack{push.worker, push.seq, Outcome::kDuplicate, version_, member.clock};
    if (!may_go_on(push.clock)) {
      member.held = ack;
      member.held_clock = push.clock;
      return;
    }
    copy_parameters(push.worker);
    acks.push_back(ack);
    return;
  }
  CIRANDA_ASSERT(given_ && push.seq == member.decided + 1);  // I21: check() has accepted it
  CIRANDA_ASSERT(!member.held);                              // I26: by check()
  if (model_.mode.kind == ModeKind::kSync) {
    push_in_round(std::move(push), acks);
  } else {
    push_alone(push, acks);
  }
}

void Shard::push_alone(const Push& push, std::vector<Ack>& acks) {
  const Mode& mode = model_.mode;
  const Worker worker = push.worker;
  Member& member = at(worker);
  member.decided = push.seq;
  member.clock = std::max(member.clock, push.clock);
  const std::uint64_t staleness = version_ - std::min(push.base, version_);
  count_staleness(staleness);
  Ack ack{.worker = worker, .seq = push.seq, .outcome = Outcome::kApplied, .clock = member.clock};
  const bool goes_on = may_go_on(push.clock);
  const bool repeated = !parts_.add(push.of);
  if (repeated || (mode.kind == ModeKind::kAsync && mode.policy == StalePolicy::kDrop &&
                   staleness > mode.max_staleness)) {
    ack.outcome = repeated ? Outcome::kDuplicate : Outcome::kStale;
    skip(push, ack.outcome);
    copy_parameters(worker);
  } else {
    const bool weakened = mode.kind == ModeKind::kAsync && mode.policy == StalePolicy::kScale;
    const double by = weakened ? static_cast<double>(std::max<std::uint64_t>(staleness, 1)) : 1.0;
    const Push* const one = &push;
    const bool adds = push.into != kParametersVector;
    apply({&one, 1}, push.scale / by, {&worker, goes_on && !adds ? 1u : 0u});
    if (goes_on && adds) copy_parameters(worker);
    count(worker, ack.outcome);
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
  if (model_.mode.kind != ModeKind::kSsp) return true;
  const std::uint64_t slowest = slowest_clock(/*or_silent=*/false);
  return clock <= slowest || clock - slowest <= model_.mode.staleness;
}

void Shard::release(std::vector<Ack>& acks) {
  for (Member& member : members_) {
    if (!member.held || !may_go_on(member.held_clock)) continue;
    CIRANDA_ASSERT(model_.mode.kind == ModeKind::kSsp);  // I24: others never wait here
    Ack ack = *std::exchange(member.held, std::nullopt);
    copy_parameters(ack.worker);
    ack.version = version_;
    acks.push_back(ack);
  }
}

void Shard::push_in_round(Push push, std::vector<Ack>& acks) {
  Member& member = at(push.worker);
  if (member.parked) return;  // the same push again, by check(): the round will answer it
  count_staleness(version_ - std::min(push.base, version_));
  member.clock = std::max(member.clock, push.clock);
  if (push.base < version_) {
    member.decided = push.seq;
    member.clock = std::max(member.clock, round_clock_);
    skip(push, Outcome::kLate);
    copy_parameters(push.worker);
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
  if (model_.mode.kind != ModeKind::kSync) return;
  std::vector<const Push*> pushes;
  std::vector<Worker> workers;
  std::uint64_t clock = UINT64_MAX;
  for (const Member& member : members_) {
    if (!member.parked) continue;
    CIRANDA_ASSERT(member.parked->base >= version_);  // I24: it is of this round
    clock = std::min(clock, member.parked->clock);
    pushes.push_back(&*member.parked);
    workers.push_back(member.parked->worker);
  }
  const auto missing = static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(), [&](const Member& member) {
        return !member.parked && member.counts() && member.clock < clock;
      }));
  if (pushes.empty() || missing > model_.mode.backup_workers) return;
  apply(pushes, 1.0 / static_cast<double>(pushes.size()), workers);
  round_clock_ = std::max(round_clock_, clock);
  for (const Worker worker : workers) {
    Member& member = at(worker);
    CIRANDA_ASSERT(member.parked->seq == member.decided + 1);  // I21
    member.decided = member.parked->seq;
    member.clock = std::max(member.clock, round_clock_);
    member.parked.reset();
    count(worker, Outcome::kApplied);
    acks.push_back({worker, member.decided, Outcome::kApplied, version_, member.clock});
  }
}

void Shard::count(Worker worker, Outcome outcome) {
  ++counters_.outcomes[static_cast<std::size_t>(outcome)];
  at(worker).pushes += outcome == Outcome::kDuplicate ? 0 : 1;
}

void Shard::count_staleness(std::uint64_t staleness) {
  const std::size_t bin = staleness < 4 ? static_cast<std::size_t>(staleness)
                                        : static_cast<std::size_t>(std::bit_width(staleness)) + 1;
  ++counters_.staleness[std::min(bin, counters_.staleness.size() - 1)];
}

// -------------------------------------------------------------------------------------------
// Memory

void Shard::apply(std::span<const Push* const> pushes, double scale,
                  std::span<const Worker> targets) {
  CIRANDA_ASSERT(std::ranges::all_of(
      targets, [&](Worker worker) { return at(worker).memory != nullptr; }));  // I22
  if (journal_ != nullptr) write_applied(pushes, scale);
  Update update{.pushes = pushes, .gradients = {}, .scale = scale, .targets = targets};
  for (const Push* push : pushes) update.gradients.push_back(at(push->worker).gradients);
  make(update);
}

void Shard::make(const Update& update) {
  CIRANDA_ASSERT(!update.pushes.empty() && update.pushes.size() <= kLocalRanksMax &&
                 update.gradients.size() == update.pushes.size());
  Used used(steps_.size());
  for (const Push* push : update.pushes) {
    for (std::size_t i = 0; i < used.size(); ++i) used[i] = used[i] || push->used[i];
  }
  std::vector<RuleRun> runs;
  std::size_t table = model_.tables.size();  // the table of `runs`
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    if (table != piece.table) {
      table = piece.table;
      runs = runs_of(table, update, used);
    }
    make_piece(piece, update, runs);
  }
  const bool steps = update.pushes.front()->into == kParametersVector;
  for (std::size_t i = 0; i < used.size(); ++i) steps_[i] += steps && used[i] ? 1 : 0;
  ++version_;
}

// Updates the runs of a piece. The parameters between the runs are only copied to the targets,
// which may not have their latest values.
void Shard::make_piece(const Layout::Piece& piece, const Update& update,
                       std::span<const RuleRun> runs) {
  const std::size_t bytes = element_bytes(piece.table);
  const VectorId into = update.pushes.front()->into;
  const bool adds = into != kParametersVector;
  const kernels::StateArray* const kept =
      kernels::state_arrays(model_.tables[piece.table].rule).data();
  std::byte* const target = adds ? vectors_.data(into) : parameters_.data;
  const std::size_t push_count = update.pushes.size();
  const std::span<const Worker> targets = update.targets;
  std::array<const std::byte*, kLocalRanksMax> gradients;
  std::array<std::byte*, kLocalRanksMax + 1> parameters;
  std::array<std::byte*, 3> states;
  std::int64_t next = piece.begin;
  for (const RuleRun& run : runs) {
    const std::int64_t begin = std::max(run.begin, piece.begin);
    const std::int64_t end = std::min(run.end, piece.end);
    if (begin >= end) continue;
    CIRANDA_ASSERT(begin >= next);  // I22: no element is updated twice
    copy_range(piece, next, begin, targets);
    next = end;
    const std::uint64_t in_table = static_cast<std::uint64_t>(begin) * bytes;
    const std::uint64_t own = piece.at + static_cast<std::uint64_t>(begin - piece.begin) * bytes;
    const std::uint64_t gradients_at =
        update.packed ? own : layout_.gradients_at(piece.table) + in_table;
    for (std::size_t i = 0; i < push_count; ++i) gradients[i] = update.gradients[i] + gradients_at;
    parameters[0] = target + own;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      parameters[1 + i] = at(targets[i]).memory + layout_.parameters_at(piece.table) + in_table;
    }
    const auto arrays = kernels::state_arrays(*run.rule);
    const auto skipped = arrays.empty() ? 0 : static_cast<std::size_t>(arrays.data() - kept);
    CIRANDA_ASSERT(skipped + arrays.size() <= states_.size());  // by begin_states()
    for (std::size_t i = 0; i < arrays.size(); ++i) states[i] = states_[skipped + i].data + own;
    const auto elements = static_cast<std::size_t>(end - begin);
    kernels::update(*run.rule, {.dtype = model_.tables[piece.table].dtype,
                                .step = run.step,
                                .gradient_scale = update.scale,
                                .fresh_state = run.step == 1,
                                .gradients = {gradients.data(), push_count},
                                .parameters = {parameters.data(), 1 + targets.size()},
                                .states = {states.data(), arrays.size()},
                                .gradient_outputs = {},
                                .count = elements});
    counters_.gradient_bytes += push_count * elements * bytes;
    counters_.parameter_bytes += targets.size() * elements * bytes;
  }
  copy_range(piece, next, piece.end, targets);
}

void Shard::copy_range(const Layout::Piece& piece, std::int64_t begin, std::int64_t end,
                       std::span<const Worker> targets) {
  if (begin >= end) return;
  CIRANDA_ASSERT(begin >= piece.begin && end <= piece.end);
  const std::size_t bytes = element_bytes(piece.table);
  const std::size_t size = static_cast<std::size_t>(end - begin) * bytes;
  const std::byte* from =
      parameters_.data + piece.at + static_cast<std::size_t>(begin - piece.begin) * bytes;
  for (const Worker worker : targets) {
    std::memcpy(at(worker).memory + layout_.parameters_at(piece.table) +
                    static_cast<std::size_t>(begin) * bytes,
                from, size);
    counters_.parameter_bytes += size;
  }
}

void Shard::copy_parameters(Worker worker) {
  CIRANDA_ASSERT(given_ && at(worker).memory != nullptr);  // I22
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    copy_range(piece, piece.begin, piece.end, {&worker, 1});
  }
}

}  // namespace ciranda::ps
