// Compiled with its own options (kernels.cmake) and run only where variants_x86.cc allows it.
#include <immintrin.h>

#include "core/kernels/add_arrived_loops.h"
#include "core/kernels/cast_loops.h"
#include "core/kernels/reduce_loops.h"
#include "core/kernels/square_loops.h"
#include "core/kernels/update_loops.h"

namespace ciranda::kernels {
namespace {

constexpr std::size_t kBytes = 32;

struct Avx2Lanes : ConvertLanes<kBytes> {
  static Words widen(Halves halves) {
    return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
  }
  // The words are below 2^16.
  static Halves narrow(Words words) {
    const auto wide = reinterpret_cast<__m256i>(words);
    const __m256i packed = _mm256_packus_epi32(wide, wide);  // within each 128 bits
    const __m256i joined = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
    return reinterpret_cast<Halves>(_mm256_castsi256_si128(joined));
  }
};

struct Avx2 : HalfBits<Avx2Lanes> {
  static constexpr std::size_t kVectorBytes = kBytes;
  using Doubles = Vector<double, kBytes>;

  static Floats from_float16(Halves halves) {
    return reinterpret_cast<Floats>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(halves)));
  }
  static Halves to_float16(Floats floats) {
    return reinterpret_cast<Halves>(_mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT));
  }

  static Doubles to_doubles(__m128 floats) { return _mm256_cvtps_pd(floats); }
  static Floats sqrt(Floats floats) { return _mm256_sqrt_ps(floats); }
  static Doubles sqrt(Doubles doubles) { return _mm256_sqrt_pd(doubles); }
};

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLineBytes = 64;
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  std::size_t i = misaligned == 0 ? 0 : kLineBytes - misaligned;
  if (i > bytes) i = bytes;
  __builtin_memcpy(to, from, i);
  for (; i + kLineBytes <= bytes; i += kLineBytes) {
    const auto low = load_vector<__m256i>(from + i);
    const auto high = load_vector<__m256i>(from + i + 32);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), high);
  }
  _mm_sfence();  // streamed stores are not ordered before a later flag that says "copied"
  __builtin_memcpy(to + i, from + i, bytes - i);
}

}  // namespace

const Loops kAvx2Loops = {.reduce = reduce_loops<Avx2>,
                          .cast = cast_loops<Avx2>,
                          .add_arrived = add_arrived_loops<Avx2>,
                          .copy_past_caches = copy_past_caches,
                          .update = update_loops<Avx2>,
                          .sum_of_squares = sum_of_squares_loops<Avx2>};

}  // namespace ciranda::kernels
