#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fd.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/ps/decide/layout.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/connect.h"
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
  // A server that is lost, and had said that it keeps its state, is called again for so long, until
  // it, or another one with its state, is there; one that has not said anything yet, for
  // address.timeout_ms. The end of any other is this client's.
  std::uint64_t patience_ms = 0;
  std::string timeline_path;  // empty: none
  // It gives tasks to the workers and is none of them: address.worker is how many there are.
  bool coordinates = false;
};

// Of one worker, since it has connected.
struct ClientStats {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};  // of its pushes
  std::uint64_t pulls = 0;
  std::uint64_t pushed_bytes = 0;  // gradients, by size
  std::uint64_t waiting_ns = 0;    // for answers to pushes
  std::uint64_t held_ns = 0;       // of that, while the answer was held back for other workers
};

// A worker's side, or the coordinator's: its connections to all servers, and the memory that they
// read gradients from and write parameters to. Servers of other hosts do so through the network.
//
// Thread-safe: calls wait for each other. A call that is answered blocks until all servers have; a
// server that comes back is asked again, and counts no push twice. An error is kRankLost where a
// server is gone, after which every call gives it, or what a server has refused.
class Client {
 public:
  // Blocking.
  static Result<std::unique_ptr<Client>> connect(ClientOptions options);
  ~Client();  // leaves
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Worker worker() const { return options_.address.worker; }
  int workers() const { return options_.workers; }
  int servers() const { return static_cast<int>(options_.address.servers.size()); }
  // Nobody waits for this worker any more. Calls fail from here on; the memory stays.
  void leave() EXCLUDES(mutex_);

  // Once. `fill` writes this worker's parameters into its memory; by then they are those of all
  // (worker 0's, or what has become of them), where it returns.
  using Fill = std::function<void(const Layout& layout, std::byte* memory)>;
  Status declare(const Model& model, const Fill& fill) EXCLUDES(mutex_);
  bool declared() const { return declared_; }
  // Once declared: see Layout. The servers read the gradients and write the parameters between a
  // push and its answer only; the other calls that write say so.
  std::byte* memory() const { return segment().data(); }
  const MemorySegment& segment() const { return memory_.memory.segment; }  // whose copies keep it
  // Where the gradients lie: the memory, or what move_gradients() has put in its place.
  const MemorySegment& gradients() const { return memory_.gradient_segment(); }
  // The gradients lie in fresh memory from here on; the old one stays as it is.
  Status move_gradients() EXCLUDES(mutex_);
  const Layout& layout() const { return *memory_.layout; }
  // Which parameters lie in the memory, by server.
  std::vector<std::uint64_t> versions() const EXCLUDES(mutex_);

  // The gradients go to all servers; they were made from parameters of `versions`. `scale`,
  // `rules`, `used`, `rule_slots`: see Push. Does not block for long.
  Status push(std::span<const std::uint64_t> versions, double scale,
              std::vector<kernels::UpdateRule> rules, std::vector<bool> used,
              VectorId into = kParametersVector, std::vector<std::uint32_t> rule_slots = {})
      EXCLUDES(mutex_);
  // For the answers to the latest push: what the least of the servers did with it. kApplied where
  // there is none.
  Result<Outcome> answer() EXCLUDES(mutex_);
  // Writes the newest parameters.
  Status pull() EXCLUDES(mutex_);
  // A state array (kernels::state_arrays) of a table, whole; the slots' numbers of steps (int64).
  Result<MemorySegment> fetch_state(std::size_t table, std::size_t array) EXCLUDES(mutex_);
  Result<MemorySegment> fetch_steps() EXCLUDES(mutex_);
  // The mean of the latest values of all workers that have given one under that name.
  Result<double> average(const std::string& name, double value) EXCLUDES(mutex_);
  // Rows of a table of them (Model::row_tables), ascending, each once: one behind the other.
  Status pull_rows(std::size_t table, std::span<const std::uint64_t> rows, float* into)
      EXCLUDES(mutex_);
  // Updates them by the rule; `gradients`: one behind the other.
  Status push_rows(std::size_t table, std::span<const std::uint64_t> rows, const float* gradients,
                   const kernels::UpdateRule& rule, double scale) EXCLUDES(mutex_);
  // What they begin with, of a table whose rows are given; those that are there stay as they are.
  Status begin_rows(std::size_t table, std::span<const std::uint64_t> rows, const float* values)
      EXCLUDES(mutex_);
  // A worker: it has done the task that it was given before, with that outcome, and wants another.
  // Waits for one. What is pushed from here on are the task's parts. Nothing is left to do: task 0.
  Result<Given> take_task(bool failed, std::string text) EXCLUDES(mutex_);
  // The coordinator: see Ledger. Does not wait; what is refused is said to a later call.
  Result<TaskId> schedule(std::string call, int copies) EXCLUDES(mutex_);
  Status close_tasks() EXCLUDES(mutex_);
  // See AskTask.
  Result<TaskStatus> ask_task(const AskTask& question) EXCLUDES(mutex_);
  // On all servers, whose dot products are added up. Its number is chosen here.
  Result<std::vector<double>> work(VectorWork work) EXCLUDES(mutex_);
  bool coordinates() const { return options_.coordinates; }
  Result<std::vector<Stats>> stats() EXCLUDES(mutex_);
  ClientStats own_stats() const EXCLUDES(mutex_);
  // Whose end has ended this; none so far.
  std::optional<int> lost_server() const EXCLUDES(mutex_);

