// Finds the rule for each slot, and allocates its state.
#include <string>

#include "core/kernels/update_rule.h"
#include "core/ps/decide/shard.h"

namespace ciranda::ps {
namespace {

// The rule that adds gradients to a vector.
const kernels::UpdateRule kAdd{.kind = kernels::RuleKind::kSgd, .lr = 1.0, .maximize = true};

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

Error refused(Worker worker, const std::string& why) {
  return {.code = ErrorCode::kInvalidArgument,
          .text = "a push of worker " + std::to_string(worker) + " " + why};
}

}  // namespace

// Checks that the push fits the model.
Status Shard::check_form(const Push& push) const {
  bool has_state = true;
  const bool of_all =
      each_rule(model_, push, [&](std::size_t table, std::size_t, std::size_t, const auto& rule) {
        has_state = has_state && has_state_for(rule, model_.tables[table].rule);
      });
  if (!of_all || push.used.size() != steps_.size()) {
    return refused(push.worker, "is for another number of parameters");
  }
  if (!has_state) return refused(push.worker, "has an update rule that needs other state");
  return {};
}

// Allocates state for SGD, which has none until a push brings momentum.
Status Shard::begin_states(const Push& push) {
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

std::vector<Shard::RuleRun> Shard::runs_of(std::size_t table, const Update& update,
                                           const Used& used) const {
  const Push& push = *update.pushes.front();
  const bool adds = push.into != kParametersVector;
  std::vector<RuleRun> runs;
  each_rule(model_, push,
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

}  // namespace ciranda::ps
