#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace ciranda {

// Two counters for each slot of a bucket: how many ranks had a dense gradient in this step, and how
// many a sparse one. They lie in the arena, are reduced with the gradients and have the gradients'
// dtype. Only whether a counter is zero matters, which survives averaging and rounding.
//
// Not thread-safe; belongs to a Bucket.
class UsedCounters {
 public:
  UsedCounters(c10::ScalarType dtype, std::size_t slots) : dtype_(dtype), slots_(slots) {}

  std::int64_t elements() const { return 2 * static_cast<std::int64_t>(slots_); }
  // Puts the counters into `memory`, from element `begin` on.
  void move_to(std::byte* memory, std::int64_t begin);

  // Sets this rank's counters of a slot.
  void write(std::size_t slot, bool dense, bool sparse);
  // Return true if any rank had such a gradient. Valid after the reduction; the answer is the same
  // on every rank.
  bool dense_anywhere(std::size_t slot) const { return counter(slot) > 0; }
  bool sparse_anywhere(std::size_t slot) const { return counter(slots_ + slot) > 0; }

  // Returns true if any rank had a dense gradient. For use before the counters are reduced. `arena`
  // has the memory of every rank. Any thread may call it.
  bool dense_in(std::span<std::byte* const> arena, std::size_t slot) const;
  // Makes each counter between two bytes of the arena non-zero on every rank if it is non-zero on
  // any. Other ranks may read the counter at the same time, and see the same result before and
  // after.
  void join(std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> arena) const;

 private:
  double counter(std::size_t index) const;
  void set_counter(std::size_t index, bool value);
  std::size_t offset(std::size_t index) const;
  std::size_t exponent_offset(std::size_t index) const;

  const c10::ScalarType dtype_;
  const std::size_t slots_;
  std::byte* memory_ = nullptr;
  std::size_t begin_ = 0;  // in elements
};

}  // namespace ciranda
