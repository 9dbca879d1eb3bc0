#include "core/ps/decide/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/base/assert.h"
#include "core/ps/decide/refusal.h"

namespace ciranda::ps {
namespace {

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// Returns a number above 0 and below 1.
double uniform(std::uint64_t random) {
  return (static_cast<double>(random >> 11) + 0.5) * 0x1p-53;
}

// The transform of Box and Muller, 1958.
double normal(std::uint64_t seed, std::uint64_t counter) {
  const std::uint64_t random = mixed(mixed(seed) ^ counter);
  return std::sqrt(-2.0 * std::log(uniform(random))) *
         std::cos(2.0 * std::numbers::pi * uniform(mixed(random)));
}

}  // namespace

RowShare::RowShare(RowTable table, int servers, int server)
    : table_(std::move(table)),
      servers_(static_cast<std::uint64_t>(servers)),
      server_(static_cast<std::uint64_t>(server)),
      local_rows_((table_.rows + servers_ - 1 - server_) / servers_),
      has_sums_(kernels::state_count(table_.rule) > 0),
      values_(ZeroArray::sparse(share_bytes())),
      sums_(ZeroArray::sparse(has_sums_ ? share_bytes() : 0)),
      blocks_((local_rows_ + kBlockRows - 1) / kBlockRows),
      touched_(ZeroArray::sparse(blocks_ * kBlockWords * sizeof(std::uint64_t))) {
  CIRANDA_ASSERT(server_ < servers_);
}

bool RowShare::has_memory() const {
  return values_.data != nullptr && sums_.data != nullptr && touched_.data != nullptr;
}

Status RowShare::check(std::span<const std::uint64_t> rows) const {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::uint64_t row = rows[i];
    if (row >= table_.rows || row % servers_ != server_ || (i > 0 && row <= rows[i - 1])) {
      return refused("row " + std::to_string(row) + " of the table '" + table_.name +
                     "' was requested from server " + std::to_string(server_) +
                     ", out of order or beyond the table's " + std::to_string(table_.rows) +
                     " rows");
    }
  }
  return {};
}

Status RowShare::are_there(std::span<const std::uint64_t> rows) const {
  for (const std::uint64_t row : rows) {
    if (!table_.given || is_touched(local(row))) continue;
    return refused("row " + std::to_string(row) + " of the table '" + table_.name +
                   "' is not on server " + std::to_string(server_) +
                   ": no worker has set it, or it was lost with a server that kept it in memory "
                   "only (see --durability)");
  }
  return {};
}

void RowShare::begin(std::span<const std::uint64_t> rows, const std::byte* values) {
  for (const std::uint64_t row : rows) {
    if (touch(local(row))) {
      std::memcpy(this->values(local(row)), values, row_bytes());
      begin_sums(local(row));
    }
    values += row_bytes();
  }
}

bool RowShare::touch(std::uint64_t local_row) {
  CIRANDA_ASSERT(local_row < local_rows_);  // by check()
  if (is_touched(local_row)) return false;
  words()[local_row / 64] |= std::uint64_t{1} << (local_row % 64);
  ++touched_rows_;
  CIRANDA_ASSERT(touched_rows_ <= local_rows_);
  return true;
}

void RowShare::make(std::uint64_t row) {
  if (!touch(local(row))) return;
  float* const own = values(local(row));
  for (std::uint64_t i = 0; i < table_.columns && table_.deviation != 0.0; ++i) {
    own[i] = static_cast<float>(table_.deviation * normal(table_.seed, row * table_.columns + i));
  }
  begin_sums(local(row));
}

void RowShare::begin_sums(std::uint64_t local_row) {
  if (!has_sums_) return;
  std::fill_n(sums(local_row), table_.columns,
              static_cast<float>(table_.rule.initial_accumulator_value));
}

void RowShare::read(std::span<const std::uint64_t> rows, std::byte* into) {
  for (const std::uint64_t row : rows) {
    make(row);
    std::memcpy(into, values(local(row)), row_bytes());
    into += row_bytes();
  }
}

