#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/ps/io/client.h"
#include "core/ps/io/server.h"
#include "core/transport/tcp/tcp.h"
#include "ps/decide/models.h"
#include "wire/keys.h"

// Servers and workers as threads of one process, over their real sockets and memory.
namespace ciranda::ps::testing {

class Service : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "ciranda-ps-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override {
    stop_servers();
    std::filesystem::remove_all(folder_);
  }

  void start_servers(int servers, int workers, std::uint64_t lease_ns = 10'000'000'000) {
    servers_count_ = servers;
    workers_ = workers;
    for (int server = 0; server < servers; ++server) {
      auto started = Server::start(options_of(server, lease_ns));
      ASSERT_TRUE(started.ok()) << started.error().text;
      servers_.push_back(std::move(started).value());
      threads_.emplace_back([server = servers_.back().get()] {
        const Status ended = server->run();
        EXPECT_TRUE(ended.ok()) << ended.error().text;
      });
    }
  }
  // All workers have left.
  void await_servers() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    servers_.clear();
  }
  void stop_servers() {
    for (auto& server : servers_) server->stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    servers_.clear();
  }
  void stop_server(std::size_t server) {
    servers_[server]->stop();
    threads_[server].join();
    threads_.erase(threads_.begin() + static_cast<std::ptrdiff_t>(server));
    servers_.erase(servers_.begin() + static_cast<std::ptrdiff_t>(server));
  }

  // The servers keep what they hold, and workers wait for one that is lost.
  void keep_state(Durability durability, std::uint64_t patience_ms = 20'000) {
    durability_ = durability;
    patience_ms_ = patience_ms;
  }
  // A checkpoint after so many pushes, and at the end.
  void make_checkpoints(std::uint64_t pushes) { checkpoint_pushes_ = pushes; }
  std::string checkpoints() const { return folder_ + "/checkpoints"; }
  std::filesystem::path state_of(int server) const {
    return std::filesystem::path(folder_) / ("state" + std::to_string(server));
  }
  // Its state as it was before is all that the next one finds.
  enum class End { kInOrder, kKilled, kWithoutItsState };
  void restart_server(int server, End end = End::kInOrder) {
    const auto at = static_cast<std::size_t>(server);
    const std::filesystem::path kept = state_of(server), copy = kept.string() + "-copy";
    if (end == End::kKilled) std::filesystem::copy(kept, copy);
    servers_[at]->stop();
    threads_[at].join();
    servers_[at].reset();
    if (end != End::kInOrder) std::filesystem::remove_all(kept);
    if (end == End::kKilled) std::filesystem::rename(copy, kept);
    auto started = Server::start(options_of(server, 10'000'000'000));
    ASSERT_TRUE(started.ok()) << started.error().text;
    servers_[at] = std::move(started).value();
    threads_[at] = std::thread([server = servers_[at].get()] { EXPECT_TRUE(server->run().ok()); });
  }

  // That of this process's only client to that server.
  void break_connection(int server) const {
    int broken = 0;
    for (int fd = 3; fd < 1'024; ++fd) {
      sockaddr_storage peer{};
      socklen_t size = sizeof peer;
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
      if (!is_at(server, peer)) continue;
      ::shutdown(fd, SHUT_RDWR);
      ++broken;
    }
    ASSERT_EQ(broken, 1);
  }
  bool is_at(int server, const sockaddr_storage& peer) const {
    if (peer.ss_family == AF_UNIX) {
      const auto* path = reinterpret_cast<const sockaddr_un*>(&peer)->sun_path;
      return std::string(path).starts_with(folder_of_server(folder_, server));
    }
    if (peer.ss_family != AF_INET || !elsewhere_) return false;
    const std::uint16_t port = ntohs(reinterpret_cast<const sockaddr_in*>(&peer)->sin_port);
    return port == endpoints_[static_cast<std::size_t>(server)]->port;
  }

  ClientOptions options(Worker worker, Life life = 1) const {
    std::vector<std::optional<Endpoint>> servers = endpoints_;
    servers.resize(static_cast<std::size_t>(servers_count_));
    return {.address = {.folder = folder_,
                        .servers = std::move(servers),
                        .keys = keys(),
                        .worker = worker,
                        .life = life,
                        .timeout_ms = 20'000},
            .job_id = "job",
            .workers = workers_,
            .patience_ms = patience_ms_,
            .coordinates = worker == workers_};
  }
  std::unique_ptr<Client> connect(Worker worker, Life life = 1) const {
    auto client = Client::connect(options(worker, life));
    EXPECT_TRUE(client.ok()) << client.error().text;
    return std::move(client).value();
  }
  std::string refusal(const ClientOptions& options) const {
    const auto client = Client::connect(options);
    return client.ok() ? "" : client.error().text;
  }

  // The workers call through TCP, as from other hosts.
  void be_elsewhere(bool tls = false) {
    elsewhere_ = true;
    tls_ = tls;
  }
  std::unique_ptr<ConnectionKeys> keys() const {
    if (!elsewhere_) return nullptr;
    return ConnectionKeys::of_job(test::secret_of(7), "job", 0, tls_).value();
  }
  ServerOptions options_of(int server, std::uint64_t lease_ns) {
    ServerOptions options{.job_folder = folder_,
                          .protocol = {.job_id = "job",
                                       .server = server,
                                       .servers = servers_count_,
                                       .workers = workers_,
                                       .lease_ns = lease_ns,
                                       .has_coordinator = has_coordinator_}};
    if (durability_) {
      options.state = {.folder = state_of(server), .durability = *durability_};
    }
    if (checkpoint_pushes_ > 0) {
      options.checkpoints = checkpoints();
      options.protocol.checkpoint_pushes = checkpoint_pushes_;
    }
    options.restored = restored_;
    if (entry_ns_ > 0) options.entry_ns = entry_ns_;
    if (!elsewhere_) return options;
    options.job_folder.clear();
    options.keys = keys();
    endpoints_.resize(std::max(endpoints_.size(), static_cast<std::size_t>(server) + 1));
    auto& endpoint = endpoints_[static_cast<std::size_t>(server)];
    const std::uint16_t port = endpoint ? endpoint->port : std::uint16_t{0};
    options.listeners.push_back(listen_tcp("127.0.0.1", {.first = port, .last = port}).value());
    endpoint = local_address(options.listeners.front().get()).value().endpoint();
    return options;
  }

  std::string folder_;
  std::optional<Durability> durability_;  // none: they keep nothing
  std::uint64_t patience_ms_ = 0;
  std::uint64_t checkpoint_pushes_ = 0;  // 0: none are made
  std::string restored_;                 // empty: nothing
  std::uint64_t entry_ns_ = 0;           // 0: the usual
  bool has_coordinator_ = false;
  bool elsewhere_ = false;
  bool tls_ = false;
  std::vector<std::optional<Endpoint>> endpoints_;
  int servers_count_ = 1;
  int workers_ = 1;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::thread> threads_;
};

// The same on one host, and as between two, in clear and through TLS.
enum class Way { kHere, kElsewhere, kTls };
class ServiceAnywhere : public Service, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    Service::SetUp();
    if (GetParam() != Way::kHere) be_elsewhere(GetParam() == Way::kTls);
  }
};
inline const auto kWays = ::testing::Values(Way::kHere, Way::kElsewhere, Way::kTls);
inline std::string name_of(const ::testing::TestParamInfo<Way>& way) {
  constexpr const char* kNames[] = {"Here", "Elsewhere", "Tls"};
  return kNames[static_cast<std::size_t>(way.param)];
}

