#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/ps/messages.h"
#include "core/ps/shard.h"
#include "core/transport/fd.h"
#include "core/transport/job_folder.h"
#include "core/transport/memory_segment.h"

namespace ciranda::ps {

struct ServerOptions {
  std::string folder;  // the job's, see folder_of_server()
  std::string job_id;
  int server = 0;
  int servers = 1;
  int workers = 1;
  // A worker that has said nothing for so long does not keep the others waiting.
  std::uint64_t lease_ns = 10'000'000'000;
};

// Where a server's workers find it; private, as a job's folder.
std::string folder_of_server(const std::string& job_folder, int server);

// One of a job's servers: a Shard, and the workers' connections to it. One thread, which takes one
// packet at a time; a worker whose packet cannot be is refused with a sentence and cut off, and the
// server lives on.
//
// Not thread-safe, but for stop().
class Server {
 public:
  // Listens when it returns.
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Until stop(), or until every worker has left.
  Status run();
  // Async-signal-safe.
  void stop();

  // What the workers may ask for too.
  Stats stats() const;

 private:
  struct Connection {
    Fd socket;
    Worker worker = -1;  // none: it has not entered
    std::uint64_t heard_ns = 0;
    MemorySegment memory;  // once it has declared
    bool waits = false;    // has declared; worker 0's parameters are not there
    bool silent = false;   // its lease is over
  };
  struct Member {
    Life life = 0;
    int connection = -1;  // its socket; none: it is not here
    bool left = false;    // cleanly
  };
  using Bytes = std::span<const std::byte>;

  explicit Server(ServerOptions options);
  Status listen();
  Status accept_all();
  void read_from(int socket);
  // Nothing: go on; an error: refuse it.
  Status take(Connection& connection, Bytes packet, std::vector<Fd> fds);
  Status enter(Connection& connection, const Enter& message);
  Status declare(Connection& connection, const Declare& message, std::vector<Fd> fds);
  Status push(Connection& connection, Push message);
  template <typename Fn>
  Status fetch(Connection& connection, std::size_t bytes, std::vector<Fd> fds, Fn fill);
  Status answer(Connection& connection, const Message& message);
  void send(int socket, const Message& message);
  void send_acks(const std::vector<Ack>& acks);
  void give_if_there();
  void make_ready(Connection& connection);
  void hear(Connection& connection);
  void end_leases();
  void close(int socket, bool left);
  bool all_have_left() const;
  std::uint64_t next_lease_ns() const;
  Connection& of(int socket) { return connections_.at(socket); }
  Member& member(Worker worker) { return members_[static_cast<std::size_t>(worker)]; }

  const ServerOptions options_;
  JobFolder folder_;
  Fd epoll_;
  Fd stop_;                                // an eventfd
  std::map<int, Connection> connections_;  // by socket
  std::vector<Member> members_;
  std::unique_ptr<Shard> shard_;  // from the first declaration on
  struct Averages {
    std::map<Worker, double> latest;
  };
  std::map<std::string, Averages> averages_;
  std::vector<std::byte> packet_;   // scratch
  std::vector<std::byte> encoded_;  // scratch
  std::uint64_t turn_ns_ = 0;       // when epoll told of the packets that are taken now
  std::uint64_t busy_ns_ = 0;
  std::uint64_t oldest_ns_ = 0;
};

}  // namespace ciranda::ps
