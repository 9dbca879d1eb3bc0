#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/service/client.h"
#include "core/service/server.h"
#include "ps/models.h"

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
      auto started = Server::start(folder_, {.job_id = "job",
                                             .server = server,
                                             .servers = servers,
                                             .workers = workers,
                                             .lease_ns = lease_ns});
      ASSERT_TRUE(started.ok()) << started.error().text;
      servers_.push_back(std::move(started).value());
      threads_.emplace_back([server = servers_.back().get()] {
        const Status ended = server->run();
        EXPECT_TRUE(ended.ok());
      });
    }
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

  ClientOptions options(Worker worker, Life life = 1) const {
    return {.folder = folder_,
            .job_id = "job",
            .worker = worker,
            .life = life,
            .workers = workers_,
            .servers = servers_count_,
            .timeout_ms = 20'000};
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

  std::string folder_;
  int servers_count_ = 1;
  int workers_ = 1;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::thread> threads_;
};

inline float* floats(const Client& client, std::uint64_t at) {
  return reinterpret_cast<float*>(client.memory() + at);
}

inline Status declare(Client& client, const Model& model, float first) {
  return client.declare(model, [&](const Layout& layout, std::byte* memory) {
    for (std::size_t table = 0; table < model.tables.size(); ++table) {
      std::fill_n(reinterpret_cast<float*>(memory + layout.parameters_at(table)),
                  layout.elements(table), first);
    }
  });
}

inline Result<Outcome> push(Client& client, const Model& model, float gradient) {
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    std::fill_n(floats(client, client.layout().gradients_at(table)),
                client.layout().elements(table), gradient);
  }
  std::vector<kernels::UpdateRule> rules;
  for (const Table& table : model.tables) rules.push_back(table.rule);
  const Status sent = client.push(client.versions(), 1.0, std::move(rules),
                                  std::vector<bool>(slot_count(model), true));
  if (!sent) return sent.error();
  return client.answer();
}

inline void expect_parameters(const Client& client, const Model& model, float expected) {
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    const float* values = floats(client, client.layout().parameters_at(table));
    for (const Layout::Place& slot : client.layout().slots(table)) {
      for (auto i = slot.begin; i < slot.end; ++i) {
        ASSERT_EQ(values[i], expected) << "table " << table << ", element " << i;
      }
    }
  }
}

inline const std::vector<std::vector<std::int64_t>> kSizes = {{3, 40'000, 1}, {17}};

}  // namespace ciranda::ps::testing
