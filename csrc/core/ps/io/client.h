#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/assert.h"
#include "core/base/fd.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/ps/decide/layout.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/connect.h"
#include "core/ps/io/progress.h"
#include "core/ps/io/server_links.h"
#include "core/trace/timeline.h"
#include "core/transport/local/memory_segment.h"

namespace ciranda::ps {

struct ClientOptions {
  ServersAddress address;
  std::string job_id;
  int workers = 1;
  Origin origin = {};
  ServerLinks::Pace pace = {};
  // Reconnect timeout for a server that persists its state (Welcome::keeps_state). The timeout of a
  // server that has not welcomed this client yet is address.timeout_ms. Losing any other server
  // fails this client.
  std::uint64_t patience_ms = 0;
  std::string timeline_path;  // empty: none
  // This client is the coordinator, not a worker; address.worker is then the number of workers.
  bool coordinates = false;
};

// A worker, or the coordinator, as a client of the servers: its connections to all of them, and the
// memory from which servers read gradients and to which they write parameters. For servers on other
// hosts the data goes through the network. A thread sends beats while the program computes.
//
// Thread-safe: calls run one at a time. A call with an answer blocks until each server asked has
// answered. A reconnect sends the question again, and the server counts no push twice.
// Errors: kRankLost if a server is lost, or the error with which a server refused. Every later call
// returns the same error.
class Client {
 public:
  // Connects to all servers and blocks until each has let this client in.
  static Result<std::unique_ptr<Client>> connect(ClientOptions options);
  ~Client();  // calls leave()
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Worker worker() const { return options_.address.worker; }
  int workers() const { return options_.workers; }
  int servers() const { return static_cast<int>(options_.address.servers.size()); }
  // Tells the servers that this worker leaves, so that nobody waits for it any more. Later calls
  // fail; the memory stays. Blocks until servers on other hosts have read that, for some seconds at
  // most. If servers persist their state, and no push is unanswered, it first waits until each
  // server answers a question.
  void leave() EXCLUDES(mutex_);

  // Tells the servers the model; call it once. `fill` writes this worker's parameters into the
  // memory. On return the memory has the servers' parameters: worker 0's, with all updates since.
  using Fill = std::function<void(const Layout& layout, std::byte* memory)>;
  Status declare(const Model& model, const Fill& fill) EXCLUDES(mutex_);
  bool declared() const { return declared_; }
  // This worker's memory, as Layout describes it; valid after declare(). Servers read the gradients
  // and write the parameters only between a push and its answer, and in calls that say so.
  std::byte* memory() const { return segment().data(); }
  const MemorySegment& segment() const { return memory_.memory.segment; }  // copies keep it mapped
  // The segment with the gradients: segment(), or the one from move_gradients().
  const MemorySegment& gradients() const { return memory_.gradient_segment(); }
  // Moves the place of the gradients to new memory; the old memory stays as it is.
  Status move_gradients() EXCLUDES(mutex_);
  const Layout& layout() const {
    CIRANDA_ASSERT(memory_.layout);
    return *memory_.layout;
  }
  // Versions of the parameters in the memory, by server.
  std::vector<std::uint64_t> versions() const EXCLUDES(mutex_);

  // Sends the gradients to all servers. `versions`: of the parameters that they were computed from.
  // For the other arguments see Push. Blocks for the answers to the previous push, if they are
  // still missing, but not for its own.
  Status push(std::span<const std::uint64_t> versions, double scale,
              std::vector<kernels::UpdateRule> rules, std::vector<bool> used,
              VectorId into = kParametersVector, std::vector<std::uint32_t> rule_slots = {})
      EXCLUDES(mutex_);
  // Waits for the answers to the latest push, and returns the largest Outcome in them; kApplied if
  // there was no push since the last call.
  Result<Outcome> answer() EXCLUDES(mutex_);
  // Writes the newest parameters into the memory.
  Status pull() EXCLUDES(mutex_);
  // Return a whole state array (kernels::state_arrays) of a table, and the number of steps of each
  // slot (int64).
  Result<MemorySegment> fetch_state(std::size_t table, std::size_t array) EXCLUDES(mutex_);
  Result<MemorySegment> fetch_steps() EXCLUDES(mutex_);
  // Returns the mean of the latest values that workers have passed under this name.
  Result<double> average(const std::string& name, double value) EXCLUDES(mutex_);
  // Copies rows of a table of rows (Model::row_tables) to `into`, one behind the other. `rows`:
  // ascending, each once; the same for the two calls below.
  Status pull_rows(std::size_t table, std::span<const std::uint64_t> rows, float* into)
      EXCLUDES(mutex_);
  // Updates the rows by the rule. `gradients`: of these rows, one behind the other.
  Status push_rows(std::size_t table, std::span<const std::uint64_t> rows, const float* gradients,
                   const kernels::UpdateRule& rule, double scale) EXCLUDES(mutex_);
  // Sets the rows' first values, for a table with RowTable::given. Rows that have values already
  // keep them.
  Status begin_rows(std::size_t table, std::span<const std::uint64_t> rows, const float* values)
      EXCLUDES(mutex_);
  // For workers: reports the outcome of the previous task, and blocks until there is another one.
  // Task 0 means that nothing is left to do. Later pushes are parts of the new task.
  Result<Given> take_task(bool failed, std::string text) EXCLUDES(mutex_);
  // For the coordinator; see Ledger. schedule() does not wait: a later call returns a refusal.
  Result<TaskId> schedule(std::string call, int copies) EXCLUDES(mutex_);
  Status close_tasks() EXCLUDES(mutex_);
  // See AskTask.
  Result<TaskStatus> ask_task(const AskTask& question) EXCLUDES(mutex_);
  // For the coordinator: has all servers do the work, and returns the dot products, summed over the
  // servers. Chooses work.number.
  Result<std::vector<double>> work(VectorWork work) EXCLUDES(mutex_);
  bool coordinates() const { return options_.coordinates; }
  Result<std::vector<Stats>> stats() EXCLUDES(mutex_);
  ClientStats own_stats() const EXCLUDES(mutex_);
  // The server whose loss failed this client; none so far.
  std::optional<int> lost_server() const EXCLUDES(mutex_);

