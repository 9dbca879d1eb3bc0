// What could break: a push that is lost or counts twice, an answer that is read as another's, a
// lost server that is waited for.
#include "core/ps/io/client.h"

#include "ps/io/service.h"

namespace ciranda::ps {
namespace {

using testing::declare;
using testing::exact_rule;
using testing::expect_parameters;
using testing::kSizes;
using testing::model_of;
using testing::push;

using ServiceClient = testing::ServiceAnywhere;
INSTANTIATE_TEST_SUITE_P(, ServiceClient, testing::kWays, testing::name_of);

TEST_P(ServiceClient, OneWorkerTrainsAsIfItWereAlone) {
  start_servers(2, 1);
  const Model model = model_of(kSizes);
  const auto client = connect(0);
  const Status declared = declare(*client, model, 100.0f);
  ASSERT_TRUE(declared.ok()) << declared.error().text;
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

TEST_P(ServiceClient, NoPushOfManyWorkersIsLostOrCountsTwice) {
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

TEST_P(ServiceClient, AWorkerThatIsGoneKeepsNobodyAndMayComeBack) {
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
  EXPECT_NE(refusal(options(1, 1)).find("has been restarted"), std::string::npos);
  EXPECT_NE(refusal(options(1, 2)).find("worker 1 is connected already"), std::string::npos);
}

TEST_P(ServiceClient, ALostServerIsNamed) {
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

TEST_P(ServiceClient, AServerThatDoesNotComeIsNamed) {
  start_servers(2, 1);
  stop_server(1);
  ClientOptions impatient = options(0);
  impatient.address.timeout_ms = 1;
  EXPECT_NE(refusal(impatient).find("server 1"), std::string::npos);
}

TEST_P(ServiceClient, AveragesWaitForNobody) {
  start_servers(2, 2);
  const auto client = connect(0);
  const auto other = connect(1);
  EXPECT_EQ(client->average("loss", 4.0).value(), 4.0);
  EXPECT_EQ(other->average("loss", 2.0).value(), 3.0);
  EXPECT_EQ(client->average("loss", 6.0).value(), 4.0);
  EXPECT_EQ(client->average("accuracy", 1.0).value(), 1.0);
}

TEST_P(ServiceClient, StateComesBackFromAllServers) {
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

}  // namespace
}  // namespace ciranda::ps
