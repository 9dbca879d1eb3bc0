#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <utility>

#include "core/base/clock.h"
#include "core/ps/decide/model_codec.h"
#include "core/ps/io/server_link.h"
#include "core/ps/io/worker_link.h"
#include "core/transport/tcp/socket_io.h"
#include "core/transport/tcp/tcp.h"
#include "ps/decide/models.h"
#include "ps/io/service.h"
#include "wire/keys.h"

// The two ends of one connection, without a server or a client.
namespace ciranda::ps::testing {

struct Ends {
  std::unique_ptr<ServerLink> worker;  // the worker's end
  std::unique_ptr<WorkerLink> server;
};

inline std::pair<Fd, Fd> tcp_sockets() {
  const Fd listener = listen_tcp("127.0.0.1").value();
  auto caller = connect_tcp(local_address(listener.get()).value(), kNever).value();
  EXPECT_TRUE(wait_readable(listener.get(), kNever).ok());
  Fd called(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  EXPECT_TRUE(called.valid());
  return {std::move(caller), std::move(called)};
}

inline ProvenSocket proven(Fd socket, int sends, int receives) {
  return {.stream = Stream(std::move(socket)),
          .session = {.send_key = test::secret_of(sends), .receive_key = test::secret_of(receives)},
          .address = "there"};
}

// Of server `server` of `servers`.
inline Ends connect_ends(Way way, const WorkerMemory& memory, int server = 0, int servers = 1) {
  if (way == Way::kHere) {
    auto [a, b] = make_packet_sockets().value();
    return {make_link_here(std::move(a), 0, memory), make_local_link(std::move(b))};
  }
  auto [a, b] = tcp_sockets();
  return {make_link_elsewhere(proven(std::move(a), 1, 2), server, true, memory),
          make_remote_link(proven(std::move(b), 2, 1), server, servers, true)};
}

// A worker's memory for a model, filled with one value.
inline WorkerMemory memory_of(const Model& model, int servers, float value) {
  WorkerMemory memory;
  std::vector<std::byte> model_blob;
  encode(model, model_blob);
  memory.model_blob = SharedMemory::create(model_blob.size()).value();
  std::copy(model_blob.begin(), model_blob.end(), memory.model_blob.segment.data());
  memory.model_blob_bytes = model_blob.size();
  memory.layout.emplace(model, servers);
  const auto bytes = static_cast<std::size_t>(memory.layout->memory_bytes());
  memory.memory = SharedMemory::create(bytes).value();
  std::fill_n(reinterpret_cast<float*>(memory.memory.segment.data()), bytes / sizeof(float), value);
  return memory;
}

// What one end hears next, while the other sends what it has.
template <typename Sender, typename Receiver>
Result<Message> heard(Sender& sender, Receiver& receiver) {
  for (;;) {
    EXPECT_TRUE(sender.flush().ok());
    auto message = receiver.receive();
    if (!message) return message.error();
    if (message.value()) return std::move(*message.value());
  }
}
inline Result<Message> heard_by_server(Ends& ends) {
  return heard(*ends.worker, *ends.server);
}
inline Result<Message> heard_by_worker(Ends& ends) {
  return heard(*ends.server, *ends.worker);
}

// Declares, and gives the server's view of the worker's memory.
inline std::byte* declare_through(Ends& ends, const WorkerMemory& memory) {
  EXPECT_TRUE(ends.worker->send(Declare{.model_bytes = memory.model_blob_bytes}).ok());
  EXPECT_TRUE(heard_by_server(ends).ok());
  const ServerProtocol::Attached attached = ends.server->attached();
  const auto model_blob = attached.model_blob(memory.model_blob_bytes);
  EXPECT_TRUE(model_blob.ok());
  EXPECT_TRUE(decode_model(model_blob.value()).ok());
  const auto seen = attached.memory(memory.layout->memory_bytes());
  EXPECT_TRUE(seen.ok());
  return seen.value();
}

inline float* at(std::byte* memory, std::uint64_t byte) {
  return reinterpret_cast<float*>(memory + byte);
}

}  // namespace ciranda::ps::testing
