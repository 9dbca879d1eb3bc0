#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/ps/decide/model.h"

namespace ciranda::ps::testing {

inline constexpr std::uint64_t kLeaseNs = 100;
inline constexpr Mode kSync{.kind = ModeKind::kSync};

// Plain SGD with lr 1: on small integers every sum is exact, in any order.
inline kernels::UpdateRule exact_rule() {
  return {.kind = kernels::RuleKind::kSgd, .lr = 1.0};
}

// Tables of float32, one for each list of sizes.
inline Model model_of(const std::vector<std::vector<std::int64_t>>& tables, Mode mode = {},
                      const kernels::UpdateRule& rule = exact_rule()) {
  Model model{.mode = mode, .tables = {}};
  int number = 0;
  for (const std::vector<std::int64_t>& sizes : tables) {
    Table table{.dtype = DType::kFloat32, .rule = rule, .slots = {}};
    for (const std::int64_t size : sizes) {
      table.slots.push_back({.name = "p" + std::to_string(number++), .shape = {size}});
    }
    model.tables.push_back(std::move(table));
  }
  return model;
}

}  // namespace ciranda::ps::testing
