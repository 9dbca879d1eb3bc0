#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// Two ranks that wait for each other: each has submitted an operation that the other has not.
struct Crossing {
  Rank other = kNoRank;
  std::string mine;    // the name of what the other has not submitted
  std::string theirs;  // the name of what `self` has not submitted
};

// The first such pair of which `self` is one, among operations whose names begin with `scope`. It
// is a deadlock where a rank submits none of them before the one that it has submitted is done.
// Pure.
std::optional<Crossing> find_crossing(const std::vector<StalledOp>& waiting, Rank self,
                                      std::string_view scope);

}  // namespace ciranda
