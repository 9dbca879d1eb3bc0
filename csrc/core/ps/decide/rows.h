#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/base/zero_array.h"
#include "core/kernels/update_rule.h"
#include "core/ps/decide/model.h"
#include "core/wire/codec.h"

namespace ciranda::ps {

// One server's rows of a table of rows. A row exists once a worker has asked for it or has given
// its values. Other rows take no memory.
//
// Not thread-safe. Never blocks.
class RowShare {
 public:
  // check() must have accepted `table`.
  RowShare(RowTable table, int servers, int server);
  // Returns false if memory could not be allocated; the object is then unusable.
  bool has_memory() const;
  const RowTable& table() const { return table_; }
  std::size_t row_bytes() const { return table_.columns * sizeof(float); }

  // Returns an error unless `rows` are rows of this server, ascending and without duplicates.
  // kInvalidArgument names the first wrong row.
  Status check(std::span<const std::uint64_t> rows) const;
  // Returns an error unless `rows`, which check() has accepted, can be read. kInvalidArgument names
  // a row that no worker has given, in a table with RowTable::given.
  Status are_there(std::span<const std::uint64_t> rows) const;
  // Makes the rows that do not exist yet, with these values. check() has accepted `rows`.
  void begin(std::span<const std::uint64_t> rows, const std::byte* values);
  // Copies rows to `into`, one after another, and makes those that do not exist yet. are_there()
  // has accepted `rows`.
  void read(std::span<const std::uint64_t> rows, std::byte* into);
  // Updates rows, and makes those that do not exist yet. are_there() has accepted `rows`. Their
  // `gradients` lie one after another and are multiplied by `scale`. `rule` has the table's kind.
  void update(std::span<const std::uint64_t> rows, const std::byte* gradients,
              const kernels::UpdateRule& rule, double scale);
  // Returns the number of rows that exist.
  std::uint64_t touched() const { return touched_rows_; }
  // Returns the bytes of these rows and their state.
  std::uint64_t held_bytes() const { return touched_rows_ * row_bytes() * (has_sums_ ? 2 : 1); }

  // Writes which rows exist. arrays() has their contents.
  void save(Writer& out) const;
  // Restores what save() has written, for a share of the same table and server, into a new one. The
  // caller then fills arrays(). Sets in.error() if the bytes are invalid.
  void restore(Reader& in);
  using Arrays = std::vector<std::span<std::byte>>;
  Arrays arrays();
  // Copies the rows that `part` has of this share. `part` may be of any number of servers.
  void take_over(const RowShare& part);

 private:
  // Rows are saved in blocks of this size. Blocks without an existing row are left out.
  static constexpr std::uint64_t kBlockRows = 4096;
  static constexpr std::uint64_t kBlockWords = kBlockRows / 64;

  std::uint64_t local(std::uint64_t row) const { return row / servers_; }
  float* values(std::uint64_t local_row) {
    return reinterpret_cast<float*>(values_.data) + local_row * table_.columns;
  }
  float* sums(std::uint64_t local_row) {
    return reinterpret_cast<float*>(sums_.data) + local_row * table_.columns;
  }
  bool is_touched(std::uint64_t local_row) const {
    return (words()[local_row / 64] >> (local_row % 64) & 1) != 0;
  }
  // Marks the row as existing. Returns false if it was already.
  bool touch(std::uint64_t local_row);
  void make(std::uint64_t row);
  void begin_sums(std::uint64_t local_row);
  bool block_is_touched(std::uint64_t block) const;
  std::uint64_t* words() const { return reinterpret_cast<std::uint64_t*>(touched_.data); }
  std::uint64_t share_bytes() const { return local_rows_ * row_bytes(); }

  const RowTable table_;
  const std::uint64_t servers_;
  const std::uint64_t server_;
  const std::uint64_t local_rows_;
  const bool has_sums_;  // Adagrad's
  ZeroArray values_;
  ZeroArray sums_;
  const std::uint64_t blocks_;
  ZeroArray touched_;  // one bit per row, rounded up to whole blocks
  std::uint64_t touched_rows_ = 0;
};

}  // namespace ciranda::ps
