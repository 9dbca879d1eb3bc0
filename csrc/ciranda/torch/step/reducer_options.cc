#include "ciranda/torch/step/reducer_options.h"

#include "core/base/assert.h"

namespace ciranda {

RequestSpec reduction_of(const ReducerOptions& options, int ranks) {
  CIRANDA_ASSERT(ranks >= 1);
  RequestSpec spec{.name = options.name,
                   .group = options.group,
                   .op = options.op,
                   .wire_dtype = options.wire_dtype,
                   .streams = options.streams};
  const double factor = options.predivide_factor;
  if (factor != 1.0) {
    spec.op = ReduceOp::kSum;
    spec.prescale = 1.0 / factor;
    spec.postscale = factor / (options.op == ReduceOp::kAverage ? ranks : 1.0);
  }
  return spec;
}

std::optional<DType> wire_dtype_of(Compression compression) {
  if (compression == Compression::kNone) return std::nullopt;
  return compression == Compression::kFloat16 ? DType::kFloat16 : DType::kBFloat16;
}

}  // namespace ciranda
