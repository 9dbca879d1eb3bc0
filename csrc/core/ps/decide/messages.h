#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/result.h"
#include "core/ps/decide/origin.h"
#include "core/ps/decide/shard.h"

namespace ciranda::ps {

// What workers and servers tell each other, a packet each; docs/protocol.md gives the bytes. On one
// host data never travels: a worker's memory is mapped by every server. Plain data: no I/O, no
// clock.

inline constexpr std::uint32_t kProtocolVersion = 7;
// Below what a socket takes at once.
inline constexpr std::size_t kPacketBytesMax = std::size_t{160} * 1024;
inline constexpr int kServersMax = 64;
inline constexpr std::uint64_t kRowsAtOnceMax = std::uint64_t{1} << 24;  // of one server
inline constexpr std::uint64_t kCheckpointMax = std::uint64_t{1} << 40;
// What a job is called whose servers and workers are started by hand.
inline constexpr std::string_view kJobByHand = "by hand";

// --- From a worker ---

// The first packet of a connection.
struct Enter {
  std::uint32_t version = kProtocolVersion;
  std::string job_id;
  Worker worker = 0;  // or the coordinator, whose number is the one behind the workers'
  Life life = 1;
  std::uint64_t process = 0;  // of that life, by chance: a second one is told from its return
  std::int32_t workers = 1;   // as it was told
  std::int32_t servers = 1;
  std::int32_t server = 0;  // whom it believes to talk to
  Origin origin = {};
  bool operator==(const Enter&) const = default;
};

// What it trains, see encode(Model), and where its gradients and parameters lie: two memfds, in
// this order, come with it. Answered once worker 0's parameters are there.
struct Declare {
  std::uint64_t model_bytes = 0;
  std::uint64_t decided = 0;   // the seq of the latest push of its earlier lives, by any server
  bool returns = false;        // this process has had parameters from this server
  std::uint64_t answered = 0;  // then: the seq of its latest push that this server has answered
  bool operator==(const Declare&) const = default;
};

// Its gradients lie in a memfd that comes with it from here on, of Layout::gradient_bytes(): the
// program has kept tensors in the memory where they lay. Not answered.
struct MoveGradients {
  bool operator==(const MoveGradients&) const = default;
};

// Push: see shard.h. Answered with an Ack.

// Writes the newest parameters into its memory.
struct Pull {
  bool operator==(const Pull&) const = default;
};

// Writes a table's state array of that number into a memfd that comes with it, of the table's size.
struct FetchState {
  std::uint32_t table = 0;
  std::uint32_t array = 0;
  bool operator==(const FetchState&) const = default;
};
// Writes the slots' numbers of steps (int64) into a memfd that comes with it.
struct FetchSteps {
  bool operator==(const FetchSteps&) const = default;
};

// The mean of the latest values that workers have given under this name; waits for nobody.
struct Average {
  std::string name;
  double value = 0.0;
  bool operator==(const Average&) const = default;
};

struct AskStats {
  bool operator==(const AskStats&) const = default;
};

// It is alive. Not answered.
struct Beat {
  bool operator==(const Beat&) const = default;
};
// What it has pushed belongs to that checkpoint, which server 0 has announced to it; what it pushes
// from here on does not. All its pushes are answered. Not answered.
struct Mark {
  std::uint64_t checkpoint = 0;
  bool operator==(const Mark&) const = default;
};
// It has done its work, and counts no more. Not answered.
struct Leave {
  std::uint64_t checkpoint = 0;  // the latest that it knows
  bool operator==(const Leave&) const = default;
};

// It has done that task, and wants another one. Answered with Given once there is one.
struct TakeTask {
  TaskId done = 0;  // 0: none yet
  bool failed = false;
  std::string text;  // see TaskOutcome
  bool operator==(const TakeTask&) const = default;
};

// The numbers of so many rows of a row table come with it, 8 bytes each, and room for as many rows.
// Answered with RowsRead.
struct PullRows {
  std::uint32_t table = 0;
  std::uint64_t count = 0;
  bool operator==(const PullRows&) const = default;
};
// The numbers of rows and their gradients come with it; or, `begins`, what those begin with that
// are not there yet. Answered with RowsPushed.
struct PushRows {
  std::uint64_t seq = 0;  // grows, from 1, the same to all servers, over all tables
  std::uint32_t table = 0;
  std::uint64_t count = 0;  // may be 0
  double scale = 1.0;
  bool begins = false;
  kernels::UpdateRule rule = {};
  TaskPart of = {};  // whose parts are counted apart from those of Push
  bool operator==(const PushRows&) const = default;
};

// --- From the coordinator, to server 0; see Ledger ---

// Not answered.
struct Schedule {
  TaskId task = 0;
  std::int32_t copies = 1;
  std::string call;
  bool operator==(const Schedule&) const = default;
};
// Answered with TaskStatus, of no task.
struct CloseTasks {
  TaskId tasks = 0;
  bool operator==(const CloseTasks&) const = default;
};
// What has become of the task. Answered with TaskStatus: at once, or, where it waits, once the task
// is done or more than so many tasks have failed.
struct AskTask {
  TaskId task = 0;
  bool waits = false;
  std::uint64_t failures = UINT64_MAX;
  bool operator==(const AskTask&) const = default;
};

// VectorWork: to each server; see vectors.h. Answered with VectorValues.

// --- From a server ---

struct Welcome {
  std::uint64_t decided = 0;       // the seq of its latest push that was
  std::uint64_t decided_rows = 0;  // the same of PushRows
  TaskId scheduled = 0;            // to the coordinator: so many tasks are known
  bool keeps_state = false;        // when this server is lost, another one may go on in its place
  bool operator==(const Welcome&) const = default;
};
// To Enter or Declare; the server closes the connection.
struct Refused {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string text;
  bool operator==(const Refused&) const = default;
};
// To Declare, Pull: the parameters of that version are in the worker's memory.
struct Ready {
  std::uint64_t version = 0;
  std::uint64_t clock = 0;       // what counts as the worker's
  std::uint64_t checkpoint = 0;  // the latest that was announced, by server 0
  bool operator==(const Ready&) const = default;
};
// Ack: see shard.h.
// To FetchState, FetchSteps.
struct Fetched {
  bool operator==(const Fetched&) const = default;
};
struct Averaged {
  double mean = 0.0;
  std::uint32_t workers = 0;  // that have given a value
  bool operator==(const Averaged&) const = default;
};
// The rows lie in the memory that came with PullRows, in their order.
struct RowsRead {
  bool operator==(const RowsRead&) const = default;
};
struct RowsPushed {
  bool operator==(const RowsPushed&) const = default;
};
// To TakeTask. No task: nothing is left to do.
struct Given {
  TaskId task = 0;
  TaskId settled = 0;
  std::string call;
  bool operator==(const Given&) const = default;
};
struct TaskStatus {
  TaskId task = 0;  // which was asked for, or one that has failed
  bool done = false;
  bool failed = false;
  TaskId settled = 0;
  std::string text;
  bool operator==(const TaskStatus&) const = default;
};
struct VectorValues {
  std::vector<double> dots = {};
  bool operator==(const VectorValues&) const = default;
};
struct WorkerStats {
  bool here = false;
  std::uint64_t pushes = 0;   // see Shard::pushes()
  std::uint64_t held_ns = 0;  // that its answers were held back for other workers
  bool operator==(const WorkerStats&) const = default;
};
struct Stats {
  std::uint64_t version = 0;
  std::uint64_t held_bytes = 0;
  std::uint64_t busy_ns = 0;             // spent on pushes
  std::uint64_t oldest_ns = 0;           // the longest that a push has waited for its turn
  std::vector<std::uint64_t> outcomes;   // by Outcome
  std::vector<std::uint64_t> staleness;  // see ShardCounters
  std::uint64_t gradient_bytes = 0;      // read, and written to workers
  std::uint64_t parameter_bytes = 0;
  std::uint64_t pulls = 0;
  std::uint64_t lost = 0;            // pushes that were answered and that a restart has lost
  std::vector<WorkerStats> workers;  // by number
  bool operator==(const Stats&) const = default;
};

using Message =
    std::variant<Enter, Declare, Push, Pull, FetchState, FetchSteps, Average, AskStats, Beat, Leave,
                 MoveGradients, Mark, PullRows, PushRows, TakeTask, Schedule, CloseTasks, AskTask,
                 VectorWork, Welcome, Refused, Ready, Ack, Fetched, Averaged, Stats, Given,
                 TaskStatus, VectorValues, RowsRead, RowsPushed>;

// Appends the message's bytes to `out`. Texts are cut at their limits.
void encode(const Message& message, std::vector<std::byte>& out);
// Of anything; allocates only what the bytes can hold. kMalformed names field and offset.
Result<Message> decode_message(std::span<const std::byte> bytes);

}  // namespace ciranda::ps
