#include "core/engine/tensor_table.h"

#include <utility>

#include "core/base/assert.h"

namespace ciranda {

std::uint32_t TensorTable::insert(Submission&& submission) {
  ++used_;
  if (free_.empty()) {
    slots_.emplace_back(std::move(submission));
    return static_cast<std::uint32_t>(slots_.size() - 1);
  }
  const std::uint32_t token = free_.back();
  free_.pop_back();
  CIRANDA_ASSERT(token < slots_.size() && !slots_[token]);
  slots_[token] = std::move(submission);
  return token;
}

const Submission* TensorTable::find(std::uint32_t token) const {
  if (token >= slots_.size() || !slots_[token]) return nullptr;
  return &*slots_[token];
}

Submission* TensorTable::find(std::uint32_t token) {
  return const_cast<Submission*>(std::as_const(*this).find(token));
}

void TensorTable::erase(std::uint32_t token) {
  CIRANDA_ASSERT(find(token) != nullptr);
  slots_[token].reset();
  free_.push_back(token);
  --used_;
  CIRANDA_ASSERT(used_ + free_.size() == slots_.size());
}

std::vector<std::uint32_t> TensorTable::tokens() const {
  std::vector<std::uint32_t> used;
  for (std::uint32_t token = 0; token < slots_.size(); ++token) {
    if (slots_[token]) used.push_back(token);
  }
  return used;
}

}  // namespace ciranda
