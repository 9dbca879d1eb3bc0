#include "core/kernels/combine.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/kernels/reduce.h"

namespace ciranda::kernels {
namespace {

constexpr std::size_t kBlock = 512;  // elements; blocks of two rows stay in the nearest cache
constexpr std::size_t kSums = 8;     // additions that do not wait for each other

// Elements after `count` are zeros.
using Block = double[kBlock];

void load(DType dtype, const std::byte* from, std::size_t count, Block& block) {
  cast(dtype, from, DType::kFloat64, reinterpret_cast<std::byte*>(block), count);
  std::fill(block + count, block + kBlock, 0.0);
}

double dot(const Block& a, const Block& b) {
  double sums[kSums] = {};
  for (std::size_t i = 0; i < kBlock; i += kSums) {
    for (std::size_t s = 0; s < kSums; ++s) sums[s] += a[i + s] * b[i + s];
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

void add_products(DType dtype, std::span<const std::byte* const> rows, std::size_t count,
                  std::span<double> products) {
  std::vector<Block> blocks(rows.size());
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t elements = std::min(kBlock, count - begin);
    const std::size_t offset = begin * dtype_bytes(dtype);
    std::size_t next = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      load(dtype, rows[row] + offset, elements, blocks[row]);
      for (std::size_t other = 0; other <= row; ++other) {
        products[next++] += dot(blocks[row], blocks[other]);
      }
    }
  }
}

void weighted_sum(DType dtype, std::span<const std::byte* const> rows,
                  std::span<const double> factors, std::byte* out, std::size_t count) {
  Block sum, block;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t elements = std::min(kBlock, count - begin);
    const std::size_t offset = begin * dtype_bytes(dtype);
    std::fill(sum, sum + kBlock, 0.0);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      load(dtype, rows[row] + offset, elements, block);
      for (std::size_t i = 0; i < kBlock; ++i) sum[i] += factors[row] * block[i];
    }
    cast(DType::kFloat64, reinterpret_cast<const std::byte*>(sum), dtype, out + offset, elements);
  }
}

}  // namespace ciranda::kernels
