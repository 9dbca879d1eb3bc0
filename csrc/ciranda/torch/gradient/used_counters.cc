#include "ciranda/torch/gradient/used_counters.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

std::atomic_ref<std::byte> byte_at(std::byte* memory, std::size_t offset) {
  return std::atomic_ref(memory[offset]);
}

}  // namespace

void UsedCounters::move_to(std::byte* memory, std::int64_t begin) {
  memory_ = memory;
  begin_ = static_cast<std::size_t>(begin);
}

void UsedCounters::write(std::size_t slot, bool dense, bool sparse) {
  set_counter(slot, dense);
  set_counter(slots_ + slot, sparse);
}

bool UsedCounters::dense_in(std::span<std::byte* const> arena, std::size_t slot) const {
  return std::any_of(arena.begin(), arena.end(), [&](std::byte* memory) {
    return byte_at(memory, exponent_offset(slot)).load(kRelaxed) != std::byte{0};
  });
}

void UsedCounters::join(std::uint64_t begin, std::uint64_t end,
                        std::span<std::byte* const> arena) const {
  for (std::size_t i = 2 * slots_; i-- > 0;) {
    const std::size_t at = exponent_offset(i);
    if (at < begin) break;
    if (at >= end) continue;
    std::byte any{0};
    for (std::byte* memory : arena) any |= byte_at(memory, at).load(kRelaxed);
    for (std::byte* memory : arena) byte_at(memory, at).store(any, kRelaxed);
  }
}

// Returns the offset of a counter in bytes.
std::size_t UsedCounters::offset(std::size_t index) const {
  return (begin_ + index) * c10::elementSize(dtype_);
}

// Returns the offset of the counter's last byte, which has its exponent and is zero only for a
// zero.
std::size_t UsedCounters::exponent_offset(std::size_t index) const {
  return offset(index + 1) - 1;
}

void UsedCounters::set_counter(std::size_t index, bool value) {
  CIRANDA_ASSERT(memory_ != nullptr && index < 2 * slots_);
  std::byte* place = memory_ + offset(index);
  switch (dtype_) {
    case c10::ScalarType::Float: {
      const float one = value ? 1.0F : 0.0F;
      std::memcpy(place, &one, sizeof one);
      break;
    }
    case c10::ScalarType::Double: {
      const double one = value ? 1.0 : 0.0;
      std::memcpy(place, &one, sizeof one);
      break;
    }
    default: {  // float16 and bfloat16
      const std::uint16_t bits = dtype_ == c10::ScalarType::Half ? 0x3c00 : 0x3f80;
      const std::uint16_t one = value ? bits : 0;
      std::memcpy(place, &one, sizeof one);
    }
  }
}

double UsedCounters::counter(std::size_t index) const {
  CIRANDA_ASSERT(memory_ != nullptr && index < 2 * slots_);
  const std::byte* place = memory_ + offset(index);
  switch (dtype_) {
    case c10::ScalarType::Float: {
      float value = 0;
      std::memcpy(&value, place, sizeof value);
      return static_cast<double>(value);
    }
    case c10::ScalarType::Double: {
      double value = 0;
      std::memcpy(&value, place, sizeof value);
      return value;
    }
    default: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, place, sizeof bits);
      return bits == 0 ? 0.0 : 1.0;
    }
  }
}

}  // namespace ciranda
