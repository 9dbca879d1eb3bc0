// A shard's tables of rows.
#include <cstring>
#include <string>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/journal.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/shard.h"

namespace ciranda::ps {

Status Shard::check_rows(std::size_t table, std::span<const std::uint64_t> rows) const {
  if (!given_ || table >= rows_.size()) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "there is no table " + std::to_string(table) +
                         " of rows, or it has not been declared yet"};
  }
  return rows_[table].check(rows);
}

// Only a table with `given` takes initial values. Other pushes need rows that are_there().
Status Shard::check_push(const PushRows& push, std::span<const std::uint64_t> rows) const {
  CIRANDA_TRY(check_rows(push.table, rows));
  const RowShare& share = rows_[push.table];
  if (!has_state_for(push.rule, share.table().rule) ||
      !kernels::rests_without_gradient(push.rule)) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "a push of rows has an update rule that needs other state"};
  }
  if (!push.begins) return share.are_there(rows);
  if (share.table().given) return {};
  return Error{.code = ErrorCode::kInvalidArgument,
               .text = "the table '" + share.table().name +
                       "' initializes its rows itself, so a push cannot set them"};
}

Status Shard::pull_rows(std::size_t table, std::span<const std::uint64_t> rows, std::byte* into) {
  CIRANDA_TRY(check_rows(table, rows));
  CIRANDA_TRY(rows_[table].are_there(rows));
  rows_[table].read(rows, into);
  return {};
}

Status Shard::push_rows(Worker worker, const PushRows& push, std::span<const std::uint64_t> rows,
                        const std::byte* gradients) {
  CIRANDA_TRY(check_push(push, rows));
  if (push.seq <= at(worker).decided_rows) return {};  // decided before
  if (journal_ != nullptr) {
    const auto numbers = std::as_bytes(rows);
    journal_->write({.kind = Change::Kind::kRows, .worker = worker, .rows = push},
                    {numbers, {gradients, rows.size() * rows_[push.table].row_bytes()}});
  }
  apply_rows(worker, push, rows, gradients);
  return {};
}

void Shard::apply_rows(Worker worker, const PushRows& push, std::span<const std::uint64_t> rows,
                       const std::byte* gradients) {
  CIRANDA_ASSERT(given_ && push.table < rows_.size());  // by check_push()
  at(worker).decided_rows = push.seq;
  if (push.begins) return rows_[push.table].begin(rows, gradients);
  if (!row_parts_.add(push.of)) return;
  rows_[push.table].update(rows, gradients, push.rule, push.scale);
}

// Replays a change that push_rows() has written.
Status Shard::repeat_rows(const Change& change, std::span<const std::byte> data) {
  const PushRows& push = change.rows;
  const std::size_t bytes = push.count * sizeof(std::uint64_t);
  const bool whole = push.table < rows_.size() && data.size() >= bytes &&
                     data.size() - bytes == push.count * rows_[push.table].row_bytes() &&
                     static_cast<std::size_t>(change.worker) < members_.size();
  std::vector<std::uint64_t> rows(whole ? push.count : 0);
  if (!rows.empty()) std::memcpy(rows.data(), data.data(), bytes);
  if (!whole || !check_push(push, rows)) {
    return Error{.code = ErrorCode::kMalformed, .text = "a stored change has other rows"};
  }
  apply_rows(change.worker, push, rows, data.data() + bytes);
  return {};
}

}  // namespace ciranda::ps
