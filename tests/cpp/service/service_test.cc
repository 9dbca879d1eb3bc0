// What could break: servers and workers as threads of one process, over their real sockets and
// memory. Who is refused, who is lost, who comes back.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/service/client.h"
#include "core/service/server.h"
#include "core/transport/job_folder.h"
#include "core/transport/socket_io.h"
#include "ps/models.h"

namespace ciranda::ps {
namespace {

using testing::exact_rule;
using testing::model_of;

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

float* floats(const Client& client, std::uint64_t at) {
  return reinterpret_cast<float*>(client.memory() + at);
}

Status declare(Client& client, const Model& model, float first) {
  return client.declare(model, [&](const Layout& layout, std::byte* memory) {
    for (std::size_t table = 0; table < model.tables.size(); ++table) {
      std::fill_n(reinterpret_cast<float*>(memory + layout.parameters_at(table)),
                  layout.elements(table), first);
    }
  });
}

Result<Outcome> push(Client& client, const Model& model, float gradient) {
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

void expect_parameters(const Client& client, const Model& model, float expected) {
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    const float* values = floats(client, client.layout().parameters_at(table));
    for (const Layout::Place& slot : client.layout().slots(table)) {
      for (auto i = slot.begin; i < slot.end; ++i) {
        ASSERT_EQ(values[i], expected) << "table " << table << ", element " << i;
      }
    }
  }
}

const std::vector<std::vector<std::int64_t>> kSizes = {{3, 40'000, 1}, {17}};

TEST_F(Service, OneWorkerTrainsAsIfItWereAlone) {
  start_servers(2, 1);
  const Model model = model_of(kSizes);
  const auto client = connect(0);
  ASSERT_TRUE(declare(*client, model, 100.0f).ok());
  expect_parameters(*client, model, 100.0f);
  for (int i = 1; i <= 5; ++i) {
    const auto outcome = push(*client, model, static_cast<float>(i));
    ASSERT_TRUE(outcome.ok()) << outcome.error().text;
    EXPECT_EQ(outcome.value(), Outcome::kApplied);
  }
  expect_parameters(*client, model, 85.0f);
  const auto stats = client->stats();
  ASSERT_TRUE(stats.ok());
  ASSERT_EQ(stats.value().size(), 2u);
  EXPECT_EQ(stats.value()[1].outcomes[0], 5u);
  EXPECT_EQ(stats.value()[1].staleness[0], 5u);
}

TEST_F(Service, NoPushOfManyWorkersIsLostOrCountsTwice) {
  constexpr int kWorkers = 4;
  constexpr int kPushes = 100;
  start_servers(2, kWorkers);
  const Model model = model_of(kSizes);
  std::vector<std::unique_ptr<Client>> clients(kWorkers);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < kWorkers; ++worker) {
    threads.emplace_back([&, worker] {
      auto& client = clients[static_cast<std::size_t>(worker)];
      client = connect(worker);
      ASSERT_TRUE(declare(*client, model, static_cast<float>(7 * worker)).ok());
      for (int i = 0; i < kPushes; ++i) ASSERT_TRUE(push(*client, model, 1.0f).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& client : clients) {
    ASSERT_TRUE(client->pull().ok());
    expect_parameters(*client, model, -static_cast<float>(kWorkers * kPushes));
  }
}

TEST_F(Service, RoundsAreTheMeanOfAllWorkers) {
  start_servers(2, 3);
  const Model model = model_of(kSizes, {.kind = ModeKind::kSync});
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 3; ++worker) {
    threads.emplace_back([&, worker] {
      const auto client = connect(worker);
      ASSERT_TRUE(declare(*client, model, 0.0f).ok());
      for (int i = 1; i <= 20; ++i) {
        const auto outcome = push(*client, model, static_cast<float>(worker));
        ASSERT_TRUE(outcome.ok());
        EXPECT_EQ(outcome.value(), Outcome::kApplied);
        expect_parameters(*client, model, static_cast<float>(-i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Service, AWorkerThatIsGoneKeepsNobodyAndMayComeBack) {
  start_servers(2, 2);
  const Model model = model_of(kSizes, {.kind = ModeKind::kSsp});
  const auto client = connect(0);
  auto other = connect(1);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  ASSERT_TRUE(declare(*other, model, 0.0f).ok());
  other.reset();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(push(*client, model, 1.0f).ok());
  other = connect(1, 2);
  ASSERT_TRUE(declare(*other, model, 50.0f).ok());
  expect_parameters(*other, model, -3.0f);
  std::thread pushes([&] { ASSERT_TRUE(push(*other, model, 1.0f).ok()); });
  ASSERT_TRUE(push(*client, model, 1.0f).ok());
  pushes.join();
  expect_parameters(*client, model, -5.0f);
  EXPECT_NE(refusal(options(1, 1)).find("has been started anew"), std::string::npos);
  EXPECT_NE(refusal(options(1, 2)).find("worker 1 is there already"), std::string::npos);
}

TEST_F(Service, ASilentWorkersLeaseEnds) {
  start_servers(1, 2, /*lease_ns=*/300'000'000);
  const Model model = model_of(kSizes, {.kind = ModeKind::kSync});
  const auto client = Client::connect(options(0)).value();
  ClientOptions silent = options(1);
  silent.beat_ns = 3'600'000'000'000;
  const auto other = Client::connect(silent).value();
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  ASSERT_TRUE(declare(*other, model, 0.0f).ok());
  ASSERT_TRUE(push(*client, model, 1.0f).ok());  // once the other's lease is over
  const auto late = push(*other, model, 1.0f);
  ASSERT_TRUE(late.ok());
  EXPECT_EQ(late.value(), Outcome::kLate);
  expect_parameters(*other, model, -1.0f);
}

TEST_F(Service, WhoDoesNotFitIsRefusedInASentence) {
  start_servers(1, 2);
  const auto refused = [&](auto change) {
    ClientOptions other = options(1);
    change(other);
    return refusal(other);
  };
  EXPECT_NE(refused([](auto& other) { other.job_id = "b"; }).find("of job 'b', server 0 of job"),
            std::string::npos);
  EXPECT_NE(refused([](auto& other) { other.workers = 3; }).find("of 3 workers and 1 servers"),
            std::string::npos);
  EXPECT_NE(refused([](auto& other) { other.worker = 2; }).find("there is no worker 2"),
            std::string::npos);

  const Model model = model_of(kSizes);
  const auto client = connect(0);
  const auto other = connect(1);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  Model another = model;
  another.tables[1].slots[0].shape = {18};
  const Status declared = declare(*other, another, 0.0f);
  ASSERT_FALSE(declared.ok());
  EXPECT_EQ(declared.error().code, ErrorCode::kMismatch);
  EXPECT_EQ(declared.error().text,
            "server 0: worker 1 trains something else than those before it: parameter 'p3' is "
            "[18] instead of [17]");
  EXPECT_TRUE(push(*client, model, 1.0f).ok());  // the server lives on
}

TEST_F(Service, ALostServerIsNamed) {
  start_servers(2, 1);
  const Model model = model_of(kSizes);
  const auto client = connect(0);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  stop_server(1);
  const auto outcome = push(*client, model, 1.0f);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kRankLost);
  EXPECT_EQ(outcome.error().text, "server 1 is lost");
  EXPECT_FALSE(client->pull().ok());
}

TEST_F(Service, AveragesWaitForNobody) {
  start_servers(2, 2);
  const auto client = connect(0);
  const auto other = connect(1);
  EXPECT_EQ(client->average("loss", 4.0).value(), 4.0);
  EXPECT_EQ(other->average("loss", 2.0).value(), 3.0);
  EXPECT_EQ(client->average("loss", 6.0).value(), 4.0);
  EXPECT_EQ(client->average("accuracy", 1.0).value(), 1.0);
}

TEST_F(Service, StateComesBackFromAllServers) {
  start_servers(3, 1);
  kernels::UpdateRule rule = exact_rule();
  rule.momentum = 0.5;
  const Model model = model_of(kSizes, {}, rule);
  const auto client = connect(0);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  ASSERT_TRUE(push(*client, model, 4.0f).ok());
  ASSERT_TRUE(push(*client, model, 2.0f).ok());
  const auto state = client->fetch_state(0, 0);
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(reinterpret_cast<const float*>(state.value().data())[30'000], 4.0f);
  const auto steps = client->fetch_steps();
  ASSERT_TRUE(steps.ok());
  const auto* counts = reinterpret_cast<const std::int64_t*>(steps.value().data());
  EXPECT_EQ(std::vector<std::int64_t>(counts, counts + 4), std::vector<std::int64_t>(4, 2));
}

// Whatever comes first, the server says why it hangs up, and serves the others.
TEST_F(Service, StrangersAreCutOff) {
  start_servers(1, 1);
  const Model model = model_of(kSizes);
  const auto client = connect(0);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  std::vector<std::vector<std::byte>> packets;
  for (const Message& message :
       {Message(Push{}), Message(Pull{}), Message(Ack{}), Message(Declare{.model_bytes = 5}),
        Message(Enter{.version = 99, .job_id = "job"}), Message(Leave{})}) {
    encode(message, packets.emplace_back());
  }
  packets.push_back(std::vector<std::byte>(100, std::byte{0xff}));
  for (const auto& packet : packets) {
    auto socket = connect_in_job_folder(folder_of_server(folder_, 0), kNever, 0).value();
    ASSERT_TRUE(send_packet(socket.get(), packet, {}).ok());
    ASSERT_TRUE(wait_readable(socket.get(), kNever).ok());
    std::vector<std::byte> answer(kPacketBytesMax);
    const auto received = receive_packet(socket.get(), answer);
    ASSERT_TRUE(received.ok());
    ASSERT_EQ(received.value().what, Received::kPacket);
    const auto message = decode_message(std::span(answer).first(received.value().bytes));
    ASSERT_TRUE(message.ok());
    EXPECT_TRUE(std::holds_alternative<Refused>(message.value()));
  }
  EXPECT_TRUE(push(*client, model, 1.0f).ok());
}

}  // namespace
}  // namespace ciranda::ps
