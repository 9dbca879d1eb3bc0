#pragma once

#include <cstddef>
#include <cstdint>

// The compilers' own vectors (GCC and clang, any processor): + - * < ?: work on all lanes at once,
// and the bits do not depend on how many lanes there are. Everything is in an anonymous namespace,
// because each includer compiles it for another instruction set.
namespace ciranda::kernels {
namespace {

template <class T, std::size_t kBytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));  // `using` loses the attribute in GCC
};
template <class T, std::size_t kBytes>
using Vector = typename VectorOf<T, kBytes>::Type;

template <class V>
inline V load_vector(const void* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(V));
  return vector;
}

template <class V>
inline void store_vector(void* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof(V));
}

// Lane by lane: correctly rounded on every processor, and with -fno-math-errno one instruction.
template <class V>
inline V square_roots(V vector) {
  for (std::size_t lane = 0; lane < sizeof(V) / sizeof(vector[0]); ++lane) {
    if constexpr (sizeof(vector[0]) == sizeof(float)) {
      vector[lane] = __builtin_sqrtf(vector[lane]);
    } else {
      vector[lane] = __builtin_sqrt(vector[lane]);
    }
  }
  return vector;
}

// Converts between lanes of 16 and of 32 bits. GCC 12's code for this is poor on wide vectors,
// which therefore have their own version.
template <std::size_t kBytes>
struct ConvertLanes {
  using Halves = Vector<std::uint16_t, kBytes / 2>;
  using Words = Vector<std::uint32_t, kBytes>;
  static Words widen(Halves halves) { return __builtin_convertvector(halves, Words); }
  static Halves narrow(Words words) { return __builtin_convertvector(words, Halves); }
};

// Converts the two 16-bit floats by integer arithmetic, with a `Resize` like ConvertLanes. Values
// are rounded to nearest even. A NaN keeps the upper bits of its payload and turns quiet. x86's
// instructions give the same bits.
template <class Resize>
struct HalfBits {
  using Halves = typename Resize::Halves;
  using Words = typename Resize::Words;
  using Floats = Vector<float, sizeof(Words)>;

  static Floats from_bfloat16(Halves halves) {
    return reinterpret_cast<Floats>(Resize::widen(halves) << 16);
  }

  static Halves to_bfloat16(Floats floats) {
    const Words bits = reinterpret_cast<Words>(floats);
    // Half a unit in the last place kept, less one if that place is even: ties go to even.
    const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const Words quiet_nan = (bits >> 16) | 0x40u;
    return Resize::narrow(floats != floats ? quiet_nan : rounded);
  }

  static Floats from_float16(Halves halves) {
    const Words bits = Resize::widen(halves);
    const Words sign = (bits & 0x8000u) << 16;
    const Words magnitude = (bits & 0x7FFFu) << 13;  // exponent and mantissa in their new places
    const Words exponent = magnitude & (0x1Fu << 23);
    const Words normal = magnitude + ((127u - 15u) << 23);
    const Words infinite = magnitude + ((255u - 31u) << 23);
    const Words quiet_bit = reinterpret_cast<Words>(magnitude > (0x1Fu << 23)) & (1u << 22);
    // A subnormal is mantissa * 2^-24; as a normal with that mantissa it is 2^-14 too large.
    const Floats subnormal = reinterpret_cast<Floats>(magnitude + ((127u - 14u) << 23)) - 0x1p-14f;
    const Words is_infinite = reinterpret_cast<Words>(exponent == (0x1Fu << 23));
    const Words is_subnormal = reinterpret_cast<Words>(exponent == 0u);
    return reinterpret_cast<Floats>(sign | (is_infinite & (infinite | quiet_bit)) |
                                    (is_subnormal & reinterpret_cast<Words>(subnormal)) |
                                    (~is_infinite & ~is_subnormal & normal));
  }

  static Halves to_float16(Floats floats) {
    const Words bits = reinterpret_cast<Words>(floats);
    const Words sign = (bits >> 16) & 0x8000u;
    const Words magnitude = bits & 0x7FFF'FFFFu;
    const Words odd = (magnitude >> 13) & 1u;
    const Words normal = (magnitude - ((127u - 15u) << 23) + 0xFFFu + odd) >> 13;
    const Words quiet_nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    // Below 2^-14 the unit is 2^-24, which is that of float32 at 0.5: the addition rounds.
    const Words subnormal =
        reinterpret_cast<Words>(reinterpret_cast<Floats>(magnitude) + 0.5f) - (126u << 23);
    const Words is_nan = reinterpret_cast<Words>(magnitude > (255u << 23));
    const Words is_overflow = reinterpret_cast<Words>(magnitude >= 0x477F'F000u) & ~is_nan;
    const Words is_subnormal = reinterpret_cast<Words>(magnitude < ((127u - 14u) << 23));
    const Words half = (is_nan & quiet_nan) | (is_overflow & 0x7C00u) | (is_subnormal & subnormal) |
                       (~is_nan & ~is_overflow & ~is_subnormal & normal);
    return Resize::narrow(sign | half);
  }
};

}  // namespace
}  // namespace ciranda::kernels