inline float* floats(const Client& client, std::uint64_t at) {
  return reinterpret_cast<float*>(client.parameters().segment().data() + at);
}

inline Status declare(Client& client, const Model& model, float first) {
  return client.parameters().declare(model, [&](const Layout& layout, std::byte* memory) {
    for (std::size_t table = 0; table < model.tables.size(); ++table) {
      std::fill_n(reinterpret_cast<float*>(memory + layout.parameters_at(table)),
                  layout.elements(table), first);
    }
  });
}

inline Result<Outcome> push(Client& client, const Model& model, float gradient,
                            VectorId into = kParametersVector) {
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    std::fill_n(floats(client, client.parameters().layout().gradients_at(table)),
                client.parameters().layout().elements(table), gradient);
  }
  std::vector<kernels::UpdateRule> rules;
  for (const Table& table : model.tables) rules.push_back(table.rule);
  const Status sent =
      client.parameters().push(client.parameters().versions(), 1.0, std::move(rules),
                               std::vector<bool>(slot_count(model), true), into);
  if (!sent) return sent.error();
  return client.parameters().answer();
}

inline void expect_parameters(const Client& client, const Model& model, float expected) {
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    const float* values = floats(client, client.parameters().layout().parameters_at(table));
    for (const Layout::Place& slot : client.parameters().layout().slots(table)) {
      for (auto i = slot.begin; i < slot.end; ++i) {
        ASSERT_EQ(values[i], expected) << "table " << table << ", element " << i;
      }
    }
  }
}

inline const std::vector<std::vector<std::int64_t>> kSizes = {{3, 40'000, 1}, {17}};

}  // namespace ciranda::ps::testing
