#include "core/ps/decide/row_tables.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace ciranda::ps {

RowTables::RowTables(const Model& model, int servers, int server, int workers)
    : decided_(static_cast<std::size_t>(workers)) {
  for (const RowTable& table : model.row_tables) shares_.emplace_back(table, servers, server);
}

bool RowTables::has_memory() const {
  return std::ranges::all_of(shares_, &RowShare::has_memory);
}

Status RowTables::check(std::size_t table, std::span<const std::uint64_t> rows) const {
  if (table < shares_.size()) return shares_[table].check(rows);
  return Error{.code = ErrorCode::kInvalidArgument,
               .text = "there is no table " + std::to_string(table) +
                       " of rows, or it has not been declared yet"};
}

// Only a table with `given` takes initial values. Other pushes need rows that are_there().
Status RowTables::check(const PushRows& push, std::span<const std::uint64_t> rows) const {
  CIRANDA_TRY(check(push.table, rows));
  const RowShare& share = shares_[push.table];
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

Status RowTables::pull(std::size_t table, std::span<const std::uint64_t> rows, std::byte* into) {
  CIRANDA_TRY(check(table, rows));
  CIRANDA_TRY(shares_[table].are_there(rows));
  shares_[table].read(rows, into);
  return {};
}

void RowTables::push(Worker worker, const PushRows& push, std::span<const std::uint64_t> rows,
                     const std::byte* gradients) {
  CIRANDA_ASSERT(push.table < shares_.size());  // by check()
  CIRANDA_ASSERT(static_cast<std::size_t>(worker) < decided_.size());
  decided_[static_cast<std::size_t>(worker)] = push.seq;
  if (push.begins) return shares_[push.table].begin(rows, gradients);
  if (!parts_.add(push.of)) return;
  shares_[push.table].update(rows, gradients, push.rule, push.scale);
}

Status RowTables::repeat(Worker worker, const PushRows& push, std::span<const std::byte> data) {
  const std::size_t bytes = push.count * sizeof(std::uint64_t);
  const bool whole = push.table < shares_.size() && data.size() >= bytes &&
                     data.size() - bytes == push.count * row_bytes(push.table) &&
                     static_cast<std::size_t>(worker) < decided_.size();
  std::vector<std::uint64_t> rows(whole ? push.count : 0);
  if (!rows.empty()) std::memcpy(rows.data(), data.data(), bytes);
  if (!whole || !check(push, rows)) {
    return Error{.code = ErrorCode::kMalformed, .text = "a stored change has other rows"};
  }
  this->push(worker, push, rows, data.data() + bytes);
  return {};
}

// -------------------------------------------------------------------------------------------
// Saved state

void RowTables::save(Writer& out) const {
  parts_.save(out);
  for (const std::uint64_t decided : decided_) out.varint(decided);
  for (const RowShare& share : shares_) share.save(out);
}

void RowTables::restore(Reader& in) {
  parts_.restore(in);
  for (std::uint64_t& decided : decided_) decided = in.varint("shard.decided_rows", UINT64_MAX);
  for (RowShare& share : shares_) share.restore(in);
}

std::vector<std::span<std::byte>> RowTables::arrays() {
  std::vector<std::span<std::byte>> arrays;
  for (RowShare& share : shares_) {
    for (const auto& array : share.arrays()) arrays.push_back(array);
  }
  return arrays;
}

void RowTables::take_over(const RowTables& part) {
  CIRANDA_ASSERT(part.shares_.size() == shares_.size());  // the same model
  for (std::size_t i = 0; i < shares_.size(); ++i) shares_[i].take_over(part.shares_[i]);
}

std::uint64_t RowTables::held_bytes() const {
  std::uint64_t bytes = 0;
  for (const RowShare& share : shares_) bytes += share.held_bytes();
  return bytes;
}

}  // namespace ciranda::ps
