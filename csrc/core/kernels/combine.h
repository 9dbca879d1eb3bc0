#pragma once

#include <cstddef>
#include <span>

#include "core/base/dtype.h"

namespace ciranda::kernels {

// Dot products and weighted sums of rows of floating-point elements in raw memory, computed in
// double. Every machine gets the same bits.

// Adds to `products` the dot product of each row with itself and with the rows before it, in the
// order of adasum_products().
void add_products(DType dtype, std::span<const std::byte* const> rows, std::size_t count,
                  std::span<double> products);

// out[i] = sum of factors[r] * rows[r][i], rounded once to `dtype`. `out` may be one of the rows.
void weighted_sum(DType dtype, std::span<const std::byte* const> rows,
                  std::span<const double> factors, std::byte* out, std::size_t count);

}  // namespace ciranda::kernels
