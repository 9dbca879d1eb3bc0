#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/negotiate/response.h"

namespace ciranda {

// Which ranks keep others waiting, grouped by the set of missing ranks so that a hundred stalled
// tensors with one cause read as one line. Pure; ticks are the caller's (nanoseconds in
// production).
//
// Example: "waiting for rank 1 since 61 s: allreduce 'grad.fc1.weight', 'grad.fc1.bias' and 98
// more; rank 1 has not submitted them. Check that every rank runs the same steps."
// nullopt when nothing has waited for at least `threshold_ticks`.
std::optional<std::string> stall_report(const std::vector<StalledOp>& waiting, std::uint64_t now,
                                        std::uint64_t threshold_ticks,
                                        std::uint64_t ticks_per_second);

}  // namespace ciranda
