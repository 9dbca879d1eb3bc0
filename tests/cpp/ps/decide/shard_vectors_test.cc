// What could break: a gradient that is added to the parameters instead of a vector, or twice; a
// coordinator that finds other numbers when it asks again.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/ps/decide/server_protocol.h"
#include "ps/decide/kept.h"
#include "ps/decide/server_protocols.h"

namespace ciranda::ps {
namespace {

class ShardVectorsTest : public testing::ServerProtocols {
 protected:
  void begin() {
    start(2);
    options_.has_coordinator = true;
    protocol_ = std::make_unique<ServerProtocol>(options_);
    coordinator_ = enter(2);
    zero_ = join(0);
    one_ = join(1);
    answer<Ready>(zero_);
    answer<Ready>(one_);
  }
  void add(ServerProtocol::Caller caller, Worker worker, std::uint64_t seq, TaskPart of = {}) {
    Push push = push_of(worker, seq);
    push.of = of;
    push.into = 1;
    say(caller, push);
  }
  std::vector<double> work(std::uint64_t number, std::vector<VectorWork::Sum> sums,
                           std::vector<VectorWork::Dot> dots) {
    say(coordinator_, VectorWork{.number = number, .sums = std::move(sums), .dots = dots});
    return answer<VectorValues>(coordinator_).dots;
  }

  static constexpr double kElements = 16 + 40 + 17;  // up to the next slot's line
  ServerProtocol::Caller coordinator_ = -1;
  ServerProtocol::Caller zero_ = -1;
  ServerProtocol::Caller one_ = -1;
};

TEST_F(ShardVectorsTest, GradientsAreAddedBesideTheParameters) {
  begin();
  push(zero_, 0, 1);  // sets the gradients, too
  answer<Ack>(zero_);
  EXPECT_EQ(parameter(zero_), -1.0f);
  add(zero_, 0, 2);
  EXPECT_EQ(answer<Ack>(zero_).version, 2u);
  add(zero_, 0, 3);
  answer<Ack>(zero_);
  EXPECT_EQ(parameter(zero_), -1.0f);
  EXPECT_EQ(protocol_->shard()->parameters().steps()[0], 1);
  EXPECT_EQ(work(1, {}, {{1, 1}, {1, 0}, {0, 0}}),
            (std::vector<double>{4 * kElements, -2 * kElements, kElements}));
  EXPECT_EQ(work(2, {{.into = 0, .terms = {{0, 1.0}, {1, 0.5}}}, {.into = 1}}, {{0, 0}, {1, 1}}),
            (std::vector<double>{0.0, 0.0}));
  say(one_, Pull{});
  answer<Ready>(one_);
  EXPECT_EQ(parameter(one_), 0.0f);
}

TEST_F(ShardVectorsTest, APortionThatIsGivenTwiceCountsOnce) {
  begin();
  push(zero_, 0, 1);
  answer<Ack>(zero_);
  push(one_, 1, 1);
  answer<Ack>(one_);
  add(zero_, 0, 2, {.task = 1, .part = 1});
  answer<Ack>(zero_);
  add(one_, 1, 2, {.task = 1, .part = 1});
  EXPECT_EQ(answer<Ack>(one_).outcome, Outcome::kDuplicate);
  EXPECT_EQ(work(1, {}, {{1, 1}})[0], kElements);
}

TEST_F(ShardVectorsTest, WhatWasKeptMakesThemAgainAndAnswersTheSame) {
  begin();
  push(zero_, 0, 1);
  answer<Ack>(zero_);
  add(zero_, 0, 2);
  answer<Ack>(zero_);
  const auto first = work(1, {{.into = 3, .terms = {{1, 3.0}}}}, {{3, 1}});
  testing::Kept kept(*protocol_);
  add(zero_, 0, 3);
  answer<Ack>(zero_);
  const auto second = work(2, {{.into = 1, .terms = {{1, 1.0}, {3, 1.0}}}}, {{1, 1}});
  EXPECT_EQ(second[0], 25 * kElements);
  protocol_ = std::make_unique<ServerProtocol>(options_);
  const Status made = kept.make_again(*protocol_, now_ns_);
  ASSERT_TRUE(made.ok()) << made.error().text;
  coordinator_ = enter(2, 2);
  EXPECT_EQ(work(1, {{.into = 3, .terms = {{1, 3.0}}}}, {{3, 1}}), first);
  EXPECT_EQ(work(2, {{.into = 1, .terms = {{1, 1.0}, {3, 1.0}}}}, {{1, 1}}), second);
  EXPECT_EQ(work(3, {}, {{1, 1}, {3, 3}}), (std::vector<double>{25 * kElements, 9 * kElements}));

  say(coordinator_, VectorWork{.number = 2});
  EXPECT_EQ(refusal(coordinator_),
            "vector operation 2 was another one before the coordinator was restarted");
  coordinator_ = enter(2, 3);
  say(coordinator_, VectorWork{.number = 9});
  EXPECT_EQ(refusal(coordinator_),
            "vector operation 9 came, but the latest one that this server knows is 3; to keep "
            "vector operations across a restart, give servers --durability log or disk");
}

TEST_F(ShardVectorsTest, WorkThatIsRefusedIsNotKept) {
  start(1);
  options_.has_coordinator = true;
  model_.tables[1].dtype = DType::kBFloat16;
  protocol_ = std::make_unique<ServerProtocol>(options_);
  coordinator_ = enter(1);
  answer<Ready>(join(0));
  testing::Kept kept(*protocol_);
  say(coordinator_, VectorWork{.number = 1, .dots = {{1, 1}}});
  EXPECT_EQ(refusal(coordinator_), "vectors hold float32 and float64, but a parameter is bfloat16");
  protocol_ = std::make_unique<ServerProtocol>(options_);
  const Status made = kept.make_again(*protocol_, now_ns_);
  EXPECT_TRUE(made.ok()) << made.error().text;
}

TEST_F(ShardVectorsTest, WhatCannotBeIsRefused) {
  start(1);
  options_.has_coordinator = true;
  protocol_ = std::make_unique<ServerProtocol>(options_);
  coordinator_ = enter(1);
  say(coordinator_, VectorWork{.number = 1});
  EXPECT_EQ(refusal(coordinator_),
            "vector operation 1 came before any worker declared its parameters");
  start(1, {.kind = ModeKind::kSync});
  zero_ = join(0);
  answer<Ready>(zero_);
  add(zero_, 0, 1);
  EXPECT_EQ(refusal(zero_), "a push of worker 0 is for a vector, which only Async() allows");
  const ServerProtocol::Caller again = join(0, 2);
  answer<Ready>(again);
  say(again, VectorWork{.number = 1});
  EXPECT_EQ(refusal(again), "a worker sent a message that only servers send");
}

}  // namespace
}  // namespace ciranda::ps
