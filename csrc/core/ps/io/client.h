#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/client_options.h"
#include "core/ps/io/conversation.h"
#include "core/ps/io/parameter_client.h"
#include "core/ps/io/row_client.h"
#include "core/ps/io/server_link.h"
#include "core/ps/io/task_client.h"
#include "core/trace/timeline.h"
#include "core/transport/link/beat_thread.h"

namespace ciranda::ps {

// A worker, or the coordinator, as a client of the servers: the conversation with all of them, the
// memory that messages refer to, and a thread that sends beats while the program computes.
// parameters(), rows() and tasks() have the calls for training.
//
// Thread-safe, like its parts: calls run one at a time. A call with an answer blocks until each
// server asked has answered. A reconnect sends the question again, and the server counts no push
// twice.
// Errors: see Conversation.
class Client {
 public:
  // Connects to all servers and blocks until each has let this client in.
  static Result<std::unique_ptr<Client>> connect(ClientOptions options);
  ~Client();  // calls leave()
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Tells the servers that this worker leaves, so that nobody waits for it any more. Later calls
  // fail; the memory stays. Blocks until servers on other hosts have read that, for some seconds at
  // most. If servers persist their state, and no push is unanswered, it first waits until each
  // server answers a question.
  void leave() EXCLUDES(conversation_.mutex());

  int workers() const { return options_.workers; }
  int servers() const { return options_.servers(); }
  bool coordinates() const { return options_.coordinates; }

  ParameterClient& parameters() { return parameters_; }
  const ParameterClient& parameters() const { return parameters_; }
  RowClient& rows() { return rows_; }
  TaskClient& tasks() { return tasks_; }

  // Returns the mean of the latest values that workers have passed under this name.
  Result<double> average(const std::string& name, double value) EXCLUDES(conversation_.mutex());
  // Returns the servers' counters, by server.
  Result<std::vector<Stats>> stats() EXCLUDES(conversation_.mutex());
  // Returns the server whose loss has ended this client's conversation, if one has.
  std::optional<int> lost_server() const EXCLUDES(conversation_.mutex());

  // Closes the connections in a forked child, so that the servers notice the parent's death.
  // Async-signal-safe.
  void close_in_forked_child() noexcept;

 private:
  explicit Client(ClientOptions options);

  const ClientOptions options_;
  const std::unique_ptr<Timeline> timeline_;  // null: none
  WorkerMemory memory_;
  Conversation conversation_;
  BeatThread beats_;
  ParameterClient parameters_;
  RowClient rows_;
  TaskClient tasks_;
};

}  // namespace ciranda::ps
