#include "torch/row_tables.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <span>
#include <utility>

#include "core/base/mutex.h"
#include "torch/error.h"
#include "torch/servers.h"

namespace ciranda {
namespace {

Mutex mutex;                                         // NOLINT
std::vector<ps::RowTable> tables GUARDED_BY(mutex);  // NOLINT: of the process
bool taken GUARDED_BY(mutex) = false;                // NOLINT

std::span<const std::uint64_t> numbers_of(const at::Tensor& rows) {
  return {static_cast<const std::uint64_t*>(rows.const_data_ptr()),
          static_cast<std::size_t>(rows.numel())};
}

ps::RowTable table_of(std::size_t table) {
  const MutexLock lock(mutex);
  return tables.at(table);
}

}  // namespace

std::size_t add_row_table(ps::RowTable table) {
  (void)worker_of_servers("Embedding");
  const MutexLock lock(mutex);
  if (taken) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = c10::str("Embedding: the table '", table.name,
                                      "' comes after DistributedOptimizer, which has told the "
                                      "servers what there is; make it before")});
  }
  tables.push_back(std::move(table));
  return tables.size() - 1;
}

std::vector<ps::RowTable> take_row_tables() {
  const MutexLock lock(mutex);
  taken = true;
  return tables;
}

at::Tensor pull_rows(std::size_t table, const at::Tensor& rows) {
  const auto columns = static_cast<std::int64_t>(table_of(table).columns);
  const at::Tensor numbers = rows.contiguous();
  at::Tensor values = at::empty({numbers.numel(), columns}, at::kFloat);
  check(worker_of_servers("Embedding")
            ->pull_rows(table, numbers_of(numbers), values.mutable_data_ptr<float>()));
  return values;
}

void push_rows(std::size_t table, const at::Tensor& rows, const at::Tensor& gradients, double lr) {
  kernels::UpdateRule rule = table_of(table).rule;
  rule.lr = lr;
  const at::Tensor numbers = rows.contiguous();
  const at::Tensor values = gradients.contiguous();
  check(worker_of_servers("Embedding")
            ->push_rows(table, numbers_of(numbers), values.const_data_ptr<float>(), rule, 1.0));
}

}  // namespace ciranda
