// What could break: a push that is lost or counts twice, gradients that are read from memory that
// the worker has left, a second model.
#include "core/ps/io/parameter_client.h"

#include "ps/io/service.h"

namespace ciranda::ps {
namespace {

using testing::declare;
using testing::exact_rule;
using testing::expect_parameters;
using testing::kSizes;
using testing::model_of;
using testing::push;

using Parameters = testing::ServiceAnywhere;
INSTANTIATE_TEST_SUITE_P(Ways, Parameters, testing::kWays, testing::name_of);

TEST_P(Parameters, OneWorkerTrainsAsIfItWereAlone) {
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

TEST_P(Parameters, NoPushOfManyWorkersIsLostOrCountsTwice) {
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
    ASSERT_TRUE(client->parameters().pull().ok());
    expect_parameters(*client, model, -static_cast<float>(kWorkers * kPushes));
  }
}

TEST_P(Parameters, StateComesBackFromAllServers) {
  start_servers(3, 1);
  kernels::UpdateRule rule = exact_rule();
  rule.momentum = 0.5;
  const Model model = model_of(kSizes, {}, rule);
  const auto client = connect(0);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  ASSERT_TRUE(push(*client, model, 4.0f).ok());
  ASSERT_TRUE(push(*client, model, 2.0f).ok());
  const auto state = client->parameters().fetch_state(0, 0);
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(reinterpret_cast<const float*>(state.value().data())[30'000], 4.0f);
  const auto steps = client->parameters().fetch_steps();
  ASSERT_TRUE(steps.ok());
  const auto* counts = reinterpret_cast<const std::int64_t*>(steps.value().data());
  EXPECT_EQ(std::vector<std::int64_t>(counts, counts + 4), std::vector<std::int64_t>(4, 2));
}

TEST_P(Parameters, AreThoseOfOneModel) {
  start_servers(2, 1);
  const Model model = model_of(kSizes);
  const auto client = connect(0);
  EXPECT_FALSE(client->parameters().declared());
  EXPECT_TRUE(client->parameters().model().tables.empty());
  ASSERT_TRUE(declare(*client, model, 1.0f).ok());
  EXPECT_TRUE(client->parameters().declared());
  EXPECT_EQ(client->parameters().model(), model);
  const Status second = declare(*client, model, 2.0f);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(second.error().text.find("has declared its parameters already"), std::string::npos);
  expect_parameters(*client, model, 1.0f);
}

TEST_P(Parameters, GradientsAreReadWhereTheyHaveMoved) {
  start_servers(2, 1);
  const Model model = model_of(kSizes);
  const auto client = connect(0);
  ParameterClient& parameters = client->parameters();
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  ASSERT_TRUE(push(*client, model, 1.0f).ok());
  const MemorySegment old = parameters.segment();
  ASSERT_TRUE(parameters.move_gradients().ok());
  ASSERT_NE(parameters.gradients().data(), old.data());
  EXPECT_EQ(parameters.segment().data(), old.data());
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    const std::uint64_t at = parameters.layout().gradients_at(table);
    std::fill_n(reinterpret_cast<float*>(parameters.gradients().data() + at),
                parameters.layout().elements(table), 3.0f);
  }
  ASSERT_TRUE(push(*client, model, 100.0f).ok());  // fills the old memory
  expect_parameters(*client, model, -4.0f);
}

TEST_P(Parameters, PushesAndPullsAreCounted) {
  start_servers(2, 1);
  const Model model = model_of(kSizes);
  const auto client = connect(0);
  ParameterClient& parameters = client->parameters();
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(push(*client, model, 1.0f).ok());
  ASSERT_TRUE(parameters.pull().ok());
  EXPECT_EQ(parameters.versions(), (std::vector<std::uint64_t>{3, 3}));
  const ClientStats stats = parameters.stats();
  EXPECT_EQ(stats.outcomes[static_cast<std::size_t>(Outcome::kApplied)], 3u);
  EXPECT_EQ(stats.pulls, 1u);
  std::uint64_t bytes = 0;
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    bytes += static_cast<std::uint64_t>(parameters.layout().elements(table)) * sizeof(float);
  }
  EXPECT_EQ(stats.pushed_bytes, 3 * bytes);
  EXPECT_GT(stats.waiting_ns, 0u);
  EXPECT_LE(stats.held_ns, stats.waiting_ns);
}

}  // namespace
}  // namespace ciranda::ps
