#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/ps/decide/model.h"

namespace ciranda {

// The process's tables of rows on the parameter servers. This worker holds only the rows that it
// fetches; see ps::RowTable. All functions are thread-safe. They throw Exception, with
// kInvalidArgument if the job has no servers.

// Registers a table and returns its number. Must be called before DistributedOptimizer is made,
// which declares the tables with its parameters; throws kInvalidArgument afterwards.
std::size_t add_row_table(ps::RowTable table);
// Forgets all tables, because this process has left the servers. Later uses of their numbers throw
// kInvalidArgument.
void forget_row_tables();
// Returns the registered tables and closes registration.
std::vector<ps::RowTable> take_row_tables();
// Fetches the rows with the numbers `rows`: int64, ascending, without repetitions. Returns float32
// values, one row for each number. Blocks.
at::Tensor pull_rows(std::size_t table, const at::Tensor& rows);
// Returns float32 zeros with the shape of the whole table. A large result has its own pages, which
// return to the system when it is freed.
at::Tensor zero_rows(std::size_t table);
// Counts memory from malloc that was freed, and has malloc return its free memory to the system
// every 32 MiB. Otherwise, if large blocks come and go between small ones, malloc keeps as much
// memory as they take together.
void note_freed(std::int64_t bytes);
// Sends the initial values of rows, for a table with RowTable::given. Blocks.
void begin_rows(std::size_t table, const at::Tensor& rows, const at::Tensor& values);
// Pushes float32 gradients of rows; the servers apply the table's rule with learning rate `lr`.
// Blocks.
void push_rows(std::size_t table, const at::Tensor& rows, const at::Tensor& gradients, double lr);

}  // namespace ciranda
