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

// Returns the private folder in which workers on the same host find the server.
std::string folder_of_server(const std::string& job_folder, int server);

struct ServerOptions {
  std::string job_folder;  // empty: no workers on this host
  ServerProtocolOptions protocol;
  // Listening sockets for workers on other hosts, who prove that they hold `keys`. Empty: no such
  // workers.
  std::vector<Fd> listeners = {};
  std::unique_ptr<const ConnectionKeys> keys = {};
  bool authenticates = true;  // see MessageLink
  // The place of the server's state, so that another server can replace it after a kill. None: the
  // state is not kept.
  std::optional<StateOptions> state = {};
  // The folder of the job's checkpoints, which all servers write to. Empty: no checkpoints.
  std::string checkpoints = {};
  // When no descriptor is left, the server hangs up on connections that have been open for this
  // long without a first message. A worker sends its first message once it is connected to all
  // servers.
  std::uint64_t entry_ns = 30'000'000'000;
  // The checkpoint to begin with if there is no state; see CheckpointReader::open(). Empty: none.
  std::string restored = {};
};

// One of a job's servers: a ServerProtocol, and the workers' connections to it. The thread in run()
// takes one message at a time.
//
// Not thread-safe, except for stop().
class Server {
 public:
  // Makes a server, restores its state or a checkpoint if there is one, and starts listening.
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The state (StateFiles::found()) or the checkpoint that it began with, in words; empty: none.
  const std::string& found() const { return found_; }

  // Serves until stop(), or until every worker has left. When all have left, it makes the last
  // checkpoint and removes its state. After stop() it leaves its state on the disk.
  Status run();
  // Makes run() return. Async-signal-safe.
  void stop();
  // Returns true if stop() ended run() before all workers had left.
  bool is_stopped() const { return is_stopped_; }
  // Returns true if a process that has entered is connected.
  bool has_workers() const { return protocol_.has_callers(); }

  // Returns the Stats that workers may ask for, including the times.
  Stats stats() const;

 private:
  struct Connection {
    std::unique_ptr<WorkerLink> link;
    bool waits_for_room = false;          // messages are queued
    std::uint64_t ends_ns = kNever;       // after a hang-up: input is discarded until then
    std::uint64_t enters_by_ns = kNever;  // deadline of the first message
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
  std::optional<Acceptor> acceptor_;   // for other hosts
  Fd epoll_;
  Fd stop_;  // an eventfd
  std::map<ServerProtocol::Caller, Connection> connections_;
  ServerProtocol::Caller next_caller_;
  ServerProtocol::Answers answers_;  // to be sent
  ServerProtocol::Answers held_;     // until the first snapshot exists
  Status failed_;                    // error of carry_out() in read_from()
  bool is_stopped_ = false;
  std::uint64_t lost_ = 0;  // lost pushes that were reported
  WaitNotice notice_;
  std::optional<std::uint64_t> awaits_ns_;  // since when workers wait for the first parameters
  std::uint64_t accepts_again_ns_ = kNever;
  bool was_full_ = false;
  std::uint64_t turn_ns_ = 0;  // when epoll_wait() returned the current events
  std::uint64_t busy_ns_ = 0;
  std::uint64_t oldest_ns_ = 0;
};

}  // namespace ciranda::ps