void RowShare::update(std::span<const std::uint64_t> rows, const std::byte* gradients,
                      const kernels::UpdateRule& rule, double scale) {
  CIRANDA_ASSERT(rule.kind == table_.rule.kind);  // by has_state_for()
  for (const std::uint64_t row : rows) {
    make(row);
    auto* parameters = reinterpret_cast<std::byte*>(values(local(row)));
    auto* state = has_sums_ ? reinterpret_cast<std::byte*>(sums(local(row))) : nullptr;
    kernels::update(rule, {.dtype = DType::kFloat32,
                           .gradient_scale = scale,
                           .gradients = {&gradients, 1},
                           .parameters = {&parameters, 1},
                           .states = {&state, has_sums_ ? 1u : 0u},
                           .gradient_outputs = {},
                           .count = table_.columns});
    gradients += row_bytes();
  }
}

// -------------------------------------------------------------------------------------------
// Saved state

bool RowShare::block_is_touched(std::uint64_t block) const {
  const std::uint64_t* const begin = words() + block * kBlockWords;
  return std::any_of(begin, begin + kBlockWords, [](std::uint64_t word) { return word != 0; });
}

void RowShare::save(Writer& out) const {
  std::uint64_t count = 0;
  for (std::uint64_t block = 0; block < blocks_; ++block)
    count += block_is_touched(block) ? 1u : 0u;
  out.varint(count);
  for (std::uint64_t block = 0; block < blocks_; ++block) {
    if (!block_is_touched(block)) continue;
    out.varint(block);
    for (std::uint64_t i = 0; i < kBlockWords; ++i) out.u64(words()[block * kBlockWords + i]);
  }
}

void RowShare::restore(Reader& in) {
  std::uint64_t next = 0;
  for (std::size_t left = in.count("rows.blocks", blocks_, 1 + kBlockWords * 8); left > 0; --left) {
    const std::uint64_t block = in.varint("rows.block", blocks_ - 1);
    if (block < next) in.fail("rows.block", "is out of turn");
    next = block + 1;
    for (std::uint64_t i = 0; i < kBlockWords && in.ok(); ++i) {
      std::uint64_t& word = words()[block * kBlockWords + i];
      word = in.u64("rows.touched");
      const std::uint64_t first = block * kBlockRows + i * 64;
      const std::uint64_t there = first < local_rows_ ? local_rows_ - first : 0;
      if (there < 64 && word >> there != 0) in.fail("rows.touched", "has rows that are not there");
      touched_rows_ += static_cast<std::uint64_t>(std::popcount(word));
    }
    if (!in.ok()) return;
  }
}

// Adjacent blocks are joined.
RowShare::Arrays RowShare::arrays() {
  Arrays arrays;
  for (std::uint64_t block = 0; block < blocks_; ++block) {
    if (!block_is_touched(block)) continue;
    const std::uint64_t begin = block * kBlockRows;
    while (block + 1 < blocks_ && block_is_touched(block + 1)) ++block;
    const std::uint64_t end = std::min((block + 1) * kBlockRows, local_rows_);
    const auto bytes = static_cast<std::size_t>((end - begin) * row_bytes());
    arrays.emplace_back(reinterpret_cast<std::byte*>(values(begin)), bytes);
    if (has_sums_) arrays.emplace_back(reinterpret_cast<std::byte*>(sums(begin)), bytes);
  }
  return arrays;
}

void RowShare::take_over(const RowShare& part) {
  CIRANDA_ASSERT(part.table_.rows == table_.rows && part.table_.columns == table_.columns &&
                 part.has_sums_ == has_sums_);
  for (std::uint64_t theirs = 0; theirs < part.local_rows_; ++theirs) {
    if (theirs % 64 == 0 && part.words()[theirs / 64] == 0) {
      theirs += 63;  // this word has no existing row
      continue;
    }
    const std::uint64_t row = theirs * part.servers_ + part.server_;
    if (!part.is_touched(theirs) || row % servers_ != server_) continue;
    (void)touch(local(row));
    std::memcpy(values(local(row)), part.values_.data + theirs * row_bytes(), row_bytes());
    if (has_sums_) {
      std::memcpy(sums(local(row)), part.sums_.data + theirs * row_bytes(), row_bytes());
    }
  }
}

}  // namespace ciranda::ps
