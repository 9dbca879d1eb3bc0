// The reference for the bits: no instruction set but what the compiler may assume anyway.
#include "core/kernels/add_arrived_loops.h"
#include "core/kernels/cast_loops.h"
#include "core/kernels/reduce_loops.h"
#include "core/kernels/square_loops.h"
#include "core/kernels/update_loops.h"

namespace ciranda::kernels {
namespace {

constexpr std::size_t kBytes = 16;

struct Portable : HalfBits<ConvertLanes<kBytes>> {
  static constexpr std::size_t kVectorBytes = kBytes;
  using Doubles = Vector<double, kBytes>;

  static Doubles to_doubles(Vector<float, kBytes / 2> floats) {
    return __builtin_convertvector(floats, Doubles);
  }
  template <class Vec>
  static Vec sqrt(Vec vec) {
    return square_roots(vec);
  }
};

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  __builtin_memcpy(to, from, bytes);
}

}  // namespace

const Loops kPortableLoops = {.reduce = reduce_loops<Portable>,
                              .cast = cast_loops<Portable>,
                              .add_arrived = add_arrived_loops<Portable>,
                              .copy_past_caches = copy_bytes,
                              .update = update_loops<Portable>,
                              .sum_of_squares = sum_of_squares_loops<Portable>};

}  // namespace ciranda::kernels
