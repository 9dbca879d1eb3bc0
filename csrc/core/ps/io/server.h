#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/ps/decide/server_protocol.h"
#include "core/ps/io/checkpoint_files.h"
#include "core/ps/io/state_files.h"
#include "core/ps/io/wait_notice.h"
#include "core/ps/io/worker_link.h"
#include "core/transport/dial/acceptor.h"
#include "core/transport/local/job_folder.h"
#include "core/wire/handshake.h"

namespace ciranda::ps {

// Where a server's workers on its host find it: private, in the job's folder.
std::string folder_of_server(const std::string& job_folder, int server);

struct ServerOptions {
  std::string job_folder;  // empty: it has no workers on its host
  ServerProtocolOptions protocol;
  // For workers on other hosts, listening; none: it has none. They prove that they hold `keys`.
  std::vector<Fd> listeners = {};
  std::unique_ptr<const ConnectionKeys> keys = {};
  bool authenticates = true;  // see MessageLink
  // Where it keeps what it holds, so that another one can go on when it is killed.
  std::optional<StateOptions> state = {};
  // Where its checkpoints go, which all servers write to; empty: there are none.
  std::string checkpoints = {};
  // Where no descriptor is left, who has connected and said nothing for so long is hung up on. A
  // worker enters once it is connected to all servers.
  std::uint64_t entry_ns = 30'000'000'000;
  // A checkpoint that it begins with, where it has no state; see CheckpointReader. Empty: none.
  std::string restored = {};
};

// One of a job's servers: a ServerProtocol, and the workers' connections to it. One thread, which
// takes one message at a time.
//
// Not thread-safe, but for stop().
class Server {
 public:
  // Listens when it returns.
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // What it has found of an earlier one, see StateFiles, or begins with; empty: nothing.
  const std::string& found() const { return found_; }

  // Until stop(), or until every worker has left, when nothing of its state stays, and the last
  // checkpoint has been made.
  Status run();
  // Async-signal-safe.
  void stop();
  // Whether it ended before all had left, and who was there then.
  bool is_stopped() const { return is_stopped_; }
  bool has_workers() const { return protocol_.has_callers(); }

  // What the workers may ask for too, with the time spent.
  Stats stats() const;

 private:
  struct Connection {
    std::unique_ptr<WorkerLink> link;
    bool waits_for_room = false;          // something is queued
    std::uint64_t ends_ns = kNever;       // hung up on: until then what it sends is thrown away
    std::uint64_t enters_by_ns = kNever;  // before its first message
  };

  explicit Server(ServerOptions options);
  Status find_state();
  Status listen();
  Status watch(int descriptor, std::uint64_t number);
  Status accept_here();
  Status turn_away(std::unique_ptr<WorkerLink> link, const Error& why);
  Status pause_accepting();
  void accept_again();
  void refuse_who_stays_out();
  Status accept_from_elsewhere();
  Status take_in(std::unique_ptr<WorkerLink> link);
  void serve(ServerProtocol::Caller caller, bool has_room);
  void read_from(ServerProtocol::Caller caller);
  bool take_next(ServerProtocol::Caller caller, Connection& connection);
  Status carry_out();
  void answer_at_once();
  void hold_answers();
  void send_answers();
  void send(ServerProtocol::Answer& answer);
  void report_losses();
  void report_waits();
  void watch_room(ServerProtocol::Caller caller, Connection& connection);
  void end_farewells();
  void end_checkpoints();
  std::uint64_t next_deadline_ns() const;
  void add_times(Stats& stats) const;

  ServerOptions options_;
  ServerProtocol protocol_;
  std::unique_ptr<StateFiles> files_;             // null: none
  std::unique_ptr<CheckpointFiles> checkpoints_;  // null: none
  std::string found_;
  std::unique_ptr<JobFolder> folder_;  // null: none
  std::optional<Acceptor> acceptor_;   // of other hosts
  Fd epoll_;
  Fd stop_;                                                   // an eventfd
  std::map<ServerProtocol::Caller, Connection> connections_;  // by the protocol's number
  ServerProtocol::Caller next_caller_;
  ServerProtocol::Answers answers_;  // that are to be sent
  ServerProtocol::Answers held_;     // until there is a first snapshot
  Status failed_;                    // files_
  bool is_stopped_ = false;
  std::uint64_t lost_ = 0;  // of which it has been said
  WaitNotice notice_;
  std::optional<std::uint64_t> awaits_ns_;  // since when somebody waits for the first parameters
  std::uint64_t accepts_again_ns_ = kNever;
  bool was_full_ = false;
  std::uint64_t turn_ns_ = 0;  // when epoll told of the messages that are taken now
  std::uint64_t busy_ns_ = 0;
  std::uint64_t oldest_ns_ = 0;
};

}  // namespace ciranda::ps
