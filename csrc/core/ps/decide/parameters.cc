#include "core/ps/decide/parameters.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/kernels/update_rule.h"
#include "core/ps/decide/refusal.h"
#include "core/wire/types.h"

namespace ciranda::ps {
namespace {

// Limit of a slot's restored steps; as many again can follow.
constexpr std::uint64_t kStepsMax = INT64_MAX / 2;

// The rule that adds gradients to a vector.
const kernels::UpdateRule kAdd{.kind = kernels::RuleKind::kSgd, .lr = 1.0, .maximize = true};

std::size_t states_max(const Model& model) {
  std::size_t most = 0;
  for (const Table& table : model.tables) {
    most = std::max(most, kernels::state_arrays(table.rule).size());
  }
  return most;
}

// Calls fn(table, begin, end, rule) for the push's rules, in their order; `begin` and `end` are
// slots of the table. Returns false if the rules do not cover the model's slots exactly.
template <typename Fn>
bool each_rule(const Model& model, const Push& push, Fn fn) {
  const bool by_table = push.rule_slots.empty();
  if (!by_table && push.rule_slots.size() != push.rules.size()) return false;
  std::size_t next = 0;
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    const std::size_t slots = model.tables[table].slots.size();
    std::size_t slot = 0;
    do {
      if (next == push.rules.size()) return false;
      const std::size_t count = by_table ? slots : push.rule_slots[next];
      if ((count == 0 && !by_table) || count > slots - slot) return false;
      fn(table, slot, slot + count, push.rules[next]);
      slot += count;
      ++next;
    } while (slot < slots);
  }
  return next == push.rules.size();
}

}  // namespace

Parameters::Parameters(Model model, int servers, int server)
    : model_(std::move(model)),
      layout_(model_, servers),
      server_(server),
      first_slot_(first_slots(model_)),
      steps_(slot_count(model_)),
      values_(layout_.share_bytes(server)) {
  for (std::size_t i = states_max(model_); i > 0; --i) {
    states_.emplace_back(layout_.share_bytes(server));
  }
}

bool Parameters::has_memory() const {
  return values_.data != nullptr &&
         std::ranges::all_of(states_, [](const auto& state) { return state.data != nullptr; });
}

// -------------------------------------------------------------------------------------------
// Rules

Status Parameters::check(const Push& push) const {
  bool has_state = true;
  const bool of_all =
      each_rule(model_, push, [&](std::size_t table, std::size_t, std::size_t, const auto& rule) {
        has_state = has_state && has_state_for(rule, model_.tables[table].rule);
      });
  if (!of_all || push.used.size() != steps_.size()) {
    return refused_push(push.worker, "is for another number of parameters");
  }
  if (!has_state) return refused_push(push.worker, "has an update rule that needs other state");
  return {};
}

Status Parameters::begin_states(const Push& push) {
  bool enough = true;
  each_rule(model_, push, [&](std::size_t table, std::size_t, std::size_t, const auto& rule) {
    kernels::UpdateRule& declared = model_.tables[table].rule;
    const std::size_t wanted = kernels::state_arrays(rule).size();
    if (wanted <= kernels::state_arrays(declared).size()) return;
    if (states_.size() < wanted) states_.emplace_back(layout_.share_bytes(server_));
    if (states_.back().data == nullptr) {
      states_.pop_back();
      enough = false;
      return;
    }
    declared.momentum = rule.momentum;
  });
  if (enough) return {};
  return Error{.code = ErrorCode::kSystem, .text = "there is no memory for momentum"};
}

std::vector<Parameters::RuleRun> Parameters::runs_of(std::size_t table, const Update& update,
                                                     const Used& used) const {
  const bool adds = update.vector != nullptr;
  std::vector<RuleRun> runs;
  each_rule(model_, update.pushes.front(),
            [&](std::size_t of, std::size_t begin, std::size_t end, const auto& rule) {
              if (of != table) return;
              const std::size_t first = first_slot_[table] + begin;
              for (const StepRun& run : step_runs(
                       std::span(layout_.slots(table)).subspan(begin, end - begin),
                       [&](std::size_t i) { return used[first + i]; },
                       [&](std::size_t i) { return steps_[first + i]; })) {
                runs.push_back({run, adds ? &kAdd : &rule});
              }
            });
  return runs;
}

// -------------------------------------------------------------------------------------------
// Updates

void Parameters::update(const Update& update) {
  CIRANDA_ASSERT(!update.pushes.empty() && update.pushes.size() <= kLocalRanksMax &&
                 update.gradients.size() == update.pushes.size());
  CIRANDA_ASSERT(update.targets.size() <= kLocalRanksMax);
  Used used(steps_.size());
  for (const Push& push : update.pushes) {
    for (std::size_t i = 0; i < used.size(); ++i) used[i] = used[i] || push.used[i];
  }
  std::vector<RuleRun> runs;
  std::size_t table = model_.tables.size();  // the table of `runs`
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    if (table != piece.table) {
      table = piece.table;
      runs = runs_of(table, update, used);
    }
    update_piece(piece, update, runs);
  }
  const bool steps = update.vector == nullptr;
  for (std::size_t i = 0; i < used.size(); ++i) steps_[i] += steps && used[i] ? 1 : 0;
}

