#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "core/plan/schedule.h"
#include "kernels/oracle.h"

namespace ciranda::testing {

// What an allreduce of float32 gives whose messages are rounded to `wire_dtype`: one element at a
// time, without kernels, schedules or messages.
class RoundedSum {
 public:
  RoundedSum(DType wire_dtype, double postscale)
      : layout_(wire_dtype == DType::kFloat16 ? kernels::oracle::kFloat16Layout
                                              : kernels::oracle::kBFloat16Layout),
        postscale_(static_cast<float>(postscale)) {}

  // `inputs` by participant.
  std::vector<float> operator()(const std::vector<std::vector<float>>& inputs,
                                Algorithm algorithm) const {
    std::vector<float> sums;
    for (std::size_t i = 0; i < inputs[0].size(); ++i) {
      std::vector<float> values;
      for (const auto& input : inputs) values.push_back(input[i]);
      const float sum = algorithm == Algorithm::kShort
                            ? doubled(std::move(values))
                            : chained(values, block_of(i, inputs[0].size(), inputs.size()));
      sums.push_back(rounded(sum * postscale_));
    }
    return sums;
  }

 private:
  float rounded(float value) const {
    if (std::isnan(value)) return value;
    const std::uint16_t half = kernels::oracle::encode(layout_, static_cast<double>(value));
    return static_cast<float>(kernels::oracle::decode(layout_, half));
  }

  // Blocks are as equal as whole cache lines allow.
  static std::size_t block_of(std::size_t element, std::size_t elements, std::size_t blocks) {
    const std::size_t lines = (elements + 15) / 16;
    std::size_t block = 0;
    while (block + 1 < blocks && element >= lines * (block + 1) / blocks * 16) ++block;
    return block;
  }

  // Around the ring, from the block's first participant.
  float chained(const std::vector<float>& values, std::size_t first) const {
    float sum = values[first];
    for (std::size_t i = 1; i < values.size(); ++i) {
      sum = rounded(sum) + values[(first + i) % values.size()];
    }
    return sum;
  }

  // Those beyond the largest power of two give theirs away; the others exchange.
  float doubled(std::vector<float> values) const {
    std::size_t core = 1;
    while (2 * core <= values.size()) core *= 2;
    for (std::size_t i = core; i < values.size(); ++i) values[i - core] += rounded(values[i]);
    for (std::size_t distance = 1; distance < core; distance *= 2) {
      for (std::size_t i = 0; i < core; i += 2 * distance) {
        values[i] = rounded(values[i]) + rounded(values[i + distance]);
      }
    }
    return values[0];
  }

  const kernels::oracle::FloatLayout layout_;
  const float postscale_;
};

// Numbers of mixed size and sign, which no 16-bit float holds exactly.
inline std::vector<float> odd_numbers(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  std::vector<float> numbers(count);
  for (float& number : numbers) {
    number = std::ldexp(mantissa(random), static_cast<int>(random() % 12) - 8);
  }
  return numbers;
}

// The same bits, or a NaN in both.
inline bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool nans = std::isnan(a[i]) && std::isnan(b[i]);
    if (!nans && std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace ciranda::testing
