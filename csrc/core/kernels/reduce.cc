#include "core/kernels/reduce.h"

#include <cstring>

#include "core/base/assert.h"
#include "core/kernels/variants.h"

namespace ciranda::kernels {
namespace {

const Variant& best_variant() {
  for (const Variant& variant : variants()) {
    if (variant.available()) return variant;
  }
  CIRANDA_UNREACHABLE();
}

}  // namespace

const Variant& chosen_variant() {
  static const Variant& variant = best_variant();
  return variant;
}

void reduce(const ReduceArgs& args, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count) {
  CIRANDA_ASSERT(!inputs.empty() && inputs.size() <= static_cast<std::size_t>(kLocalRanksMax));
  CIRANDA_ASSERT(!outputs.empty());
  const bool only_copies = inputs.size() == 1 && args.prescale == 1.0 && args.postscale == 1.0;
  if (only_copies) {
    for (std::byte* output : outputs) {
      if (output != inputs[0]) copy(output, inputs[0], count * dtype_bytes(args.dtype));
    }
    return;
  }
  chosen_variant().loops->reduce({.dtype = args.dtype,
                                  .op = args.op,
                                  .prescale = args.prescale,
                                  .postscale = args.postscale,
                                  .inputs = inputs.data(),
                                  .input_count = inputs.size(),
                                  .outputs = outputs.data(),
                                  .output_count = outputs.size(),
                                  .count = count});
}

void scale(DType dtype, std::byte* data, std::size_t count, double factor) {
  const std::byte* const inputs[] = {data};
  std::byte* const outputs[] = {data};
  reduce({.dtype = dtype, .op = ReduceOp::kSum, .prescale = factor}, inputs, outputs, count);
}

void cast(DType from_dtype, const std::byte* from, DType to_dtype, std::byte* to, std::size_t count,
          double factor) {
  CIRANDA_ASSERT(is_floating(from_dtype) && is_floating(to_dtype));
  if (from_dtype == to_dtype && factor == 1.0) {
    copy(to, from, count * dtype_bytes(to_dtype));
    return;
  }
  chosen_variant().loops->cast({.from_dtype = from_dtype,
                                .from = from,
                                .to_dtype = to_dtype,
                                .to = to,
                                .count = count,
                                .factor = factor});
}

void add_arrived(const AddArrivedArgs& args, const std::byte* own, const std::byte* arrived,
                 std::span<std::byte* const> outputs, std::size_t count) {
  CIRANDA_ASSERT(!outputs.empty());
  chosen_variant().loops->add_arrived({.wire_dtype = args.wire_dtype,
                                       .own_rounded = args.own_rounded,
                                       .result_rounded = args.result_rounded,
                                       .postscale = args.postscale,
                                       .own = own,
                                       .arrived = arrived,
                                       .outputs = outputs.data(),
                                       .output_count = outputs.size(),
                                       .count = count});
}

void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  // Above this the copy would push out of the caches more than it can leave there.
  constexpr std::size_t kPastCachesBytesMin = std::size_t{4} << 20;
  if (bytes >= kPastCachesBytesMin) {
    chosen_variant().loops->copy_past_caches(to, from, bytes);
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

const char* instruction_set() {
  return chosen_variant().name;
}

}  // namespace ciranda::kernels
