#include "core/ps/decide/model.h"

#include <set>
#include <string_view>

#include "core/ps/decide/refusal.h"

namespace ciranda::ps {
namespace {

std::string words_of(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

// Returns the number of elements; -1: the shape is invalid or has too many.
std::int64_t bounded_elements(const Shape& shape) {
  if (shape.size() > kDimsMax) return -1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return -1;
    empty = empty || size == 0;
  }
  std::int64_t elements = empty ? 0 : 1;
  for (const std::int64_t size : shape) {
    if (!empty && elements > kElementsMax / size) return -1;
    elements *= size;
  }
  return elements;
}

std::string words_of(const Mode& mode) {
  switch (mode.kind) {
    case ModeKind::kAsync: {
      constexpr std::string_view kPolicies[] = {"apply", "scale", "drop"};
      std::string text = "Async(policy=";
      text += kPolicies[static_cast<std::size_t>(mode.policy)];
      if (mode.max_staleness != kUnboundedStaleness) {
        text += ", max_staleness=" + std::to_string(mode.max_staleness);
      }
      return text + ")";
    }
    case ModeKind::kSsp:
      return "SSP(" + std::to_string(mode.staleness) + ")";
    case ModeKind::kSync:
      return "Sync(backup_workers=" + std::to_string(mode.backup_workers) + ")";
  }
  return "";
}

std::string words_of(const kernels::UpdateRule& rule) {
  std::string text = kernels::facts_of(rule.kind).name;
  const std::size_t states = kernels::state_arrays(rule).size();
  for (std::size_t i = 0; i < states; ++i) {
    text += i == 0 ? " with " : " and ";
    text += kernels::torch_name(kernels::state_arrays(rule)[i]);
  }
  return text;
}

Status check_rows(const RowTable& table) {
  const std::string what = "the table '" + table.name + "'";
  if (table.rows < 1 || table.rows > kRowsMax || table.columns < 1 || table.columns > kColumnsMax) {
    return refused(what + " has " + std::to_string(table.rows) + " rows of " +
                   std::to_string(table.columns) + " numbers; the limit is 2^40 rows of " +
                   std::to_string(kColumnsMax));
  }
  if (!kernels::rests_without_gradient(table.rule)) {
    return refused(what +
                   " needs a rule that changes a row only when it has a gradient: SGD without "
                   "momentum or Adagrad without lr_decay, and without weight_decay");
  }
  return {};
}

std::string difference(const Table& ours, const Table& other) {
  if (ours.dtype != other.dtype) {
    return "parameters of " + std::string(dtype_name(other.dtype)) + " instead of " +
           std::string(dtype_name(ours.dtype));
  }
  if (!has_state_for(other.rule, ours.rule) || !has_state_for(ours.rule, other.rule)) {
    return "the optimizer is " + words_of(other.rule) + " instead of " + words_of(ours.rule);
  }
  if (ours.slots.size() != other.slots.size()) {
    return std::to_string(other.slots.size()) + " parameters instead of " +
           std::to_string(ours.slots.size());
  }
  for (std::size_t i = 0; i < ours.slots.size(); ++i) {
    const Slot& mine = ours.slots[i];
    const Slot& theirs = other.slots[i];
    if (mine.name != theirs.name) {
      return "parameter '" + theirs.name + "' instead of '" + mine.name + "'";
    }
    if (mine.shape != theirs.shape) {
      return "parameter '" + mine.name + "' is " + words_of(theirs.shape) + " instead of " +
             words_of(mine.shape);
    }
  }
  return {};
}

}  // namespace

std::size_t slot_count(const Model& model) {
  std::size_t count = 0;
  for (const Table& table : model.tables) count += table.slots.size();
  return count;
}

std::vector<std::size_t> first_slots(const Model& model) {
  std::vector<std::size_t> first;
  std::size_t slots = 0;
  for (const Table& table : model.tables) {
    first.push_back(slots);
    slots += table.slots.size();
  }
  return first;
}

Status check(const Model& model) {
  if (model.tables.empty() || model.tables.size() > kTablesMax) {
    return refused("parameters of " + std::to_string(model.tables.size()) +
                   " combinations of dtype and update rule; servers hold 1 to " +
                   std::to_string(kTablesMax));
  }
  if (slot_count(model) > kSlotsMax) {
    return refused("the model has more than " + std::to_string(kSlotsMax) + " parameters");
  }
  std::set<std::string_view> names;
  std::int64_t elements = 0;
  for (const Table& table : model.tables) {
    if (!is_floating(table.dtype)) {
      return refused("servers cannot update parameters of " + std::string(dtype_name(table.dtype)));
    }
    for (const Slot& slot : table.slots) {
      if (slot.name.size() > kNameBytesMax) {
        return refused("parameter '" + slot.name.substr(0, 40) + "…' has a name of more than " +
                       std::to_string(kNameBytesMax) + " bytes");
      }
      if (!names.insert(slot.name).second) {
        return refused("parameter '" + slot.name + "' is listed twice");
      }
      const std::int64_t own = bounded_elements(slot.shape);
      if (own < 0 || elements > kElementsMax - own) {
        return refused("parameter '" + slot.name + "' is too large for servers");
      }
      elements += own;
    }
  }
  if (elements == 0) return refused("the parameters have no elements");
  if (model.row_tables.size() > kRowTablesMax) {
    return refused(std::to_string(model.row_tables.size()) +
                   " tables of rows; servers hold at most " + std::to_string(kRowTablesMax));
  }
  for (const RowTable& table : model.row_tables) {
    CIRANDA_TRY(check_rows(table));
    if (table.name.size() > kNameBytesMax || !names.insert(table.name).second) {
      return refused("the table '" + table.name.substr(0, 40) +
                     "' has a name that is too long, or that another parameter or table has");
    }
  }
  return {};
}

bool has_state_for(const kernels::UpdateRule& rule, const kernels::UpdateRule& declared) {
  if (rule.kind != declared.kind) return false;
  const auto own = kernels::state_arrays(rule);
  const auto there = kernels::state_arrays(declared);
  return rule.kind == kernels::RuleKind::kSgd ||
         (own.data() >= there.data() && own.data() + own.size() <= there.data() + there.size());
}

std::string difference(const Model& ours, const Model& other) {
  if (ours.mode != other.mode) {
    return "the mode is " + words_of(other.mode) + " instead of " + words_of(ours.mode);
  }
  if (ours.tables.size() != other.tables.size()) {
    return "parameters of " + std::to_string(other.tables.size()) +
           " combinations of dtype and update rule instead of " +
           std::to_string(ours.tables.size());
  }
  for (std::size_t i = 0; i < ours.tables.size(); ++i) {
    if (std::string text = difference(ours.tables[i], other.tables[i]); !text.empty()) return text;
  }
  if (ours.row_tables.size() != other.row_tables.size()) {
    return std::to_string(other.row_tables.size()) + " tables of rows instead of " +
           std::to_string(ours.row_tables.size());
  }
  for (std::size_t i = 0; i < ours.row_tables.size(); ++i) {
    RowTable theirs = other.row_tables[i];
    theirs.rule.lr = ours.row_tables[i].rule.lr;  // each push brings its own
    if (ours.row_tables[i] == theirs) continue;
    return "the table '" + theirs.name + "' differs from the table '" + ours.row_tables[i].name +
           "'";
  }
  return {};
}

}  // namespace ciranda::ps
