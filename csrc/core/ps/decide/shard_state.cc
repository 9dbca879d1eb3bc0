// Saves and restores a shard; writes to its journal and replays it.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/shard.h"
#include "core/wire/codec.h"

namespace ciranda::ps {
namespace {

// Limit of a slot's restored steps; as many again can follow.
constexpr std::uint64_t kStepsMax = INT64_MAX / 2;

Error no_change_of_this(const char* why) {
  return {.code = ErrorCode::kMalformed, .text = std::string("a stored change ") + why};
}

}  // namespace

// -------------------------------------------------------------------------------------------
// Journal

void Shard::write_applied(std::span<const Push* const> pushes, double scale) const {
  Change change{.kind = Change::Kind::kApplied, .scale = scale};
  Journal::Data data;
  const auto share = layout_.gradients_of(server_);
  for (const Push* push : pushes) {
    change.pushes.push_back(*push);
    for (const auto& [begin, bytes] : share) {
      data.emplace_back(at(push->worker).gradients + begin, bytes);
    }
  }
  journal_->write(change, data);
}

void Shard::skip(const Push& push, Outcome outcome) {
  count(push.worker, outcome);
  if (journal_ == nullptr) return;
  journal_->write({.kind = Change::Kind::kSkipped, .pushes = {push}, .outcome = outcome}, {});
}

Status Shard::repeat(const Change& change, std::span<const std::byte> data) {
  if (change.kind == Change::Kind::kRows) return repeat_rows(change, data);
  const std::uint64_t share = layout_.share_bytes(server_);
  if (change.pushes.empty()) return no_change_of_this("names no worker");
  Update update{.pushes = {}, .gradients = {}, .packed = true, .scale = change.scale};
  std::vector<const Push*> pushes;
  for (const Push& push : change.pushes) {
    if (static_cast<std::size_t>(push.worker) >= members_.size() || !check_form(push) ||
        !begin_states(push) || !vectors_.reserve(push.into)) {
      return no_change_of_this("belongs to another model");
    }
    update.gradients.push_back(data.data() + pushes.size() * share);
    pushes.push_back(&push);
  }
  const bool applied = change.kind == Change::Kind::kApplied;
  if (data.size() != (applied ? pushes.size() * share : 0)) {
    return no_change_of_this("does not have the gradients that it lists");
  }
  update.pushes = pushes;
  if (applied) make(update);
  if (applied && model_.mode.kind == ModeKind::kSync) {
    const auto slowest = std::min_element(
        pushes.begin(), pushes.end(),
        [](const Push* one, const Push* other) { return one->clock < other->clock; });
    round_clock_ = std::max(round_clock_, (*slowest)->clock);
  }
  for (const Push* push : pushes) {
    Member& member = at(push->worker);
    member.decided = std::max(member.decided, push->seq);
    member.clock = std::max({member.clock, push->clock, round_clock_});
    (void)parts_.add(push->of);
    count(push->worker, change.outcome);
  }
  return {};
}

// -------------------------------------------------------------------------------------------
// Snapshots

std::uint64_t Shard::held_bytes() const {
  std::uint64_t bytes = 0;
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    const std::uint64_t arrays = 1 + kernels::state_arrays(model_.tables[piece.table].rule).size();
    bytes +=
        arrays * static_cast<std::uint64_t>(piece.end - piece.begin) * element_bytes(piece.table);
  }
  for (const RowShare& rows : rows_) bytes += rows.held_bytes();
  return bytes;
}

void Shard::copy_state(std::size_t table, std::size_t array, std::byte* into) const {
  CIRANDA_ASSERT(array < states_.size());
  copy_table(table, states_[array].data, into);
}

void Shard::copy_parameters(std::size_t table, std::byte* into) const {
  copy_table(table, parameters_.data, into);
}

void Shard::copy_table(std::size_t table, const std::byte* from, std::byte* into) const {
  CIRANDA_ASSERT(table < model_.tables.size());
  const std::size_t bytes = element_bytes(table);
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    if (piece.table != table) continue;
    std::memcpy(into + static_cast<std::size_t>(piece.begin) * bytes, from + piece.at,
                static_cast<std::size_t>(piece.end - piece.begin) * bytes);
  }
}

