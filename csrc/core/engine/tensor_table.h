#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/engine/submission_queue.h"

namespace ciranda {

// This rank's unfinished submissions, by the token that travels in their Requests. For the thread
// that has the seat.
class TensorTable {
 public:
  std::uint32_t insert(Submission&& submission);
  // Returns null if the token is not in use: tokens come over the wire.
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
