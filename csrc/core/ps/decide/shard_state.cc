// Saves and restores a shard; writes to its journal and replays it.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/shard.h"
#include "core/wire/codec.h"

namespace ciranda::ps {
namespace {

Error no_change_of_this(const char* why) {
  return {.code = ErrorCode::kMalformed, .text = std::string("a stored change ") + why};
}

}  // namespace

// -------------------------------------------------------------------------------------------
// Journal

void Shard::write_applied(std::span<const Push> pushes, double scale) const {
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

void Shard::skip(const Push& push, Outcome outcome) {
  decided_.decide(push.worker, push.seq, outcome);
  if (journal_ == nullptr) return;
  journal_->write({.kind = Change::Kind::kSkipped, .pushes = {push}, .outcome = outcome}, {});
}

Status Shard::repeat(const Change& change, std::span<const std::byte> data) {
  if (change.kind == Change::Kind::kRows) {
    return rows_.repeat(change.worker, change.rows, data);
  }
  const std::uint64_t share = layout().share_bytes(parameters_.server());
  if (change.pushes.empty()) return no_change_of_this("names no worker");
  std::vector<const std::byte*> gradients;
  for (const Push& push : change.pushes) {
    if (static_cast<std::size_t>(push.worker) >= members_.size() || !parameters_.check(push) ||
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
    round_clock_ = std::max(round_clock_, std::ranges::min(change.pushes, {}, &Push::clock).clock);
  }
  for (const Push& push : change.pushes) {
    Member& member = at(push.worker);
    member.clock = std::max({member.clock, push.clock, round_clock_});
    decided_.repeat(push, change.outcome);
  }
  return {};
}

// -------------------------------------------------------------------------------------------
// Snapshots

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
  writer.varint(round_clock_);
  parameters_.save(writer);
  writer.varint(members_.size());
  for (Worker worker = 0; worker < static_cast<Worker>(members_.size()); ++worker) {
    writer.varint(decided_.latest(worker));
    writer.varint(at(worker).clock);
  }
  decided_.save(writer);
  writer.varint(vectors_.count());
  rows_.save(writer);
}

Status Shard::restore(std::span<const std::byte> saved) {
  CIRANDA_ASSERT(!given_);
  Reader in(saved);
  version_ = in.varint("shard.version", UINT64_MAX);
  round_clock_ = in.varint("shard.round_clock", UINT64_MAX);
  parameters_.restore(in);
  if (in.count("shard.workers", kLocalRanksMax, 2) != members_.size()) {
    in.fail("shard.workers", "are others");
  }
  for (Worker worker = 0; worker < static_cast<Worker>(members_.size()); ++worker) {
    decided_.restore_latest(worker, in.varint("shard.decided", UINT64_MAX));
    at(worker).clock = in.varint("shard.clock", UINT64_MAX);
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
