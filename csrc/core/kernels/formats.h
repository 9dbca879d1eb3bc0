#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernels/vectors.h"

// The layout of elements in memory, and the vector in which they are computed, for an instruction
// set `Isa` (reduce_portable.cc shows its members). Anonymous for the same reason as vectors.h.
namespace ciranda::kernels {
namespace {

template <class Isa, class T>
struct Plain {
  using Element = T;
  using Vec = Vector<T, Isa::kVectorBytes>;
  using Stored = Vec;
  static constexpr std::size_t kElementBytes = sizeof(T);
  static constexpr std::size_t kLanes = Isa::kVectorBytes / sizeof(T);
  static Vec load(const std::byte* from) { return load_vector<Vec>(from); }
  static Stored pack(Vec vec) { return vec; }
};

template <class Isa>
struct Half {
  using Element = float;
  using Vec = Vector<float, Isa::kVectorBytes>;
  using Stored = Vector<std::uint16_t, Isa::kVectorBytes / 2>;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr std::size_t kLanes = Isa::kVectorBytes / sizeof(float);
};

template <class Isa>
struct Float16 : Half<Isa> {
  using typename Half<Isa>::Vec;
  using typename Half<Isa>::Stored;
  static Vec load(const std::byte* from) { return Isa::from_float16(load_vector<Stored>(from)); }
  static Stored pack(Vec vec) { return Isa::to_float16(vec); }
};

template <class Isa>
struct BFloat16 : Half<Isa> {
  using typename Half<Isa>::Vec;
  using typename Half<Isa>::Stored;
  static Vec load(const std::byte* from) { return Isa::from_bfloat16(load_vector<Stored>(from)); }
  static Stored pack(Vec vec) { return Isa::to_bfloat16(vec); }
};

template <class Format>
constexpr std::size_t kVecBytesStored = Format::kLanes* Format::kElementBytes;

template <class Format>
inline typename Format::Vec load_first(const std::byte* from, std::size_t elements) {
  std::byte padded[kVecBytesStored<Format>] = {};
  __builtin_memcpy(padded, from, elements * Format::kElementBytes);
  return Format::load(padded);
}

template <class Format>
inline void store_first(std::byte* to, typename Format::Vec vec, std::size_t elements) {
  const typename Format::Stored packed = Format::pack(vec);
  __builtin_memcpy(to, &packed, elements * Format::kElementBytes);
}

// Loads and stores a whole vector, or only its first elements at the end of an array.
template <class Format>
struct WholeVector {
  using Stored = typename Format::Stored;
  static auto load(const std::byte* from) { return Format::load(from); }
  static void store(std::byte* to, Stored packed) { store_vector(to, packed); }
};

template <class Format>
struct FirstElements {
  using Stored = typename Format::Stored;
  std::size_t elements;
  auto load(const std::byte* from) const { return load_first<Format>(from, elements); }
  void store(std::byte* to, Stored packed) const {
    __builtin_memcpy(to, &packed, elements * Format::kElementBytes);
  }
};

}  // namespace
}  // namespace ciranda::kernels