// A part may have state that others lack: SGD's momentum begins with a push.
void Shard::take_over(const Shard& part) {
  CIRANDA_ASSERT(part.given_ && difference(model_, part.model_).empty());
  for (std::size_t table = 0; table < model_.tables.size(); ++table) {
    const kernels::UpdateRule& theirs = part.model_.tables[table].rule;
    kernels::UpdateRule& own = model_.tables[table].rule;
    if (kernels::state_count(own) < kernels::state_count(theirs)) own.momentum = theirs.momentum;
  }
  while (states_.size() < part.states_.size()) states_.emplace_back(layout_.share_bytes(server_));
  if (!has_memory()) return;
  for (const Layout::Piece& own : layout_.pieces(server_)) {
    const std::size_t bytes = element_bytes(own.table);
    for (const Layout::Piece& theirs : part.layout_.pieces(part.server_)) {
      const std::int64_t begin = std::max(own.begin, theirs.begin);
      const std::int64_t end = std::min(own.end, theirs.end);
      if (own.table != theirs.table || begin >= end) continue;
      const auto size = static_cast<std::size_t>(end - begin) * bytes;
      const std::uint64_t to = own.at + static_cast<std::uint64_t>(begin - own.begin) * bytes;
      const std::uint64_t from =
          theirs.at + static_cast<std::uint64_t>(begin - theirs.begin) * bytes;
      std::memcpy(parameters_.data + to, part.parameters_.data + from, size);
      for (std::size_t i = 0; i < part.states_.size(); ++i) {
        std::memcpy(states_[i].data + to, part.states_[i].data + from, size);
      }
    }
  }
  for (std::size_t i = 0; i < steps_.size(); ++i) steps_[i] = std::max(steps_[i], part.steps_[i]);
  for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].take_over(part.rows_[i]);
  given_ = true;
}

Shard::Arrays Shard::arrays() {
  const std::uint64_t bytes = layout_.share_bytes(server_);
  Arrays arrays = {{parameters_.data, bytes}};
  for (const ZeroArray& state : states_) arrays.emplace_back(state.data, bytes);
  for (VectorId vector = 1; vector <= vectors_.count(); ++vector) {
    arrays.emplace_back(vectors_.data(vector), bytes);
  }
  for (RowShare& rows : rows_) {
    for (const auto& array : rows.arrays()) arrays.push_back(array);
  }
  return arrays;
}

void Shard::save(std::vector<std::byte>& out) const {
  Writer writer(out);
  writer.varint(version_);
  writer.varint(round_clock_);
  writer.varint(steps_.size());
  for (const std::int64_t steps : steps_) writer.varint(static_cast<std::uint64_t>(steps));
  writer.varint(members_.size());
  for (const Member& member : members_) {
    writer.varint(member.decided);
    writer.varint(member.clock);
  }
  for (const std::uint64_t outcomes : counters_.outcomes) writer.varint(outcomes);
  parts_.save(writer);
  writer.varint(vectors_.count());
  row_parts_.save(writer);
  for (const Member& member : members_) writer.varint(member.decided_rows);
  for (const RowShare& rows : rows_) rows.save(writer);
}

Status Shard::restore(std::span<const std::byte> saved) {
  CIRANDA_ASSERT(!given_);
  Reader in(saved);
  version_ = in.varint("shard.version", UINT64_MAX);
  round_clock_ = in.varint("shard.round_clock", UINT64_MAX);
  if (in.count("shard.steps", kSlotsMax, 1) != steps_.size()) in.fail("shard.steps", "are others");
  for (std::int64_t& steps : steps_) {
    steps = static_cast<std::int64_t>(in.varint("shard.steps", kStepsMax));
  }
  if (in.count("shard.workers", kLocalRanksMax, 2) != members_.size()) {
    in.fail("shard.workers", "are others");
  }
  for (Member& member : members_) {
    member.decided = in.varint("shard.decided", UINT64_MAX);
    member.clock = in.varint("shard.clock", UINT64_MAX);
  }
  for (std::uint64_t& outcomes : counters_.outcomes) {
    outcomes = in.varint("shard.outcomes", UINT64_MAX);
  }
  parts_.restore(in);
  const auto vectors = static_cast<VectorId>(in.varint("shard.vectors", kVectorsMax - 1));
  row_parts_.restore(in);
  for (Member& member : members_) {
    member.decided_rows = in.varint("shard.decided_rows", UINT64_MAX);
  }
  for (RowShare& rows : rows_) rows.restore(in);
  if (in.ok() && in.remaining() > 0) in.fail("shard", "goes on after its end");
  if (!in.ok()) return in.error();
  CIRANDA_TRY(vectors_.reserve(vectors));
  given_ = true;
  return {};
}

}  // namespace ciranda::ps
