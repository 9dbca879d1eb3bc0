// What could break: a push that counts twice or not at all since its server was lost, a worker that
// goes on with a server that has forgotten everything, or waits for one that never comes.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "core/transport/local/job_folder.h"
#include "core/transport/tcp/socket_io.h"
#include "ps/io/service.h"

namespace ciranda::ps {
namespace {

using testing::declare;
using testing::exact_rule;
using testing::expect_parameters;
using testing::kSizes;
using testing::kWays;
using testing::model_of;
using testing::name_of;
using testing::push;

class Rejoin : public testing::ServiceAnywhere {
 protected:
  // Two servers, and one worker, whose parameters are zeros.
  std::unique_ptr<Client> begin(Durability durability, std::uint64_t patience_ms = 20'000) {
    keep_state(durability, patience_ms);
    start_servers(2, 1);
    auto client = connect(0);
    EXPECT_TRUE(declare(*client, model_, 0.0f).ok());
    return client;
  }

  const Model model_ = model_of(kSizes);
};
INSTANTIATE_TEST_SUITE_P(Ways, Rejoin, kWays, name_of);
using RejoinHere = testing::Service;

TEST_P(Rejoin, AServerThatComesBackGoesOn) {
  for (const Durability durability : {Durability::kMemory, Durability::kLog, Durability::kDisk}) {
    for (const End end : {End::kInOrder, End::kKilled}) {
      if (durability == Durability::kMemory && end == End::kKilled) continue;  // see below
      SCOPED_TRACE(static_cast<int>(durability) * 10 + static_cast<int>(end));
      keep_state(durability);
      start_servers(2, 1);
      kernels::UpdateRule rule = exact_rule();
      rule.momentum = 0.5;
      const Model model = model_of(kSizes, {}, rule);
      auto client = connect(0);
      ASSERT_TRUE(declare(*client, model, 0.0f).ok());
      ASSERT_TRUE(push(*client, model, 4.0f).ok());
      restart_server(1, end);
      EXPECT_EQ(push(*client, model, 2.0f).value(), Outcome::kApplied);
      expect_parameters(*client, model, -8.0f);
      restart_server(0, end);
      ASSERT_TRUE(client->parameters().pull().ok());
      expect_parameters(*client, model, -8.0f);
      const auto state = client->parameters().fetch_state(0, 0);
      ASSERT_TRUE(state.ok());
      EXPECT_EQ(reinterpret_cast<const float*>(state.value().data())[30'000], 4.0f);
      const auto stats = client->stats();
      ASSERT_TRUE(stats.ok());
      for (const Stats& each : stats.value()) {
        EXPECT_EQ(each.version, 2u);
        EXPECT_EQ(each.lost, 0u);
      }
      // It leaves one that is just coming back, too, which ends then and keeps nothing.
      restart_server(1, end);
      client.reset();
      for (std::thread& thread : threads_) thread.join();
      threads_.clear();
      EXPECT_TRUE(std::filesystem::is_empty(state_of(0)) && std::filesystem::is_empty(state_of(1)));
      servers_.clear();
    }
  }
}

// The server is as it was, and takes the worker for the one that it knows.
TEST_P(Rejoin, AConnectionThatBreaksIsMadeAnew) {
  const auto client = begin(Durability::kLog);
  for (int i = 1; i <= 4; ++i) {
    break_connection(i % 2);
    EXPECT_EQ(push(*client, model_, 1.0f).value(), Outcome::kApplied);
    expect_parameters(*client, model_, -static_cast<float>(i));
  }
}

TEST_P(Rejoin, WhatOnlyMemoryHeldIsCounted) {
  const auto client = begin(Durability::kMemory);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(push(*client, model_, 1.0f).ok());
  restart_server(1, End::kKilled);
  ASSERT_TRUE(push(*client, model_, 1.0f).ok());
  const auto stats = client->stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats.value()[0].lost, 0u);
  EXPECT_EQ(stats.value()[1].lost, 3u);
  EXPECT_EQ(stats.value()[1].version, 1u);
}

// The last of a round comes after the server was killed with the others' pushes, which it had not
// decided.
TEST_P(Rejoin, ARoundIsMadeWithTheResentPushes) {
  keep_state(Durability::kLog);
  start_servers(2, 2);
  const Model model = model_of(kSizes, {.kind = ModeKind::kSync});
  const auto client = connect(0);
  const auto other = connect(1);
  std::thread declares([&] { ASSERT_TRUE(declare(*other, model, 9.0f).ok()); });
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  declares.join();
  for (int round = 1; round <= 3; ++round) {
    std::thread waits([&] { EXPECT_EQ(push(*client, model, 2.0f).value(), Outcome::kApplied); });
    if (round == 2) restart_server(0, End::kKilled);
    EXPECT_EQ(push(*other, model, 4.0f).value(), Outcome::kApplied);
    waits.join();
    expect_parameters(*client, model, -3.0f * static_cast<float>(round));
    expect_parameters(*other, model, -3.0f * static_cast<float>(round));
  }
}

TEST_P(Rejoin, AServerWithoutItsStateIsRefused) {
  const auto client = begin(Durability::kLog);
  restart_server(1, End::kWithoutItsState);
  const auto outcome = push(*client, model_, 1.0f);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kRankLost);
  EXPECT_EQ(outcome.error().text.find("server 1: the server was restarted without the parameters"),
            0u)
      << outcome.error().text;
  EXPECT_EQ(client->lost_server(), 1);
}

// Whether it keeps its state or not: there is nothing yet that could be lost.
TEST_F(RejoinHere, AServerThatIsLostBeforeItsWelcomeIsCalledAgain) {
  ClientOptions options =
      this->options(0);  // asked here: the thread below writes what it is made of
  options.address.servers.resize(1);
  options.workers = 1;
  std::thread starts([this] {
    {
      JobFolder first(folder_of_server(folder_, 0), "job", "server 0");
      ASSERT_TRUE(first.listen(1).ok());
      ASSERT_TRUE(wait_readable(first.listener(), kNever).ok());
    }  // killed, with a caller that it has not heard
    start_servers(1, 1);
  });
  const auto client = Client::connect(options);
  starts.join();
  ASSERT_TRUE(client.ok()) << client.error().text;
  EXPECT_TRUE(declare(*client.value(), model_of(kSizes), 0.0f).ok());
}

TEST_P(Rejoin, WhoDoesNotComeBackIsLost) {
  const auto client = begin(Durability::kLog, /*patience_ms=*/100);
  stop_server(1);
  const auto outcome = push(*client, model_, 1.0f);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().text, "server 1 is lost, and did not come back within 0.1 s");
  EXPECT_EQ(client->lost_server(), 1);
  EXPECT_FALSE(client->parameters().pull().ok());
}

}  // namespace
}  // namespace ciranda::ps