// Updates the runs of a piece. The parameters between the runs are only copied to the targets,
// which may not have their latest values.
void Parameters::update_piece(const Layout::Piece& piece, const Update& update,
                              std::span<const RuleRun> runs) {
  const std::size_t bytes = element_bytes(piece.table);
  const kernels::StateArray* const kept =
      kernels::state_arrays(model_.tables[piece.table].rule).data();
  std::byte* const target = update.vector != nullptr ? update.vector : values_.data;
  const std::size_t push_count = update.pushes.size();
  const std::span<std::byte* const> targets = update.targets;
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
      parameters[1 + i] = targets[i] + layout_.parameters_at(piece.table) + in_table;
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
    traffic_.gradient_bytes += push_count * elements * bytes;
    traffic_.parameter_bytes += targets.size() * elements * bytes;
  }
  copy_range(piece, next, piece.end, targets);
}

// -------------------------------------------------------------------------------------------
// Copies

void Parameters::copy_range(const Layout::Piece& piece, std::int64_t begin, std::int64_t end,
                            std::span<std::byte* const> targets) {
  if (begin >= end) return;
  CIRANDA_ASSERT(begin >= piece.begin && end <= piece.end);
  const std::size_t bytes = element_bytes(piece.table);
  const std::size_t size = static_cast<std::size_t>(end - begin) * bytes;
  const std::byte* from =
      values_.data + piece.at + static_cast<std::size_t>(begin - piece.begin) * bytes;
  for (std::byte* const memory : targets) {
    std::memcpy(
        memory + layout_.parameters_at(piece.table) + static_cast<std::size_t>(begin) * bytes, from,
        size);
    traffic_.parameter_bytes += size;
  }
}

void Parameters::read_from(const std::byte* memory) {
  CIRANDA_ASSERT(memory != nullptr);  // I22
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    const std::size_t bytes = element_bytes(piece.table);
    std::memcpy(
        values_.data + piece.at,
        memory + layout_.parameters_at(piece.table) + static_cast<std::size_t>(piece.begin) * bytes,
        static_cast<std::size_t>(piece.end - piece.begin) * bytes);
  }
}

void Parameters::write_to(std::byte* memory) {
  CIRANDA_ASSERT(memory != nullptr);  // I22
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    copy_range(piece, piece.begin, piece.end, {&memory, 1});
  }
}

void Parameters::copy_state(std::size_t table, std::size_t array, std::byte* into) const {
  CIRANDA_ASSERT(array < states_.size());
  copy_table(table, states_[array].data, into);
}

void Parameters::copy_parameters(std::size_t table, std::byte* into) const {
  copy_table(table, values_.data, into);
}

void Parameters::copy_table(std::size_t table, const std::byte* from, std::byte* into) const {
  CIRANDA_ASSERT(table < model_.tables.size());
  const std::size_t bytes = element_bytes(table);
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    if (piece.table != table) continue;
    std::memcpy(into + static_cast<std::size_t>(piece.begin) * bytes, from + piece.at,
                static_cast<std::size_t>(piece.end - piece.begin) * bytes);
  }
}

// A part may have state that others lack: SGD's momentum begins with a push.
bool Parameters::take_over(const Parameters& part) {
  CIRANDA_ASSERT(difference(model_, part.model_).empty());
  for (std::size_t table = 0; table < model_.tables.size(); ++table) {
    const kernels::UpdateRule& theirs = part.model_.tables[table].rule;
    kernels::UpdateRule& own = model_.tables[table].rule;
    if (kernels::state_count(own) < kernels::state_count(theirs)) own.momentum = theirs.momentum;
  }
  while (states_.size() < part.states_.size()) states_.emplace_back(layout_.share_bytes(server_));
  if (!has_memory()) return false;
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
      std::memcpy(values_.data + to, part.values_.data + from, size);
      for (std::size_t i = 0; i < part.states_.size(); ++i) {
        std::memcpy(states_[i].data + to, part.states_[i].data + from, size);
      }
    }
  }
  for (std::size_t i = 0; i < steps_.size(); ++i) steps_[i] = std::max(steps_[i], part.steps_[i]);
  return true;
}

// -------------------------------------------------------------------------------------------
// Saved state

void Parameters::save(Writer& out) const {
  out.varint(steps_.size());
  for (const std::int64_t steps : steps_) out.varint(static_cast<std::uint64_t>(steps));
}

void Parameters::restore(Reader& in) {
  if (in.count("shard.steps", kSlotsMax, 1) != steps_.size()) in.fail("shard.steps", "are others");
  for (std::int64_t& steps : steps_) {
    steps = static_cast<std::int64_t>(in.varint("shard.steps", kStepsMax));
  }
}

Parameters::Arrays Parameters::arrays() {
  const std::uint64_t bytes = layout_.share_bytes(server_);
  Arrays arrays = {{values_.data, bytes}};
  for (const ZeroArray& state : states_) arrays.emplace_back(state.data, bytes);
  return arrays;
}

std::uint64_t Parameters::held_bytes() const {
  std::uint64_t bytes = 0;
  for (const Layout::Piece& piece : layout_.pieces(server_)) {
    const std::uint64_t arrays = 1 + kernels::state_arrays(model_.tables[piece.table].rule).size();
    bytes +=
        arrays * static_cast<std::uint64_t>(piece.end - piece.begin) * element_bytes(piece.table);
  }
  return bytes;
}

}  // namespace ciranda::ps
