#include "ciranda/torch/process/row_tables.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <malloc.h>

#include <memory>
#include <span>
#include <utility>

#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/mutex.h"
#include "core/base/zero_array.h"

namespace ciranda {
namespace {

// The tables of this process.
struct RowTables {
  Mutex mutex;
  std::vector<ps::RowTable> tables GUARDED_BY(mutex);
  std::size_t forgotten GUARDED_BY(mutex) = 0;  // tables of servers that this process has left
  bool taken GUARDED_BY(mutex) = false;
  std::int64_t freed GUARDED_BY(mutex) = 0;  // bytes since the last malloc_trim()
};
RowTables row_tables;  // NOLINT: of this process

constexpr std::int64_t kKeptMax = std::int64_t{1} << 25;
constexpr std::int64_t kManyBytes = std::int64_t{1} << 18;

std::span<const std::uint64_t> numbers_of(const at::Tensor& rows) {
  return {static_cast<const std::uint64_t*>(rows.const_data_ptr()),
          static_cast<std::size_t>(rows.numel())};
}

struct Found {
  ps::RowTable table;
  std::size_t number = 0;  // the servers' number of the table
};
Found find(std::size_t table) {
  const MutexLock lock(row_tables.mutex);
  if (table >= row_tables.forgotten) {
    const std::size_t number = table - row_tables.forgotten;
    return {row_tables.tables.at(number), number};
  }
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = "this table or layer was made before shutdown(), for servers that this "
                           "process has left; make a new one"});
}

std::shared_ptr<ps::Client> worker_of(const ps::RowTable& table) {
  return worker_of_servers(table.given ? "Layer" : "Embedding");
}

// Returns zeros; a large tensor has its own pages.
at::Tensor make_rows(std::int64_t rows, std::int64_t columns) {
  const std::int64_t bytes = rows * columns * static_cast<std::int64_t>(sizeof(float));
  if (bytes < kManyBytes) return at::zeros({rows, columns}, at::kFloat);
  auto pages = std::make_shared<ZeroArray>(ZeroArray::sparse(static_cast<std::uint64_t>(bytes)));
  if (pages->data == nullptr) {
    throw Exception({.code = ErrorCode::kSystem,
                     .text = c10::str("there is no memory for ", bytes, " bytes of rows")});
  }
  return at::from_blob(
      pages->data, {rows, columns}, [pages](void*) {}, at::kFloat);
}

}  // namespace

std::size_t add_row_table(ps::RowTable table) {
  (void)worker_of(table);
  const MutexLock lock(row_tables.mutex);
  if (row_tables.taken) {
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = c10::str("the table '", table.name,
                          "' was made after DistributedOptimizer, which has declared all tables to "
                          "the servers; make the table before the optimizer")});
  }
  row_tables.tables.push_back(std::move(table));
  return row_tables.forgotten + row_tables.tables.size() - 1;
}

void forget_row_tables() {
  const MutexLock lock(row_tables.mutex);
  row_tables.forgotten += row_tables.tables.size();
  row_tables.tables.clear();
  row_tables.taken = false;
}

std::vector<ps::RowTable> take_row_tables() {
  const MutexLock lock(row_tables.mutex);
  row_tables.taken = true;
  return row_tables.tables;
}

at::Tensor pull_rows(std::size_t table, const at::Tensor& rows) {
  const at::Tensor numbers = rows.contiguous();
  const Found all = find(table);
  at::Tensor values = make_rows(numbers.numel(), static_cast<std::int64_t>(all.table.columns));
  check(worker_of(all.table)->rows().pull(all.number, numbers_of(numbers),
                                          values.mutable_data_ptr<float>()));
  return values;
}

at::Tensor zero_rows(std::size_t table) {
  const ps::RowTable all = find(table).table;
  return make_rows(static_cast<std::int64_t>(all.rows), static_cast<std::int64_t>(all.columns));
}

void note_freed(std::int64_t bytes) {
  const MutexLock lock(row_tables.mutex);
  row_tables.freed += bytes;
  if (row_tables.freed < kKeptMax) return;
  row_tables.freed = 0;
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

void begin_rows(std::size_t table, const at::Tensor& rows, const at::Tensor& values) {
  const at::Tensor numbers = rows.contiguous();
  const at::Tensor all = values.contiguous();
  const Found found = find(table);
  const auto worker = worker_of(found.table);
  check(worker->rows().begin(found.number, numbers_of(numbers), all.const_data_ptr<float>()));
}

void push_rows(std::size_t table, const at::Tensor& rows, const at::Tensor& gradients, double lr) {
  const Found all = find(table);
  kernels::UpdateRule rule = all.table.rule;
  rule.lr = lr;
  const at::Tensor numbers = rows.contiguous();
  const at::Tensor values = gradients.contiguous();
  check(worker_of(all.table)->rows().push(all.number, numbers_of(numbers),
                                          values.const_data_ptr<float>(), rule, 1.0));
}

}  // namespace ciranda
