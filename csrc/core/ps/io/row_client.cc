#include "core/ps/io/row_client.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace ciranda::ps {

namespace {

// Returns true if memory of `bytes` bytes should be reused for a message that needs `needed`.
bool fits(std::size_t bytes, std::size_t needed) {
  constexpr std::size_t kKeptBytesMax = std::size_t{16} << 20;
  return needed <= bytes && bytes <= std::max(kKeptBytesMax, 2 * needed);
}

}  // namespace

RowClient::RowClient(Conversation& conversation, const ParameterClient& parameters,
                     std::vector<WorkerMemory::Rows>& memory)
    : conversation_(conversation), parameters_(parameters), memory_(memory) {}

// Prepares the memory of each server's message, and writes the server's row numbers into it.
Status RowClient::lay_out(std::size_t table, std::span<const std::uint64_t> rows) {
  CIRANDA_TRY(conversation_.settle());
  const Model& model = parameters_.model();
  if (table >= model.row_tables.size()) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "there is no table " + std::to_string(table) +
                         " of rows; make the table before DistributedOptimizer, which declares it"};
  }
  const auto count = static_cast<std::uint64_t>(conversation_.servers());
  std::vector<std::vector<std::uint64_t>> numbers(count);
  for (const std::uint64_t row : rows) numbers[row % count].push_back(row);
  memory_.resize(count);
  for (std::size_t server = 0; server < count; ++server) {
    WorkerMemory::Rows& own = memory_[server];
    own.numbers_bytes = numbers[server].size() * sizeof(std::uint64_t);
    own.rows_bytes = numbers[server].size() * model.row_tables[table].columns * sizeof(float);
    const std::size_t bytes = own.numbers_bytes + own.rows_bytes;
    if (numbers[server].size() > kRowsAtOnceMax) {
      return Error{.code = ErrorCode::kLimit,
                   .text = "one call asks for more than " + std::to_string(kRowsAtOnceMax) +
                           " rows of one server"};
    }
    if (bytes == 0) continue;
    if (!fits(own.memory.segment.bytes(), bytes)) {
      own.memory = {};
      auto memory = SharedMemory::create(bytes);
      if (!memory) return memory.error();
      own.memory = std::move(memory).value();
    }
    CIRANDA_ASSERT(bytes <= own.memory.segment.bytes());
    std::memcpy(own.memory.segment.data(), numbers[server].data(), own.numbers_bytes);
  }
  return {};
}

Status RowClient::pull(std::size_t table, std::span<const std::uint64_t> rows, float* into) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(lay_out(table, rows));
  const std::size_t columns = parameters_.model().row_tables[table].columns;
  const int servers = conversation_.servers();
  std::vector<const float*> next;
  for (int server = 0; server < servers; ++server) {
    const std::size_t bytes = memory_of(server).numbers_bytes;
    if (bytes == 0) continue;
    CIRANDA_TRY(conversation_.ask(server, PullRows{.table = static_cast<std::uint32_t>(table),
                                                   .count = bytes / sizeof(std::uint64_t)}));
  }
  for (int server = 0; server < servers; ++server) {
    next.push_back(nullptr);
    if (memory_of(server).numbers_bytes == 0) continue;
    const auto read = conversation_.hear<RowsRead>(server);
    if (!read) return read.error();
    next.back() = data_of(server);
  }
  for (const std::uint64_t row : rows) {
    const float*& from = next[row % next.size()];
    CIRANDA_ASSERT(from != nullptr);  // by lay_out()
    std::memcpy(into, from, columns * sizeof(float));
    from += columns;
    into += columns;
  }
  return {};
}

Status RowClient::push(std::size_t table, std::span<const std::uint64_t> rows,
                       const float* gradients, const kernels::UpdateRule& rule, double scale) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(lay_out(table, rows));
  return send({.table = static_cast<std::uint32_t>(table),
               .scale = scale,
               .rule = rule,
               .of = conversation_.progress().tasks.next_part_of_rows()},
              rows, gradients);
}

Status RowClient::begin(std::size_t table, std::span<const std::uint64_t> rows,
                        const float* values) {
  const MutexLock lock(conversation_.mutex());
  CIRANDA_TRY(lay_out(table, rows));
  return send({.table = static_cast<std::uint32_t>(table),
               .begins = true,
               .rule = parameters_.model().row_tables[table].rule},
              rows, values);
}

// Sends the push to all servers, even to those without any of the rows, so that `seq` is the same
// everywhere; then waits for the answers.
Status RowClient::send(PushRows message, std::span<const std::uint64_t> rows, const float* values) {
  const std::size_t columns = parameters_.model().row_tables[message.table].columns;
  const int servers = conversation_.servers();
  std::vector<float*> next;
  next.reserve(static_cast<std::size_t>(servers));
  for (int server = 0; server < servers; ++server) {
    next.push_back(memory_of(server).numbers_bytes > 0 ? data_of(server) : nullptr);
  }
  for (const std::uint64_t row : rows) {
    float*& to = next[row % next.size()];
    CIRANDA_ASSERT(to != nullptr);  // by lay_out()
    std::memcpy(to, values, columns * sizeof(float));
    to += columns;
    values += columns;
  }
  message.seq = conversation_.progress().pushes.next_of_rows();
  for (int server = 0; server < servers; ++server) {
    message.count = memory_of(server).numbers_bytes / sizeof(std::uint64_t);
    CIRANDA_TRY(conversation_.ask(server, message));
  }
  for (int server = 0; server < servers; ++server) {
    const auto pushed = conversation_.hear<RowsPushed>(server);
    if (!pushed) return pushed.error();
  }
  return {};
}

}  // namespace ciranda::ps
