#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/negotiate/response.h"

namespace ciranda {

// Says which ranks keep others waiting. Operations with the same missing ranks share a line, so a
// hundred stalled tensors with one cause read as one line. Returns nullopt if nothing has waited
// for at least `threshold_ticks`. Pure; ticks are the caller's (nanoseconds in production).
//
// Example: "waiting for rank 1 for 61 s: allreduce 'grad.fc1.weight', 'grad.fc1.bias' and 98
// more; rank 1 has not submitted them. Check that every rank runs the same steps."
std::optional<std::string> stall_report(const std::vector<StalledOp>& waiting, std::uint64_t now,
                                        std::uint64_t threshold_ticks,
                                        std::uint64_t ticks_per_second);

// Two ranks that wait for each other: each has submitted an operation that the other has not.
struct Crossing {
  Rank other = kNoRank;
  std::string mine;    // name of the operation that `other` has not submitted
  std::string theirs;  // name of the operation that `self` has not submitted
};

// Returns the first crossing of `self` with another rank, among operations whose names begin with
// `scope`. It is a deadlock if ranks wait for each operation of that scope before they submit the
// next. Pure.
std::optional<Crossing> find_crossing(const std::vector<StalledOp>& waiting, Rank self,
                                      std::string_view scope);

}  // namespace ciranda
