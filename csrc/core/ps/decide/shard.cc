#include "core/ps/decide/shard.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/refusal.h"
#include "core/wire/codec.h"
#include "core/wire/types.h"

namespace ciranda::ps {
namespace {

Error no_change_of_this(const char* why) {
  return {.code = ErrorCode::kMalformed, .text = std::string("a stored change ") + why};
}

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
      vectors_(runs_of(parameters_), layout().share_bytes(server)),
      rows_(parameters_.model(), servers, server, workers),
      gate_(parameters_.model().mode, workers),
      decided_(workers),
      memory_(static_cast<std::size_t>(workers)) {
  CIRANDA_ASSERT(workers <= kLocalRanksMax);
}

// -------------------------------------------------------------------------------------------
// Workers come and go

void Shard::enter(Worker worker, std::byte* memory, std::uint64_t decided) {
  gate_.enter(worker);
  at(worker) = {.all = memory, .gradients = memory};
  decided_.skip_to(worker, decided);
}

void Shard::give(Worker worker) {
  CIRANDA_ASSERT(!given_ && at(worker).all != nullptr);  // I22
  given_ = true;
  parameters_.read_from(at(worker).all);
}

std::uint64_t Shard::pull(Worker worker) {
  CIRANDA_ASSERT(given_);  // I22
  parameters_.write_to(at(worker).all);
  return version_;
}

void Shard::leave(Worker worker, std::vector<Ack>& acks) {
  gate_.leave(worker);
  at(worker).all = nullptr;
  finish_round(acks);
  release(acks);
}

void Shard::fall_silent(Worker worker, std::vector<Ack>& acks) {
  if (!gate_.fall_silent(worker)) return;
  finish_round(acks);
  release(acks);
}

// -------------------------------------------------------------------------------------------
// Pushes

Status Shard::check(const Push& push) {
  if (push.worker < 0 || static_cast<std::size_t>(push.worker) >= memory_.size()) {
    return refused_push(push.worker, "came, but the job has no such worker");
  }
  if (at(push.worker).all == nullptr || !given_)
    return refused_push(push.worker, "came before the worker had the parameters");
  const std::uint64_t unanswered = gate_.unanswered(push.worker);
  const bool waits = unanswered != 0 && push.seq > unanswered;
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
  if (push.seq <= decided_.latest(push.worker)) return repeat_answer(push, acks);
  CIRANDA_ASSERT(given_ && push.seq == decided_.latest(push.worker) + 1);  // I21: by check()
  if (model().mode.kind == ModeKind::kSync) {
    push_in_round(std::move(push), acks);
  } else {
    CIRANDA_ASSERT(gate_.unanswered(push.worker) == 0);  // I26: by check()
    push_alone(push, acks);
  }
}

// Answers a push that was decided before, once it may go on.
void Shard::repeat_answer(const Push& push, std::vector<Ack>& acks) {
  decided_.count_duplicate();
  if (gate_.holds(push.worker, push.seq)) return;  // release() will answer it
  // A worker that has returned has the clock of the slowest. It must not wait for itself (I27).
  gate_.advance(push.worker, push.clock);
  const Ack ack{.worker = push.worker,
                .seq = push.seq,
                .outcome = Outcome::kDuplicate,
                .version = version_,
                .clock = gate_.clock(push.worker)};
  if (!gate_.may_go_on(push.clock)) return gate_.hold(ack, push.clock);
  pull(push.worker);
  acks.push_back(ack);
}

void Shard::push_alone(const Push& push, std::vector<Ack>& acks) {
  const Mode& mode = model().mode;
  const Worker worker = push.worker;
  gate_.advance(worker, push.clock);
  const std::uint64_t staleness = version_ - std::min(push.base, version_);
  decided_.count_staleness(staleness);
  const bool goes_on = gate_.may_go_on(push.clock);
  Ack ack{.worker = worker,
          .seq = push.seq,
          .outcome = Outcome::kApplied,
          .clock = gate_.clock(worker)};
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
    apply({&push, 1}, push.scale / by, {&at(worker).all, goes_on && !adds ? 1u : 0u});
    if (goes_on && adds) pull(worker);
  }
  ack.version = version_;
  if (goes_on) {
    acks.push_back(ack);
  } else {
    gate_.hold(ack, push.clock);
  }
  release(acks);
}

void Shard::release(std::vector<Ack>& acks) {
  const std::size_t first = acks.size();
  gate_.release(acks);
  for (Ack& ack : std::span(acks).subspan(first)) ack.version = pull(ack.worker);
}

void Shard::push_in_round(Push push, std::vector<Ack>& acks) {
  const Worker worker = push.worker;
  if (gate_.is_parked(worker)) return;  // the same push again, by check(): the round answers it
  decided_.count_staleness(version_ - std::min(push.base, version_));
  gate_.advance(worker, push.clock);
  if (push.base < version_) {
    gate_.settle(worker, push.clock);
    skip(push, Outcome::kLate);
    pull(worker);
    acks.push_back({.worker = worker,
                    .seq = push.seq,
                    .outcome = Outcome::kLate,
                    .version = version_,
                    .clock = gate_.clock(worker)});
    return finish_round(acks);
  }
  gate_.park(std::move(push));
  finish_round(acks);
}

// Applies the round if it is complete.
void Shard::finish_round(std::vector<Ack>& acks) {
  const std::vector<Push> pushes = gate_.take_round(version_);
  if (pushes.empty()) return;
  std::vector<std::byte*> targets;
  targets.reserve(pushes.size());
  for (const Push& push : pushes) targets.push_back(at(push.worker).all);
  apply(pushes, 1.0 / static_cast<double>(pushes.size()), targets);
  for (const Push& push : pushes) {
    decided_.decide(push.worker, push.seq, Outcome::kApplied);
    acks.push_back({.worker = push.worker,
                    .seq = push.seq,
                    .outcome = Outcome::kApplied,
                    .version = version_,
                    .clock = gate_.clock(push.worker)});
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

void Shard::skip(const Push& push, Outcome outcome) {
  decided_.decide(push.worker, push.seq, outcome);
  if (journal_ == nullptr) return;
  journal_->write({.kind = Change::Kind::kSkipped, .pushes = {push}, .outcome = outcome}, {});
}

void Shard::write_applied(std::span<const Push> pushes, double scale) {
  Change change{.kind = Change::Kind::kApplied, .scale = scale};
  Journal::Data data;
  const auto share = layout().gradients_of(parameters_.server());
  for (const Push& push : pushes) {
    change.pushes.push_back(push);
    for (const auto& [begin, bytes] : share) {
      data.emplace_back(at(push.worker).gradients + begin, bytes);
    }
  }
  journal_->write(change, data);
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

// -------------------------------------------------------------------------------------------
// Saved state

Status Shard::repeat(const Change& change, std::span<const std::byte> data) {
  CIRANDA_ASSERT(given_);  // by restore()
  if (change.kind == Change::Kind::kRows) return rows_.repeat(change.worker, change.rows, data);
  const std::uint64_t share = layout().share_bytes(parameters_.server());
  if (change.pushes.empty()) return no_change_of_this("names no worker");
  std::vector<const std::byte*> gradients;
  for (const Push& push : change.pushes) {
    if (static_cast<std::size_t>(push.worker) >= memory_.size() || !parameters_.check(push) ||
        !parameters_.begin_states(push) || !vectors_.reserve(push.into)) {
      return no_change_of_this("belongs to another model");
    }
    gradients.push_back(data.data() + gradients.size() * share);
  }
  const bool applied = change.kind == Change::Kind::kApplied;
  if (data.size() != (applied ? change.pushes.size() * share : 0)) {
    return no_change_of_this("does not have the gradients that it lists");
  }
  if (applied) {
    update(
        {.pushes = change.pushes, .gradients = gradients, .packed = true, .scale = change.scale});
  }
  if (applied && model().mode.kind == ModeKind::kSync) {
    gate_.end_round(std::ranges::min(change.pushes, {}, &Push::clock).clock);
  }
  for (const Push& push : change.pushes) {
    gate_.settle(push.worker, push.clock);
    decided_.repeat(push, change.outcome);
  }
  return {};
}

void Shard::take_over(const Shard& part) {
  CIRANDA_ASSERT(part.given_);
  if (!has_memory() || !parameters_.take_over(part.parameters_)) return;
  rows_.take_over(part.rows_);
  given_ = true;
}

Shard::Arrays Shard::arrays() {
  Arrays arrays = parameters_.arrays();
  const std::uint64_t bytes = layout().share_bytes(parameters_.server());
  for (VectorId vector = 1; vector <= vectors_.count(); ++vector) {
    arrays.emplace_back(vectors_.data(vector), bytes);
  }
  std::ranges::copy(rows_.arrays(), std::back_inserter(arrays));
  return arrays;
}

void Shard::save(std::vector<std::byte>& out) const {
  Writer writer(out);
  writer.varint(version_);
  writer.varint(gate_.round_clock());
  parameters_.save(writer);
  writer.varint(memory_.size());
  for (Worker worker = 0; worker < static_cast<Worker>(memory_.size()); ++worker) {
    writer.varint(decided_.latest(worker));
    writer.varint(gate_.clock(worker));
  }
  decided_.save(writer);
  writer.varint(vectors_.count());
  rows_.save(writer);
}

Status Shard::restore(std::span<const std::byte> saved) {
  CIRANDA_ASSERT(!given_);
  Reader in(saved);
  version_ = in.varint("shard.version", UINT64_MAX);
  gate_.restore_round(in.varint("shard.round_clock", UINT64_MAX));
  parameters_.restore(in);
  if (in.count("shard.workers", kLocalRanksMax, 2) != memory_.size()) {
    in.fail("shard.workers", "are others");
  }
  for (Worker worker = 0; worker < static_cast<Worker>(memory_.size()); ++worker) {
    decided_.restore_latest(worker, in.varint("shard.decided", UINT64_MAX));
    gate_.restore(worker, in.varint("shard.clock", UINT64_MAX));
  }
  decided_.restore(in);
  const auto vectors = static_cast<VectorId>(in.varint("shard.vectors", kVectorsMax - 1));
  rows_.restore(in);
  if (in.ok() && in.remaining() > 0) in.fail("shard", "goes on after its end");
  if (!in.ok()) return in.error();
  CIRANDA_TRY(vectors_.reserve(vectors));
  given_ = true;
  return {};
}

}  // namespace ciranda::ps
