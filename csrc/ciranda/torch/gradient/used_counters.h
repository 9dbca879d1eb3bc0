#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace ciranda {

// Two counters for each slot of a bucket: how many ranks had a dense gradient in this step, and how
// many a sparse one. They lie in the arena, are reduced with the gradients, and are numbers of
// their dtype: only "is it zero" is asked of them, which survives averaging and rounding.
//
// Not thread-safe; belongs to a Bucket.
class UsedCounters {
 public:
  UsedCounters(c10::ScalarType dtype, std::size_t slots) : dtype_(dtype), slots_(slots) {}

  std::int64_t elements() const { return 2 * static_cast<std::int64_t>(slots_); }
  // They lie from element `begin` of `memory` on.
  void move_to(std::byte* memory, std::int64_t begin);

  // Of this rank.
  void write(std::size_t slot, bool dense, bool sparse);
  // Once they are reduced: of any rank, the same answer on every rank.
  bool dense_anywhere(std::size_t slot) const { return counter(slot) > 0; }
  bool sparse_anywhere(std::size_t slot) const { return counter(slots_ + slot) > 0; }

  // Before they are reduced, in the arena of every rank, by any thread: whether a rank had a dense
  // gradient.
  bool dense_in(std::span<std::byte* const> arena, std::size_t slot) const;
  // Those between two bytes of the arena: each becomes non-zero everywhere if it is so anywhere.
  // Other ranks may look at it at the same time, and find the same before and after.
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
