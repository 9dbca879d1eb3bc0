#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/engine/submission_queue.h"

namespace ciranda {

// What this rank has submitted and not yet finished, by the token that travels in its Requests.
// Owned by whoever drives the engine.
class TensorTable {
 public:
  std::uint32_t insert(Submission&& submission);
  // Null for a token that is not in use: it came over the wire.
  Submission* find(std::uint32_t token);
  const Submission* find(std::uint32_t token) const;
  void erase(std::uint32_t token);
  std::vector<std::uint32_t> tokens() const;
  bool empty() const { return used_ == 0; }

 private:
  std::vector<std::optional<Submission>> slots_;
  std::vector<std::uint32_t> free_;
  std::size_t used_ = 0;
};

}  // namespace ciranda
