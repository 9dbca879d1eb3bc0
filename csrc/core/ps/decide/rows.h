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

// One server's rows of a table. Those that nobody has asked for take no memory.
//
// Not thread-safe. Never blocks.
class RowShare {
 public:
  // `table`: check() has accepted it.
  RowShare(RowTable table, int servers, int server);
  // Else it is of no use.
  bool has_memory() const;
  const RowTable& table() const { return table_; }
  std::size_t row_bytes() const { return table_.columns * sizeof(float); }

  // Whether these are rows of this server, ascending, so that none comes twice. kInvalidArgument
  // names the one that cannot be.
  Status check(std::span<const std::uint64_t> rows) const;
  // Whether they can be asked for. check() has accepted them. kInvalidArgument names one that
  // nobody has given.
  Status are_there(std::span<const std::uint64_t> rows) const;
  // check() has accepted them. Those that are not there yet are, with these values.
  void begin(std::span<const std::uint64_t> rows, const std::byte* values);
  // Those that are_there(). One behind the other into memory of as many rows.
  void read(std::span<const std::uint64_t> rows, std::byte* into);
  // Those that are_there(). The rows' gradients lie one behind the other, and are multiplied by
  // `scale`. `rule`: of the table's kind.
  void update(std::span<const std::uint64_t> rows, const std::byte* gradients,
              const kernels::UpdateRule& rule, double scale);
  // So many have been asked for.
  std::uint64_t touched() const { return touched_rows_; }
  // Their bytes, and those of their state.
  std::uint64_t held_bytes() const { return touched_rows_ * row_bytes() * (has_sums_ ? 2 : 1); }

  // Which rows there are, but for what is in them, which arrays() hold.
  void save(Writer& out) const;
  // What save() has written, of a share of the same table and place; this one is new, and its
  // arrays() are to be filled by the caller.
  void restore(Reader& in);  // what is wrong is in.error()
  using Arrays = std::vector<std::span<std::byte>>;
  Arrays arrays();
  // Its rows are those of `part`, of any number of servers, where that has them.
  void take_over(const RowShare& part);

 private:
  // So many rows are saved together, where one of them is there.
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
  // It is there from here on; false where it was before.
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
  ZeroArray touched_;  // a bit for each row, in whole blocks
  std::uint64_t touched_rows_ = 0;
};

}  // namespace ciranda::ps
