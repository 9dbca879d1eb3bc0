#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/ps/desk.h"
#include "core/transport/fd.h"
#include "core/transport/job_folder.h"
#include "core/transport/memory_segment.h"

namespace ciranda::ps {

// Where a server's workers find it: private, in the job's folder.
std::string folder_of_server(const std::string& job_folder, int server);

// One of a job's servers: a Desk, and the workers' connections to it. One thread, which takes one
// packet at a time.
//
// Not thread-safe, but for stop().
class Server {
 public:
  // Listens in `job_folder` when it returns.
  static Result<std::unique_ptr<Server>> start(const std::string& job_folder,
                                               const DeskOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Until stop(), or until every worker has left.
  Status run();
  // Async-signal-safe.
  void stop();

  // What the workers may ask for too, with the time spent.
  Stats stats() const;

 private:
  struct Connection {
    Fd socket;
    MemorySegment memory;     // of who has declared
    MemorySegment gradients;  // of who has moved them
  };

  Server(const std::string& job_folder, const DeskOptions& options);
  Status listen();
  Status watch(int descriptor);
  Status accept_all();
  void read_from(int socket);
  void take(int socket, Message message, std::vector<Fd> fds);
  void carry_out();
  void add_times(Stats& stats) const;
  void send(int socket, const Message& message);

  Desk desk_;
  JobFolder folder_;
  const int workers_;
  Fd epoll_;
  Fd stop_;                                // an eventfd
  std::map<int, Connection> connections_;  // by socket, which is the desk's number for it
  Desk::Answers answers_;                  // that are to be sent
  std::vector<std::byte> packet_;          // scratch
  std::vector<std::byte> encoded_;         // scratch
  std::uint64_t turn_ns_ = 0;              // when epoll told of the packets that are taken now
  std::uint64_t busy_ns_ = 0;
  std::uint64_t oldest_ns_ = 0;
};

}  // namespace ciranda::ps