  // In a child made by fork: closes the connections, so that the servers notice the parent's end.
  // Async-signal-safe.
  void close_in_forked_child() noexcept;

 private:
  explicit Client(ClientOptions options);
  Status enter() REQUIRES(mutex_);
  Enter entry(int server) const;
  // All that a server answers; what is on its way when it is lost is asked again.
  Status ask_all(const Message& question) REQUIRES(mutex_);
  Status ask(int server, const Message& question) REQUIRES(mutex_);
  // The answer of that server, which has to be a T.
  template <typename T>
  Result<T> hear(int server) REQUIRES(mutex_);
  Result<std::vector<Stats>> ask_stats() REQUIRES(mutex_);
  // `lost`: of one of the servers. Waits for it.
  Status rejoin(const Error& lost) REQUIRES(mutex_);
  Status call_again(int server, std::uint64_t deadline_ns) REQUIRES(mutex_);
  std::string self() const;
  // What a server is asked to do; null: what may take as long as it takes.
  const char* asked_to(int server) const REQUIRES(mutex_);
  bool enters(int server) const REQUIRES(mutex_);
  std::uint64_t patience_ms(int server) const REQUIRES(mutex_);
  bool may_come_back(const Error& error) const REQUIRES(mutex_);
  Status hear_ready() REQUIRES(mutex_);
  Result<MemorySegment> fetch(const Message& question, std::size_t bytes, int servers)
      REQUIRES(mutex_);
  Status hear_answers() REQUIRES(mutex_);
  Status mark() REQUIRES(mutex_);
  Status schedule_again(TaskId known) REQUIRES(mutex_);
  Status lay_out_rows(std::size_t table, std::span<const std::uint64_t> rows) REQUIRES(mutex_);
  Status send_rows(PushRows message, std::span<const std::uint64_t> rows, const float* values)
      REQUIRES(mutex_);
  std::byte* row_data(int server) REQUIRES(mutex_) {
    const WorkerMemory::Rows& rows = memory_.rows[at(server)];
    return rows.memory.segment.data() + rows.numbers_bytes;
  }
  Error failed(Error error) REQUIRES(mutex_);
  void wake_thread();
  void attend();
  std::vector<pollfd> send_queued() REQUIRES(mutex_);
  std::size_t at(int server) const { return static_cast<std::size_t>(server); }

  const ClientOptions options_;
  const std::uint64_t process_;  // by chance
  WorkerMemory memory_;
  WaitNotice notice_;
  ServerLinks links_;
  Model model_;
  bool declared_ = false;

  mutable Mutex mutex_;
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  std::optional<int> lost_server_ GUARDED_BY(mutex_);
  std::uint64_t seq_ GUARDED_BY(mutex_) = 0;
  std::uint64_t clock_ GUARDED_BY(mutex_) = 0;
  std::uint64_t rows_seq_ GUARDED_BY(mutex_) = 0;           // of the latest push of rows
  std::vector<std::uint64_t> versions_ GUARDED_BY(mutex_);  // by server
  struct Asked {
    std::optional<Message> question;  // that has no answer yet
    bool keeps_state = false;
    bool gave_parameters = false;
    std::uint64_t answered = 0;  // the seq of the latest push that was
  };
  std::vector<Asked> asked_ GUARDED_BY(mutex_);     // by server
  std::uint64_t announced_ GUARDED_BY(mutex_) = 0;  // the latest checkpoint, by server 0
  std::uint64_t marked_ GUARDED_BY(mutex_) = 0;     // that the servers were told of
  bool unanswered_ GUARDED_BY(mutex_) = false;
  bool leaving_ GUARDED_BY(mutex_) = false;
  std::uint64_t pushed_ns_ GUARDED_BY(mutex_) = 0;  // the latest
  ClientStats stats_ GUARDED_BY(mutex_);
  Outcome outcome_ GUARDED_BY(mutex_) = Outcome::kApplied;  // of the latest push

  TaskPart part_ GUARDED_BY(mutex_);                    // of the latest push
  TaskPart rows_part_ GUARDED_BY(mutex_);               // of the latest push of rows
  std::vector<Schedule> scheduled_ GUARDED_BY(mutex_);  // by this coordinator
  std::uint64_t works_ GUARDED_BY(mutex_) = 0;          // so far, by this coordinator

  std::unique_ptr<Timeline> timeline_;  // null: none
  Fd wake_;                             // an eventfd: the thread looks what there is to do
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
    return Error{
        .code = ErrorCode::kMalformed,
        .text = "server " + std::to_string(server) + " answered something else than it was asked"};
  }
}

}  // namespace ciranda::ps
