#pragma once

#include <cstddef>
#include <span>

#include "core/base/dtype.h"
#include "core/wire/types.h"

namespace ciranda::kernels {

// Loops over raw memory. They have no state, allocate nothing and are thread-safe. All pointers are
// aligned to the element size at least; `count` is in elements. The instruction set (AVX-512, AVX2
// + F16C, plain C++) is chosen once at run time. Every variant gives the same bits, except for the
// payload of a NaN from arithmetic, which depends on the processor.

// out[d][i] = postscale * op over r of (prescale * inputs[r][i]), for every output d.
// Inputs are combined in the order of the span (rank order), so the result is the same on
// every rank that computes it. float16 and bfloat16 are summed in float32 and rounded once
// (to nearest even); float32 in float32, float64 in float64; integers wrap on overflow.
// A NaN on any rank is the minimum and the maximum. The float8 types are not reduced.
// For ReduceOp::kAverage the caller folds 1/size into `postscale`, so kAverage equals kSum here.
// Integers with a scale: a scale of 1/n (n whole, up to 2^30) divides by n, so that an average is
// the exact quotient; with any other, (x*scale) is computed in double. Both truncate toward zero,
// and what does not fit the type becomes its nearest value.
// An output may be the same memory as any input (exactly the same pointer), but must not overlap
// otherwise. 1 <= inputs.size() <= kLocalRanksMax, 1 <= outputs.size().
struct ReduceArgs {
  DType dtype;
  ReduceOp op;
  double prescale = 1.0;
  double postscale = 1.0;
};
void reduce(const ReduceArgs& args, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count);

// data[i] *= factor, in place, with the same rules for halves and integers.
void scale(DType dtype, std::byte* data, std::size_t count, double factor);

// to[i] = from[i] * factor as the other type, between floating-point types (fp16, bf16, fp32,
// fp64). It is computed in float64 if either type is float64, else in float32, and rounded once to
// nearest even. Overflow gives infinity, and NaN stays NaN. `to` and `from` do not overlap.
void cast(DType from_dtype, const std::byte* from, DType to_dtype, std::byte* to, std::size_t count,
          double factor = 1.0);

// out[d][i] = postscale * (own[i] + arrived[i]), for every output d. `own` and the outputs are
// float32; `arrived` holds a peer's numbers as they came over the network, rounded to `wire_dtype`
// (float16 or bfloat16, to nearest even). `own_rounded`: own[i] is rounded first, to the value that
// the peer received. `result_rounded`: the result is rounded, so that sending it on does not change
// it. An output may be `own`; otherwise nothing overlaps.
struct AddArrivedArgs {
  DType wire_dtype;
  bool own_rounded = false;
  bool result_rounded = false;
  double postscale = 1.0;
};
void add_arrived(const AddArrivedArgs& args, const std::byte* own, const std::byte* arrived,
                 std::span<std::byte* const> outputs, std::size_t count);

// Copies bytes. Sizes that would sweep the caches use non-temporal stores, which are ordered before
// any later store, like those of an ordinary copy.
void copy(std::byte* to, const std::byte* from, std::size_t bytes);

// The instruction set in use: "avx512", "avx2" or "portable".
const char* instruction_set();

}  // namespace ciranda::kernels
