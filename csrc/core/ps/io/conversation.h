#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/ps/decide/messages.h"
#include "core/ps/io/client_options.h"
#include "core/ps/io/progress.h"
#include "core/ps/io/rejoiner.h"
#include "core/ps/io/server_links.h"
#include "core/ps/io/wait_notice.h"
#include "core/trace/timeline.h"
#include "core/transport/link/beat_thread.h"

namespace ciranda::ps {

// The messages between a client and its servers, over connections that are replaced when a server
// is lost. Each question has one answer, and a server answers in the order of its questions. Only
// the answers to a push may wait: settle() hears them before the next question.
//
// The mutex guards the conversation and the classes that take part in it. They hold it from the
// first question of a call to the last answer. Errors: kRankLost if a server is lost, or the error
// with which a server refused. Every later call returns the same error.
class Conversation {
 public:
  // All arguments must outlive this object. `memory`: what messages refer to. `timeline`: null:
  // none.
  Conversation(const ClientOptions& options, const WorkerMemory& memory, Timeline* timeline);

  Mutex& mutex() const RETURN_CAPABILITY(mutex_) { return mutex_; }
  Worker worker() const { return options_.address.worker; }
  int servers() const { return options_.servers(); }
  Progress& progress() REQUIRES(mutex_) { return progress_; }
  // Returns the error that has ended the conversation; ok if none has.
  Status check() const REQUIRES(mutex_);
  // Returns the server that was lost, if that was the error.
  std::optional<int> lost_server() const REQUIRES(mutex_) { return lost_server_; }

  // Connects to all servers and blocks until each has let this client in. Call it once.
  Status enter() REQUIRES(mutex_);
  // Ends the conversation; see Client::leave().
  void leave() REQUIRES(mutex_);

  // Send a question that will be answered. It is kept until then, so that it can be sent again.
  Status ask(int server, const Message& question) REQUIRES(mutex_);
  Status ask_all(const Message& question) REQUIRES(mutex_);
  // Returns the server's answer, which must be a T. Blocks.
  template <typename T>
  Result<T> hear(int server) REQUIRES(mutex_);
  // Send a message that has no answer. A rejoin sends it again, so Progress or the memory has to
  // have it already.
  Status tell(int server, const Message& message) REQUIRES(mutex_);
  Status tell_all(const Message& message) REQUIRES(mutex_);
  // Hears the answers to the latest push that have not been heard yet. Blocks. Call it before each
  // question of a worker.
  Status settle() REQUIRES(mutex_);
  // Tells the servers about an announced checkpoint, if there is one. Call it between two pushes.
  Status mark() REQUIRES(mutex_);
  Result<std::vector<Stats>> ask_stats() REQUIRES(mutex_);

  bool has_queued() const REQUIRES(mutex_) { return links_.has_queued(); }
  // Sends beats that are due, and queued bytes; see BeatThread. Blocks only while a server on this
  // host reads nothing.
  Attention attend() REQUIRES(mutex_);

  // Closes the connections in a forked child. Async-signal-safe.
  void close_in_forked_child() noexcept { links_.close(); }

 private:
  Status rejoin(int server, const Error& lost) REQUIRES(mutex_);
  std::size_t at(int server) const {
    CIRANDA_ASSERT(server >= 0 && server < servers());
    return static_cast<std::size_t>(server);
  }

  const ClientOptions& options_;
  const WorkerMemory& memory_;
  Timeline* const timeline_;
  WaitNotice notice_;
  ServerLinks links_;  // a forked child closes them without the mutex

  mutable Mutex mutex_;
  Progress progress_ GUARDED_BY(mutex_);
  Rejoiner rejoiner_ GUARDED_BY(mutex_);
  std::vector<Asked> asked_ GUARDED_BY(mutex_);  // by server
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  std::optional<int> lost_server_ GUARDED_BY(mutex_);
};

template <typename T>
Result<T> Conversation::hear(int server) {
  for (;;) {
    auto message = links_.next(server, asked_[at(server)].to_do_what());
    if (!message) {
      CIRANDA_TRY(rejoin(server, message.error()));
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
