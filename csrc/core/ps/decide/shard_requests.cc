#include "core/ps/decide/shard_requests.h"

#include <cstring>
#include <string>
#include <variant>

#include "core/base/assert.h"
#include "core/ps/decide/refusal.h"

namespace ciranda::ps {
namespace {

Result<Message> fetch_state(const Shard& shard, const FetchState& message,
                            const Attached& attached) {
  const auto& tables = shard.model().tables;
  if (message.table >= tables.size() ||
      message.array >= kernels::state_arrays(tables[message.table].rule).size()) {
    return refused(ErrorCode::kMalformed,
                   "a worker asked for state that the optimizer does not have");
  }
  const auto elements = static_cast<std::uint64_t>(shard.layout().elements(message.table));
  const auto memory = attached.memory(elements * dtype_bytes(tables[message.table].dtype));
  if (!memory) return memory.error();
  shard.parameters().copy_state(message.table, message.array, memory.value());
  return Message(Fetched{});
}

Result<Message> fetch_steps(const Shard& shard, const Attached& attached) {
  const auto steps = shard.parameters().steps();
  const auto memory = attached.memory(steps.size_bytes());
  if (!memory) return memory.error();
  std::memcpy(memory.value(), steps.data(), steps.size_bytes());
  return Message(Fetched{});
}

// -------------------------------------------------------------------------------------------
// Tables of rows

// The numbers of rows, copied, and the memory that follows them in the message.
struct Rows {
  std::vector<std::uint64_t> numbers;
  std::byte* data = nullptr;
};

// Copies the numbers, because the worker shares the memory and may change them at any time.
Result<Rows> rows_of(const Shard& shard, std::uint32_t table, std::uint64_t count,
                     const Attached& attached) {
  const auto& tables = shard.model().row_tables;
  if (table >= tables.size()) {
    return refused(ErrorCode::kMalformed,
                   "there is no table " + std::to_string(table) + " of rows");
  }
  Rows rows;
  if (count == 0) return rows;
  const auto memory =
      attached.memory(count * (sizeof(std::uint64_t) + tables[table].columns * sizeof(float)));
  if (!memory) return memory.error();
  rows.numbers.resize(count);
  std::memcpy(rows.numbers.data(), memory.value(), count * sizeof(std::uint64_t));
  rows.data = memory.value() + count * sizeof(std::uint64_t);
  return rows;
}

Result<Message> pull_rows(Shard& shard, const PullRows& message, const Attached& attached) {
  const auto rows = rows_of(shard, message.table, message.count, attached);
  if (!rows) return rows.error();
  CIRANDA_TRY(shard.pull_rows(message.table, rows.value().numbers, rows.value().data));
  return Message(RowsRead{});
}

Result<Message> push_rows(Shard& shard, Worker worker, const PushRows& message,
                          const Attached& attached) {
  const auto rows = rows_of(shard, message.table, message.count, attached);
  if (!rows) return rows.error();
  CIRANDA_TRY(shard.push_rows(worker, message, rows.value().numbers, rows.value().data));
  return Message(RowsPushed{});
}

}  // namespace

Result<Message> answer_from(Shard& shard, Worker worker, const Message& message,
                            const Attached& attached) {
  CIRANDA_ASSERT(shard.given());  // I22
  if (const auto* state = std::get_if<FetchState>(&message)) {
    return fetch_state(shard, *state, attached);
  }
  if (std::holds_alternative<FetchSteps>(message)) return fetch_steps(shard, attached);
  if (const auto* rows = std::get_if<PullRows>(&message)) {
    return pull_rows(shard, *rows, attached);
  }
  if (const auto* rows = std::get_if<PushRows>(&message)) {
    return push_rows(shard, worker, *rows, attached);
  }
  return refused(ErrorCode::kMalformed, "a worker sent a message that only servers send");
}

Stats stats_of(const Shard& shard) {
  const PushCounters& counters = shard.counters();
  const Parameters::Traffic& traffic = shard.parameters().traffic();
  return {.version = shard.version(),
          .held_bytes = shard.held_bytes(),
          .outcomes = {counters.outcomes.begin(), counters.outcomes.end()},
          .staleness = {counters.staleness.begin(), counters.staleness.end()},
          .gradient_bytes = traffic.gradient_bytes,
          .parameter_bytes = traffic.parameter_bytes,
          .workers = {}};
}

}  // namespace ciranda::ps
