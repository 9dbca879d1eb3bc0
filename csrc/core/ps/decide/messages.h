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
#include "core/ps/decide/push.h"
#include "core/ps/decide/task_parts.h"
#include "core/ps/decide/vectors.h"

namespace ciranda::ps {

// The messages between workers and servers, one packet each; docs/protocol.md gives their bytes. On
// one host data is never sent: every server maps each worker's memory. The messages are plain data,
// without I/O or a clock.

inline constexpr std::uint32_t kProtocolVersion = 7;
// The limit of a packet: less than a socket takes in one call.
inline constexpr std::size_t kPacketBytesMax = std::size_t{160} * 1024;
inline constexpr int kServersMax = 64;
inline constexpr std::uint64_t kRowsAtOnceMax = std::uint64_t{1} << 24;  // in one message
inline constexpr std::uint64_t kCheckpointMax = std::uint64_t{1} << 40;
// The job id of servers and workers that are started by hand.
inline constexpr std::string_view kJobByHand = "by hand";

// --- From a worker ---

// The first packet of a connection.
struct Enter {
  std::uint32_t version = kProtocolVersion;
  std::string job_id;
  Worker worker = 0;  // the coordinator's number is the number of workers
  Life life = 1;
  std::uint64_t process = 0;  // random; tells a reconnect from another process of the same life
  std::int32_t workers = 1;   // as the sender was configured, like the next two
  std::int32_t servers = 1;
  std::int32_t server = 0;  // the server that the sender means to reach
  Origin origin = {};
  bool operator==(const Enter&) const = default;
};

// Declares the worker's model and memory. Two memfds come with it: the model (see encode(Model)),
// then the memory of its gradients and parameters. Answered with Ready once the server has the
// first parameters, which come from the lowest worker that has not left.
struct Declare {
  std::uint64_t model_bytes = 0;
  std::uint64_t decided = 0;   // seq up to which its pushes are over; none is sent again
  bool returns = false;        // this process has had parameters from this server before
  std::uint64_t answered = 0;  // if it returns: seq of the latest push that this server answered
  bool operator==(const Declare&) const = default;
};

// Moves the worker's gradients to a memfd that comes with the message and has
// Layout::gradient_bytes(), because the program still has tensors in the old memory. It has no
// answer.
struct MoveGradients {
  bool operator==(const MoveGradients&) const = default;
};

// Push is in push.h. It is answered with an Ack.

// Asks the server to write the newest parameters into the worker's memory. Answered with Ready.
struct Pull {
  bool operator==(const Pull&) const = default;
};

// Asks for a table's state array, by its index in kernels::state_arrays(). A memfd of the table's
// size comes with the message; the server writes into it. Answered with Fetched.
struct FetchState {
  std::uint32_t table = 0;
  std::uint32_t array = 0;
  bool operator==(const FetchState&) const = default;
};
// Asks for the number of steps of each slot (int64), like FetchState.
struct FetchSteps {
  bool operator==(const FetchSteps&) const = default;
};

// Gives a value and asks for the mean of all workers' latest values under the same name. Answered
// with Averaged at once.
struct Average {
  std::string name;
  double value = 0.0;
  bool operator==(const Average&) const = default;
};

struct AskStats {
  bool operator==(const AskStats&) const = default;
};

// Says that the sender is alive. It has no answer.
struct Beat {
  bool operator==(const Beat&) const = default;
};
// Divides the worker's pushes at a checkpoint that server 0 has announced: earlier pushes belong to
// the checkpoint, later ones do not. Sent when all its pushes are answered. It has no answer.
struct Mark {
  std::uint64_t checkpoint = 0;
  bool operator==(const Mark&) const = default;
};
// Says that the sender has finished and no longer counts. It has no answer.
struct Leave {
  std::uint64_t checkpoint = 0;  // the latest one that it knows of
  bool operator==(const Leave&) const = default;
};

// Says that the worker has done a task and asks for another one. Answered with Given, once a task
// is available or none is left.
struct TakeTask {
  TaskId done = 0;  // 0: none yet
  bool failed = false;
  std::string text;  // see TaskOutcome
  bool operator==(const TakeTask&) const = default;
};

// Asks for `count` rows of a table of rows. The memory that comes with the message has the numbers
// of the rows, 8 bytes each, and then room for the rows. Answered with RowsRead.
struct PullRows {
  std::uint32_t table = 0;
  std::uint64_t count = 0;
  bool operator==(const PullRows&) const = default;
};
// Pushes gradients of rows or, if `begins`, initial values of the rows that do not exist yet. The
// memory that comes with the message has the numbers of the rows, then the gradients or values.
// Answered with RowsPushed.
struct PushRows {
  std::uint64_t seq = 0;  // from 1; counts over all tables, the same for every server
  std::uint32_t table = 0;
  std::uint64_t count = 0;  // may be 0
  double scale = 1.0;
  bool begins = false;
  kernels::UpdateRule rule = {};
  TaskPart of = {};  // counted separately from the parts of Push
  bool operator==(const PushRows&) const = default;
};

// --- From the coordinator, to server 0; see Ledger ---

// See Ledger::schedule(). It has no answer.
struct Schedule {
  TaskId task = 0;
  std::int32_t copies = 1;
  std::string call;
  bool operator==(const Schedule&) const = default;
};
// Says that only the first `tasks` tasks exist. Answered with a TaskStatus of task 0.
struct CloseTasks {
  TaskId tasks = 0;
  bool operator==(const CloseTasks&) const = default;
};
// Asks for the state of a task. Answered with TaskStatus: at once or, if `waits`, once the task is
// done or more than `failures` tasks have failed.
struct AskTask {
  TaskId task = 0;
  bool waits = false;
  std::uint64_t failures = UINT64_MAX;
  bool operator==(const AskTask&) const = default;
};

// VectorWork is in vectors.h. It is sent to each server, and answered with VectorValues.

// --- From a server ---

// Answers Enter.
struct Welcome {
  std::uint64_t decided = 0;       // seq of the worker's latest decided push
  std::uint64_t decided_rows = 0;  // seq of its latest decided PushRows
  TaskId scheduled = 0;            // number of tasks that the server knows
  bool keeps_state = false;        // another process may continue if this server is lost
  bool operator==(const Welcome&) const = default;
};
// Answers any message that the server refuses. The server then closes the connection.
struct Refused {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string text;
  bool operator==(const Refused&) const = default;
};
// Answers Declare and Pull: the parameters of `version` are in the worker's memory. If the worker
// returns, Declare leaves its memory unchanged.
struct Ready {
  std::uint64_t version = 0;
  std::uint64_t clock = 0;       // the worker's clock as the server counts it
  std::uint64_t checkpoint = 0;  // the latest announced one, if this is server 0
  bool operator==(const Ready&) const = default;
};
// Ack is in push.h.

// Answers FetchState and FetchSteps.
struct Fetched {
  bool operator==(const Fetched&) const = default;
};
struct Averaged {
  double mean = 0.0;
  std::uint32_t workers = 0;  // workers that have given a value
  bool operator==(const Averaged&) const = default;
};
// Answers PullRows: the rows are in the memory that came with it, in the order of their numbers.
struct RowsRead {
  bool operator==(const RowsRead&) const = default;
};
struct RowsPushed {
  bool operator==(const RowsPushed&) const = default;
};
// Answers TakeTask. Task 0 means that nothing is left to do.
struct Given {
  TaskId task = 0;
  TaskId settled = 0;  // all tasks up to this one are done
  std::string call;
  bool operator==(const Given&) const = default;
};
struct TaskStatus {
  TaskId task = 0;  // the one that was asked for, or one that has failed
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
  std::uint64_t held_ns = 0;  // time that its answers waited for other workers
  bool operator==(const WorkerStats&) const = default;
};
struct Stats {
  std::uint64_t version = 0;
  std::uint64_t held_bytes = 0;
  std::uint64_t busy_ns = 0;             // time spent on messages
  std::uint64_t oldest_ns = 0;           // longest time that a message has waited for its turn
  std::vector<std::uint64_t> outcomes;   // by Outcome
  std::vector<std::uint64_t> staleness;  // see PushCounters
  std::uint64_t gradient_bytes = 0;      // read
  std::uint64_t parameter_bytes = 0;     // written to workers
  std::uint64_t pulls = 0;
  std::uint64_t lost = 0;            // answered pushes that a restart has lost
  std::vector<WorkerStats> workers;  // by number
  bool operator==(const Stats&) const = default;
};

using Message =
    std::variant<Enter, Declare, Push, Pull, FetchState, FetchSteps, Average, AskStats, Beat, Leave,
                 MoveGradients, Mark, PullRows, PushRows, TakeTask, Schedule, CloseTasks, AskTask,
                 VectorWork, Welcome, Refused, Ready, Ack, Fetched, Averaged, Stats, Given,
                 TaskStatus, VectorValues, RowsRead, RowsPushed>;

// Appends the message's bytes to `out`. Truncates texts to their limits.
void encode(const Message& message, std::vector<std::byte>& out);
// Accepts arbitrary bytes, and allocates no more than they can encode. kMalformed names the field
// and its offset.
Result<Message> decode_message(std::span<const std::byte> bytes);

}  // namespace ciranda::ps
