#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/decide/model.h"
#include "core/ps/io/conversation.h"
#include "core/ps/io/parameter_client.h"
#include "core/ps/io/server_link.h"

namespace ciranda::ps {

// A client's access to tables of rows (Model::row_tables). The client holds no copy of them. Row i
// is on server i modulo the number of servers.
//
// Thread-safe. The calls block until each server asked has answered. `rows`: ascending, each once.
class RowClient {
 public:
  // All arguments must outlive this object. `memory`: for the messages of rows, by server.
  RowClient(Conversation& conversation, const ParameterClient& parameters,
            std::vector<WorkerMemory::Rows>& memory);

  // Copies rows of a table to `into`, one behind the other.
  Status pull(std::size_t table, std::span<const std::uint64_t> rows, float* into)
      EXCLUDES(conversation_.mutex());
  // Updates the rows by the rule. `gradients`: of these rows, one behind the other.
  Status push(std::size_t table, std::span<const std::uint64_t> rows, const float* gradients,
              const kernels::UpdateRule& rule, double scale) EXCLUDES(conversation_.mutex());
  // Sets the rows' first values, for a table with RowTable::given. Rows that have values already
  // keep them.
  Status begin(std::size_t table, std::span<const std::uint64_t> rows, const float* values)
      EXCLUDES(conversation_.mutex());

 private:
  Status lay_out(std::size_t table, std::span<const std::uint64_t> rows)
      REQUIRES(conversation_.mutex());
  Status send(PushRows message, std::span<const std::uint64_t> rows, const float* values)
      REQUIRES(conversation_.mutex());
  const WorkerMemory::Rows& memory_of(int server) const REQUIRES(conversation_.mutex()) {
    CIRANDA_ASSERT(server >= 0 && static_cast<std::size_t>(server) < memory_.size());
    return memory_[static_cast<std::size_t>(server)];
  }
  float* data_of(int server) const REQUIRES(conversation_.mutex()) {
    const WorkerMemory::Rows& rows = memory_of(server);
    CIRANDA_ASSERT(rows.numbers_bytes + rows.rows_bytes <= rows.memory.segment.bytes());
    return reinterpret_cast<float*>(rows.memory.segment.data() + rows.numbers_bytes);
  }

  Conversation& conversation_;
  const ParameterClient& parameters_;
  std::vector<WorkerMemory::Rows>& memory_;
};

}  // namespace ciranda::ps
