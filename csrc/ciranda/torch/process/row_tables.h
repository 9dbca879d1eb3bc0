#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/ps/decide/model.h"

namespace ciranda {

// Tables of rows on the parameter servers, of which this worker has those that it asks for; see
// ps::RowTable. Of the process. Thread-safe. They throw Exception, and kInvalidArgument where the
// job has no servers.

// Its number. Before DistributedOptimizer is made, which declares it with the parameters.
std::size_t add_row_table(ps::RowTable table);
// Of the servers that this process has left: who uses one hears it.
void forget_row_tables();
// Those that have been added; none can be from here on.
std::vector<ps::RowTable> take_row_tables();
// `rows`: int64, ascending, each once. float32, as many rows. Blocking.
at::Tensor pull_rows(std::size_t table, const at::Tensor& rows);
// Zeros for all rows of a table, float32; many in pages that go back to the system with them.
at::Tensor zero_rows(std::size_t table);
// So many bytes have been freed that malloc had given. What it keeps of large blocks that come and
// go between small ones grows to the size of all of them, so it is told to give that back now and
// then.
void note_freed(std::int64_t bytes);
// What rows begin with, of a table whose rows are given, in place of gradients. Blocking.
void begin_rows(std::size_t table, const at::Tensor& rows, const at::Tensor& values);
// Their gradients, float32, make the rule's step with that learning rate. Blocking.
void push_rows(std::size_t table, const at::Tensor& rows, const at::Tensor& gradients, double lr);

}  // namespace ciranda
