#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/assert.h"
#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model.h"
#include "core/ps/decide/rows.h"
#include "core/ps/decide/task_parts.h"
#include "core/wire/codec.h"

namespace ciranda::ps {

// One server's shares of all tables of rows. Each push of rows counts once, by its seq and by its
// part of a task.
//
// Not thread-safe. Never blocks.
class RowTables {
 public:
  // check() must have accepted `model`.
  RowTables(const Model& model, int servers, int server, int workers);
  // Returns false if memory could not be allocated; the object is then unusable.
  bool has_memory() const;

  // Returns the seq of the worker's latest decided push.
  std::uint64_t decided(Worker worker) const {
    CIRANDA_ASSERT(static_cast<std::size_t>(worker) < decided_.size());
    return decided_[static_cast<std::size_t>(worker)];
  }
  // Copies rows to `into`, one after another. `rows`: rows of this server, ascending. An invalid
  // table or row is kInvalidArgument.
  Status pull(std::size_t table, std::span<const std::uint64_t> rows, std::byte* into);
  // Returns an error if the push is invalid.
  Status check(const PushRows& push, std::span<const std::uint64_t> rows) const;
  // Applies a push that check() has accepted and that is not decided. `gradients` has those of the
  // rows one after another; or initial values, if the push begins.
  void push(Worker worker, const PushRows& push, std::span<const std::uint64_t> rows,
            const std::byte* gradients);
  // Applies a push of the journal. `data` has the numbers of its rows and then the gradients.
  // kMalformed: it does not fit these tables.
  Status repeat(Worker worker, const PushRows& push, std::span<const std::byte> data);
  // Returns the bytes of one row's gradients.
  std::size_t row_bytes(std::size_t table) const {
    CIRANDA_ASSERT(table < shares_.size());  // by check()
    return shares_[table].row_bytes();
  }

  // Writes what was decided, and which rows exist. arrays() has their contents.
  void save(Writer& out) const;
  // Restores what save() has written, for the same model and server. The caller then fills
  // arrays(). Sets in.error() if the bytes are invalid.
  void restore(Reader& in);
  std::vector<std::span<std::byte>> arrays();
  // Copies the rows that `part` has of these shares. `part` may be of any number of servers.
  void take_over(const RowTables& part);
  // Bytes of the rows that exist, and of their state.
  std::uint64_t held_bytes() const;

 private:
  Status check(std::size_t table, std::span<const std::uint64_t> rows) const;

  std::vector<RowShare> shares_;        // by table
  std::vector<std::uint64_t> decided_;  // by worker
  TaskParts parts_;
};

}  // namespace ciranda::ps
