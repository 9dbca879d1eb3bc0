#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/assert.h"
#include "core/kernels/formats.h"
#include "core/kernels/variants.h"
#include "core/kernels/vector_ops.h"
#include "core/kernels/vectors.h"

// The loops of reduce() for an instruction set `Isa` (formats.h). Anonymous for the same reason as
// vectors.h.
namespace ciranda::kernels {
namespace {

template <class Format, template <class> class Op, bool kScaled>
class ReduceLoop {
 public:
  explicit ReduceLoop(const Reduction& reduction)
      : r_(reduction), prescale_(reduction.prescale), postscale_(reduction.postscale) {}

  void run() const {
    constexpr std::size_t kLanes = Format::kLanes;
    std::size_t i = 0;
    for (; i + kVecsPerStrip * kLanes <= r_.count; i += kVecsPerStrip * kLanes) {
      reduce_strip<kVecsPerStrip>(i);
    }
    for (; i + kLanes <= r_.count; i += kLanes) reduce_strip<1>(i);
    if (i < r_.count) reduce_rest(i, r_.count - i);
  }

 private:
  using Vec = typename Format::Vec;
  // Enough vectors to overlap their additions, few enough to stay in 16 registers.
  static constexpr std::size_t kVecsPerStrip = 4;

  // All inputs of a strip are read before any output of it is written: they may be the same memory.
  template <std::size_t kVecs>
  void reduce_strip(std::size_t first_element) const {
    const std::size_t offset = first_element * Format::kElementBytes;
    Vec so_far[kVecs];
    for (std::size_t v = 0; v < kVecs; ++v) {
      so_far[v] = prescaled(Format::load(r_.inputs[0] + offset + v * kVecBytesStored<Format>));
    }
    for (std::size_t input = 1; input < r_.input_count; ++input) {
      const std::byte* from = r_.inputs[input] + offset;
      for (std::size_t v = 0; v < kVecs; ++v) {
        const Vec next = prescaled(Format::load(from + v * kVecBytesStored<Format>));
        so_far[v] = Op<Format>::combine(so_far[v], next);
      }
    }
    typename Format::Stored packed[kVecs];  // once for all outputs
    for (std::size_t v = 0; v < kVecs; ++v) packed[v] = Format::pack(postscaled(so_far[v]));
    for (std::size_t output = 0; output < r_.output_count; ++output) {
      std::byte* to = r_.outputs[output] + offset;
      for (std::size_t v = 0; v < kVecs; ++v) {
        store_vector(to + v * kVecBytesStored<Format>, packed[v]);
      }
    }
  }

  // Reduces fewer elements than a vector has lanes.
  void reduce_rest(std::size_t first_element, std::size_t elements) const {
    const std::size_t offset = first_element * Format::kElementBytes;
    Vec so_far = prescaled(load_first<Format>(r_.inputs[0] + offset, elements));
    for (std::size_t input = 1; input < r_.input_count; ++input) {
      const Vec next = prescaled(load_first<Format>(r_.inputs[input] + offset, elements));
      so_far = Op<Format>::combine(so_far, next);
    }
    so_far = postscaled(so_far);
    for (std::size_t output = 0; output < r_.output_count; ++output) {
      store_first<Format>(r_.outputs[output] + offset, so_far, elements);
    }
  }

  Vec prescaled(Vec vec) const {
    if constexpr (kScaled) return prescale_(vec);
    return vec;
  }
  Vec postscaled(Vec vec) const {
    if constexpr (kScaled) return postscale_(vec);
    return vec;
  }

  const Reduction r_;
  const Scale<Format> prescale_;
  const Scale<Format> postscale_;
};

template <class Format, template <class> class Op>
void reduce_format_op(const Reduction& reduction) {
  if (reduction.prescale == 1.0 && reduction.postscale == 1.0) {
    ReduceLoop<Format, Op, /*kScaled=*/false>(reduction).run();
  } else {
    ReduceLoop<Format, Op, /*kScaled=*/true>(reduction).run();
  }
}

template <class Format>
void reduce_format(const Reduction& reduction) {
  switch (reduction.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return reduce_format_op<Format, Sum>(reduction);
    case ReduceOp::kMin:
      return reduce_format_op<Format, Min>(reduction);
    case ReduceOp::kMax:
      return reduce_format_op<Format, Max>(reduction);
    case ReduceOp::kProduct:
      return reduce_format_op<Format, Product>(reduction);
    case ReduceOp::kAdasum:
      break;  // not computed element by element
  }
  CIRANDA_UNREACHABLE();
}

template <class Isa>
void reduce_loops(const Reduction& reduction) {
  switch (reduction.dtype) {
    case DType::kUInt8:
      return reduce_format<Plain<Isa, std::uint8_t>>(reduction);
    case DType::kInt8:
      return reduce_format<Plain<Isa, std::int8_t>>(reduction);
    case DType::kInt32:
      return reduce_format<Plain<Isa, std::int32_t>>(reduction);
    case DType::kInt64:
      return reduce_format<Plain<Isa, std::int64_t>>(reduction);
    case DType::kFloat16:
      return reduce_format<Float16<Isa>>(reduction);
    case DType::kBFloat16:
      return reduce_format<BFloat16<Isa>>(reduction);
    case DType::kFloat32:
      return reduce_format<Plain<Isa, float>>(reduction);
    case DType::kFloat64:
      return reduce_format<Plain<Isa, double>>(reduction);
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      break;  // refused by check_limits
  }
  CIRANDA_UNREACHABLE();
}

}  // namespace
}  // namespace ciranda::kernels
