#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/ps/decide/layout.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/beat_thread.h"
#include "core/ps/io/client_options.h"
#include "core/ps/io/conversation.h"
#include "core/ps/io/progress.h"
#include "core/ps/io/server_link.h"
#include "core/ps/io/task_client.h"
#include "core/trace/timeline.h"
#include "core/transport/local/memory_segment.h"

namespace ciranda::ps {

// A worker, or the coordinator, as a client of the servers: its connections to all of them, and the
// memory from which servers read gradients and to which they write parameters. For servers on other
// hosts the data goes through the network. A thread sends beats while the program computes.
//
// Thread-safe: calls run one at a time. A call with an answer blocks until each server asked has
// answered. A reconnect sends the question again, and the server counts no push twice.
// Errors: see Conversation.
class Client {
 public:
  // Connects to all servers and blocks until each has let this client in.
  static Result<std::unique_ptr<Client>> connect(ClientOptions options);
  ~Client();  // calls leave()
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Worker worker() const { return options_.address.worker; }
  int workers() const { return options_.workers; }
  int servers() const { return options_.servers(); }
  // Tells the servers that this worker leaves, so that nobody waits for it any more. Later calls
  // fail; the memory stays. Blocks until servers on other hosts have read that, for some seconds at
  // most. If servers persist their state, and no push is unanswered, it first waits until each
  // server answers a question.
  void leave() EXCLUDES(conversation_.mutex());

  // Tells the servers the model; call it once. `fill` writes this worker's parameters into the
  // memory. On return the memory has the servers' parameters: worker 0's, with all updates since.
  using Fill = std::function<void(const Layout& layout, std::byte* memory)>;
  Status declare(const Model& model, const Fill& fill) EXCLUDES(conversation_.mutex());
  bool declared() const { return declared_; }
  // This worker's memory, as Layout describes it; valid after declare(). Servers read the gradients
  // and write the parameters only between a push and its answer, and in calls that say so.
  std::byte* memory() const { return segment().data(); }
  const MemorySegment& segment() const { return memory_.memory.segment; }  // copies keep it mapped
  // The segment with the gradients: segment(), or the one from move_gradients().
  const MemorySegment& gradients() const { return memory_.gradient_segment(); }
  // Moves the place of the gradients to new memory; the old memory stays as it is.
  Status move_gradients() EXCLUDES(conversation_.mutex());
  const Layout& layout() const {
    CIRANDA_ASSERT(memory_.layout);
    return *memory_.layout;
  }
  // Versions of the parameters in the memory, by server.
  std::vector<std::uint64_t> versions() const EXCLUDES(conversation_.mutex());

  // Sends the gradients to all servers. `versions`: of the parameters that they were computed from.
  // For the other arguments see Push. Blocks for the answers to the previous push, if they are
  // still missing, but not for its own.
  Status push(std::span<const std::uint64_t> versions, double scale,
              std::vector<kernels::UpdateRule> rules, std::vector<bool> used,
              VectorId into = kParametersVector, std::vector<std::uint32_t> rule_slots = {})
      EXCLUDES(conversation_.mutex());
  // Waits for the answers to the latest push, and returns the largest Outcome in them; kApplied if
  // there was no push since the last call.
  Result<Outcome> answer() EXCLUDES(conversation_.mutex());
  // Writes the newest parameters into the memory.
  Status pull() EXCLUDES(conversation_.mutex());
  // Return a whole state array (kernels::state_arrays) of a table, and the number of steps of each
  // slot (int64).
  Result<MemorySegment> fetch_state(std::size_t table, std::size_t array)
      EXCLUDES(conversation_.mutex());
  Result<MemorySegment> fetch_steps() EXCLUDES(conversation_.mutex());
  // Returns the mean of the latest values that workers have passed under this name.
  Result<double> average(const std::string& name, double value) EXCLUDES(conversation_.mutex());
  // Copies rows of a table of rows (Model::row_tables) to `into`, one behind the other. `rows`:
  // ascending, each once; the same for the two calls below.
  Status pull_rows(std::size_t table, std::span<const std::uint64_t> rows, float* into)
      EXCLUDES(conversation_.mutex());
  // Updates the rows by the rule. `gradients`: of these rows, one behind the other.
  Status push_rows(std::size_t table, std::span<const std::uint64_t> rows, const float* gradients,
                   const kernels::UpdateRule& rule, double scale) EXCLUDES(conversation_.mutex());
  // Sets the rows' first values, for a table with RowTable::given. Rows that have values already
  // keep them.
  Status begin_rows(std::size_t table, std::span<const std::uint64_t> rows, const float* values)
      EXCLUDES(conversation_.mutex());
  bool coordinates() const { return options_.coordinates; }
  TaskClient& tasks() { return tasks_; }
  Result<std::vector<Stats>> stats() EXCLUDES(conversation_.mutex());
  ClientStats own_stats() const EXCLUDES(conversation_.mutex());
  // The server whose loss failed this client; none so far.
  std::optional<int> lost_server() const EXCLUDES(conversation_.mutex());

  // Closes the connections in a forked child, so that the servers notice the parent's death.
  // Async-signal-safe.
  void close_in_forked_child() noexcept;

 private:
  explicit Client(ClientOptions options);
  Status hear_ready() REQUIRES(conversation_.mutex());
  Result<MemorySegment> fetch(const Message& question, std::size_t bytes, int servers)
      REQUIRES(conversation_.mutex());
  Status lay_out_rows(std::size_t table, std::span<const std::uint64_t> rows)
      REQUIRES(conversation_.mutex());
  Status send_rows(PushRows message, std::span<const std::uint64_t> rows, const float* values)
      REQUIRES(conversation_.mutex());
  std::byte* row_data(int server) REQUIRES(conversation_.mutex()) {
    const WorkerMemory::Rows& rows = memory_.rows[at(server)];
    CIRANDA_ASSERT(rows.numbers_bytes + rows.rows_bytes <= rows.memory.segment.bytes());
    return rows.memory.segment.data() + rows.numbers_bytes;
  }
  std::size_t at(int server) const {
    CIRANDA_ASSERT(server >= 0 && server < servers());
    return static_cast<std::size_t>(server);
  }

  const ClientOptions options_;
  const std::unique_ptr<Timeline> timeline_;  // null: none
  WorkerMemory memory_;
  Conversation conversation_;
  BeatThread beats_;
  TaskClient tasks_;
  Model model_;
  bool declared_ = false;
};

}  // namespace ciranda::ps
