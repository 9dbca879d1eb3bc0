// Compiled with its own options (kernels.cmake) and run only where variants_x86.cc allows it.
#include <immintrin.h>

#include "core/kernels/add_arrived_loops.h"
#include "core/kernels/cast_loops.h"
#include "core/kernels/reduce_loops.h"
#include "core/kernels/square_loops.h"
#include "core/kernels/update_loops.h"

namespace ciranda::kernels {
namespace {

constexpr std::size_t kBytes = 64;

// All calls use the forms with a mask that selects every lane. For the forms without a mask, GCC 12
// warns about an uninitialised register in its own header. It is the same instruction.
constexpr __mmask16 kAllLanes = 0xFFFF;

struct Avx512Lanes : ConvertLanes<kBytes> {
  static Words widen(Halves halves) {
    const auto packed = reinterpret_cast<__m256i>(halves);
    return reinterpret_cast<Words>(_mm512_maskz_cvtepu16_epi32(kAllLanes, packed));
  }
  static Halves narrow(Words words) {
    const auto wide = reinterpret_cast<__m512i>(words);
    return reinterpret_cast<Halves>(_mm512_maskz_cvtepi32_epi16(kAllLanes, wide));
  }
};

struct Avx512 : HalfBits<Avx512Lanes> {
  static constexpr std::size_t kVectorBytes = kBytes;
  using Doubles = Vector<double, kBytes>;

  static Floats from_float16(Halves halves) {
    const auto packed = reinterpret_cast<__m256i>(halves);
    return reinterpret_cast<Floats>(_mm512_maskz_cvtph_ps(kAllLanes, packed));
  }
  static Halves to_float16(Floats floats) {
    constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return reinterpret_cast<Halves>(_mm512_maskz_cvtps_ph(kAllLanes, floats, kRounding));
  }

  static Doubles to_doubles(__m256 floats) { return _mm512_maskz_cvtps_pd(0xFF, floats); }
  static Floats sqrt(Floats floats) { return _mm512_maskz_sqrt_ps(kAllLanes, floats); }
  static Doubles sqrt(Doubles doubles) { return _mm512_maskz_sqrt_pd(0xFF, doubles); }
};

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLineBytes = 64;
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  std::size_t i = misaligned == 0 ? 0 : kLineBytes - misaligned;
  if (i > bytes) i = bytes;
  __builtin_memcpy(to, from, i);
  for (; i + kLineBytes <= bytes; i += kLineBytes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), load_vector<__m512i>(from + i));
  }
  _mm_sfence();  // streamed stores are not ordered before a later flag that says "copied"
  __builtin_memcpy(to + i, from + i, bytes - i);
}

}  // namespace

const Loops kAvx512Loops = {.reduce = reduce_loops<Avx512>,
                            .cast = cast_loops<Avx512>,
                            .add_arrived = add_arrived_loops<Avx512>,
                            .copy_past_caches = copy_past_caches,
                            .update = update_loops<Avx512>,
                            .sum_of_squares = sum_of_squares_loops<Avx512>};

}  // namespace ciranda::kernels