  // Closes the connections in a forked child, so that the servers notice the parent's death.
  // Async-signal-safe.
  void close_in_forked_child() noexcept;

 private:
  explicit Client(ClientOptions options);
  Status enter() REQUIRES(mutex_);
  Enter entry(int server) const;
  // Send a question that will be answered. It is kept until then, so that rejoin() can send it
  // again.
  Status ask_all(const Message& question) REQUIRES(mutex_);
  Status ask(int server, const Message& question) REQUIRES(mutex_);
  // Returns the server's answer, which must be a T.
  template <typename T>
  Result<T> hear(int server) REQUIRES(mutex_);
  Result<std::vector<Stats>> ask_stats() REQUIRES(mutex_);
  // Reconnects to the server that `lost` names, and sends its question again. Blocks, for about the
  // reconnect timeout at most.
  Status rejoin(const Error& lost) REQUIRES(mutex_);
  Status call_again(int server, std::uint64_t deadline_ns) REQUIRES(mutex_);
  std::string self() const;
  // Returns what the server was asked to do, for notices of long waits; null if the answer may take
  // any time.
  const char* asked_to(int server) const REQUIRES(mutex_);
  bool enters(int server) const REQUIRES(mutex_);
  std::uint64_t patience_ms(int server) const REQUIRES(mutex_);
  bool may_come_back(const Error& error) const REQUIRES(mutex_);
  Status hear_ready() REQUIRES(mutex_);
  Result<MemorySegment> fetch(const Message& question, std::size_t bytes, int servers)
      REQUIRES(mutex_);
  Status hear_answers() REQUIRES(mutex_);
  Status mark() REQUIRES(mutex_);
  Status lay_out_rows(std::size_t table, std::span<const std::uint64_t> rows) REQUIRES(mutex_);
  Status send_rows(PushRows message, std::span<const std::uint64_t> rows, const float* values)
      REQUIRES(mutex_);
  std::byte* row_data(int server) REQUIRES(mutex_) {
    const WorkerMemory::Rows& rows = memory_.rows[at(server)];
    CIRANDA_ASSERT(rows.numbers_bytes + rows.rows_bytes <= rows.memory.segment.bytes());
    return rows.memory.segment.data() + rows.numbers_bytes;
  }
  Error failed(Error error) REQUIRES(mutex_);
  void wake_thread();
  void attend();
  std::vector<pollfd> send_queued() REQUIRES(mutex_);
  std::size_t at(int server) const {
    CIRANDA_ASSERT(server >= 0 && server < servers());
    return static_cast<std::size_t>(server);
  }

  const ClientOptions options_;
  const std::uint64_t process_;  // random; see Enter
  WorkerMemory memory_;
  WaitNotice notice_;
  ServerLinks links_;
  Model model_;
  bool declared_ = false;

  mutable Mutex mutex_;
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  std::optional<int> lost_server_ GUARDED_BY(mutex_);
  Progress progress_ GUARDED_BY(mutex_);
  struct Asked {
    std::optional<Message> question;  // not answered yet
    bool keeps_state = false;
  };
  std::vector<Asked> asked_ GUARDED_BY(mutex_);  // by server
  bool leaving_ GUARDED_BY(mutex_) = false;
  std::uint64_t works_ GUARDED_BY(mutex_) = 0;  // number of the latest VectorWork

  std::unique_ptr<Timeline> timeline_;  // null: none
  Fd wake_;                             // an eventfd that wakes the thread
  std::thread thread_;
};

template <typename T>
Result<T> Client::hear(int server) {
  for (;;) {
    auto message = links_.next(server, asked_to(server));
    if (!message) {
      CIRANDA_TRY(rejoin(message.error()));
      continue;
    }
    asked_[at(server)].question.reset();
    if (T* wanted = std::get_if<T>(&message.value())) return std::move(*wanted);
    return Error{.code = ErrorCode::kMalformed,
                 .text = "server " + std::to_string(server) +
                         " sent an answer that does not fit the question"};
  }
}

}  // namespace ciranda::ps
