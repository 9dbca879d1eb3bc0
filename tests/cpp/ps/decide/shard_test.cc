// What could break: a push that counts twice or in part, a worker that goes on too early or never,
// parameters of no version.
#include "core/ps/decide/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::exact_rule;
using testing::kSync;
using testing::model_of;

// Servers and workers of a job whose links are calls. Gradients and parameters of each table are
// filled and looked at whole.
class Job {
 public:
  Job(const Model& model, int servers, int workers)
      : model_(model),
        layout_(model, servers),
        pushed_(static_cast<std::size_t>(workers)),
        clocks_(static_cast<std::size_t>(workers)) {
    for (int server = 0; server < servers; ++server) {
      shards_.push_back(std::make_unique<Shard>(model, servers, server, workers));
    }
    for (int worker = 0; worker < workers; ++worker) {
      memory_.emplace_back(layout_.memory_bytes());
      bases_.emplace_back(static_cast<std::size_t>(servers));
    }
  }

  void enter(Worker worker) {
    for (auto& shard : shards_) {
      shard->enter(worker, memory(worker));
      if (worker == 0 && !shard->given()) shard->give(worker);
      clock(worker) = std::max(clock(worker), shard->clock(worker));
    }
  }
  void enter_all() {
    for (Worker worker = 0; worker < static_cast<Worker>(memory_.size()); ++worker) enter(worker);
  }
  void leave(Worker worker) {
    for (std::size_t server = 0; server < shards_.size(); ++server) {
      std::vector<Ack> acks;
      shards_[server]->leave(worker, acks);
      keep(server, acks);
    }
  }

  void fall_silent(Worker worker) {
    for (std::size_t server = 0; server < shards_.size(); ++server) {
      std::vector<Ack> acks;
      shards_[server]->fall_silent(worker, acks);
      keep(server, acks);
    }
  }
  void hear(Worker worker) {
    for (auto& shard : shards_) shard->hear(worker);
  }

  // Its gradients are all `value`; to all servers.
  void push(Worker worker, float value, double scale = 1.0, std::vector<bool> used = {}) {
    fill(worker, value);
    ++clock(worker);
    send(worker, ++pushed_[static_cast<std::size_t>(worker)], scale, std::move(used));
  }
  void push_rules(Worker worker, float value, const std::vector<kernels::UpdateRule>& rules,
                  const std::vector<std::uint32_t>& rule_slots) {
    fill(worker, value);
    ++clock(worker);
    send(worker, ++pushed_[static_cast<std::size_t>(worker)], 1.0, {}, rules, rule_slots);
  }
  // The part that one server gets, at that clock.
  void push_to(Worker worker, std::size_t server, std::uint64_t clock) {
    pushed_[static_cast<std::size_t>(worker)] = 1;
    fill(worker, 1.0f);
    std::vector<Ack> acks;
    shards_[server]->push({.worker = worker,
                           .seq = 1,
                           .clock = clock,
                           .rules = {exact_rule(), exact_rule()},
                           .used = std::vector<bool>(slots(), true)},
                          acks);
    keep(server, acks);
  }
  // As one that does not know which versions it has.
  void forget_versions(Worker worker) {
    std::ranges::fill(bases_[static_cast<std::size_t>(worker)], 0);
  }
  // The part that one server gets, by another rule than the model's.
  void push_rule_to(std::size_t server, const kernels::UpdateRule& rule) {
    fill(0, 1.0f);
    const Push push{.worker = 0,
                    .seq = 1,
                    .clock = 1,
                    .rules = {rule},
                    .used = std::vector<bool>(slots(), true)};
    ASSERT_TRUE(shards_[server]->check(push).ok());
    std::vector<Ack> acks;
    shards_[server]->push(push, acks);
  }
  void push_again(Worker worker) { send(worker, pushed_[static_cast<std::size_t>(worker)], 1, {}); }

  // The answer of every server to its latest push, which must be one; none: it has to wait.
  std::optional<Outcome> answer(Worker worker) {
    std::optional<Outcome> outcome;
    std::size_t answers = 0;
    for (const auto& [server, ack] : acks_) {
      if (ack.worker != worker) continue;
      ++answers;
      EXPECT_EQ(ack.seq, pushed_[static_cast<std::size_t>(worker)]);
      EXPECT_EQ(outcome.value_or(ack.outcome), ack.outcome);
      outcome = ack.outcome;
      bases_[static_cast<std::size_t>(worker)][server] = ack.version;
      clock(worker) = std::max(clock(worker), ack.clock);
    }
    EXPECT_TRUE(answers == 0 || answers == shards_.size());
    std::erase_if(acks_, [&](const auto& each) { return each.second.worker == worker; });
    return outcome;
  }

  // Of all elements of all slots, which must be one.
  float parameter(Worker worker) { return parameter_of_slots(worker, {}); }
  float parameter_of_slots(Worker worker, const std::vector<std::size_t>& slots) {
    std::optional<float> value;
    std::size_t slot = 0;
    for (std::size_t table = 0; table < model_.tables.size(); ++table) {
      for (const Layout::Place& place : layout_.slots(table)) {
        const std::size_t number = slot++;
        if (!slots.empty() && std::find(slots.begin(), slots.end(), number) == slots.end()) {
          continue;
        }
        for (auto i = place.begin; i < place.end; ++i) {
          const float own = floats(worker, layout_.parameters_at(table))[i];
          EXPECT_EQ(value.value_or(own), own) << "slot " << number << ", element " << i;
          value = own;
        }
      }
    }
    return *value;
  }
  void set_parameters(Worker worker, float value) {
    for (std::size_t table = 0; table < model_.tables.size(); ++table) {
      std::fill_n(floats(worker, layout_.parameters_at(table)), layout_.elements(table), value);
    }
  }
  float* floats(Worker worker, std::uint64_t at) {
    return reinterpret_cast<float*>(memory(worker) + at);
  }
  Shard& shard(std::size_t server) { return *shards_[server]; }
  const Layout& layout() const { return layout_; }
  std::size_t slots() const { return slot_count(model_); }

 private:
  std::uint64_t& clock(Worker worker) { return clocks_[static_cast<std::size_t>(worker)]; }
  std::byte* memory(Worker worker) { return memory_[static_cast<std::size_t>(worker)].data(); }
  void fill(Worker worker, float value) {
    for (std::size_t table = 0; table < model_.tables.size(); ++table) {
      for (const Layout::Place& place : layout_.slots(table)) {
        std::fill_n(floats(worker, layout_.gradients_at(table)) + place.begin,
                    place.end - place.begin, value);
      }
    }
  }
  void send(Worker worker, std::uint64_t seq, double scale, std::vector<bool> used,
            std::vector<kernels::UpdateRule> rules = {},
            const std::vector<std::uint32_t>& rule_slots = {}) {
    if (used.empty()) used.assign(slots(), true);
    for (const Table& table : model_.tables) {
      if (rules.size() < model_.tables.size()) rules.push_back(table.rule);
    }
    for (std::size_t server = 0; server < shards_.size(); ++server) {
      const Push push{.worker = worker,
                      .seq = seq,
                      .base = bases_[static_cast<std::size_t>(worker)][server],
                      .clock = clock(worker),
                      .scale = scale,
                      .rules = rules,
                      .used = used,
                      .rule_slots = rule_slots};
      ASSERT_TRUE(shards_[server]->check(push).ok()) << shards_[server]->check(push).error().text;
      std::vector<Ack> acks;
      shards_[server]->push(push, acks);
      keep(server, acks);
    }
  }
  void keep(std::size_t server, const std::vector<Ack>& acks) {
    for (const Ack& ack : acks) acks_.emplace_back(server, ack);
  }

  const Model model_;
  const Layout layout_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::uint64_t> pushed_;
  std::vector<std::uint64_t> clocks_;
  std::vector<std::vector<std::uint64_t>> bases_;  // by worker and server
  std::vector<std::pair<std::size_t, Ack>> acks_;
};

const std::vector<std::vector<std::int64_t>> kShardSizes = {{3, 40'000, 1}, {17}};

class ShardOnServers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Servers, ShardOnServers, ::testing::Values(1, 2, 5));

TEST_P(ShardOnServers, APushIsAppliedOnceAndAnsweredWithTheNewestParameters) {
  Job job(model_of(kShardSizes), GetParam(), 2);
  job.set_parameters(0, 100.0f);
  job.set_parameters(1, -5.0f);  // worker 0's are those of all
  job.enter_all();
  job.push(1, 1.0f);
  EXPECT_EQ(job.answer(1), Outcome::kApplied);
  EXPECT_EQ(job.parameter(1), 99.0f);
  EXPECT_EQ(job.parameter(0), 100.0f);  // nobody writes there unasked
  job.push(0, 10.0f, 0.5);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.parameter(0), 94.0f);
  job.push_again(0);
  EXPECT_EQ(job.answer(0), Outcome::kDuplicate);
  EXPECT_EQ(job.parameter(0), 94.0f);
}

TEST_P(ShardOnServers, SlotsWithoutAGradientStayButAreTold) {
  Job job(model_of(kShardSizes), GetParam(), 2);
  job.set_parameters(0, 10.0f);
  job.enter_all();
  job.push(1, 1.0f);
  job.push(0, 2.0f, 1.0, {true, false, true, false});
  EXPECT_EQ(job.parameter_of_slots(0, {0, 2}), 7.0f);
  EXPECT_EQ(job.parameter_of_slots(0, {1, 3}), 9.0f);
  const auto steps = job.shard(0).parameters().steps();
  EXPECT_EQ(std::vector<std::int64_t>(steps.begin(), steps.end()),
            (std::vector<std::int64_t>{2, 1, 2, 1}));
}

TEST(Shard, StateIsGivenFromAllServers) {
  const kernels::UpdateRule rule{.kind = kernels::RuleKind::kSgd, .lr = 1.0, .momentum = 0.5};
  Job job(model_of(kShardSizes, {}, rule), 2, 1);
  job.enter_all();
  job.push(0, 8.0f);
  job.push(0, 2.0f);
  for (std::size_t table = 0; table < 2; ++table) {
    std::vector<float> state(static_cast<std::size_t>(job.layout().elements(table)));
    for (std::size_t server = 0; server < 2; ++server) {
      job.shard(server).parameters().copy_state(table, 0,
                                                reinterpret_cast<std::byte*>(state.data()));
    }
    for (const Layout::Place& slot : job.layout().slots(table)) {
      for (auto i = slot.begin; i < slot.end; ++i) {
        ASSERT_EQ(state[static_cast<std::size_t>(i)], 6.0f);
      }
    }
  }
  EXPECT_EQ(job.parameter(0), -14.0f);
}

TEST(Shard, StalePushesAreScaledOrDropped) {
  for (const StalePolicy policy : {StalePolicy::kApply, StalePolicy::kScale, StalePolicy::kDrop}) {
    Job job(model_of(kShardSizes, {.policy = policy, .max_staleness = 3}), 2, 2);
    job.enter_all();
    for (int i = 0; i < 4; ++i) {
      job.push(0, 0.0f);
      EXPECT_EQ(job.answer(0), Outcome::kApplied);
    }
    job.push(1, 8.0f);  // made four pushes ago
    const bool drops = policy == StalePolicy::kDrop;
    EXPECT_EQ(job.answer(1), drops ? Outcome::kStale : Outcome::kApplied);
    EXPECT_EQ(job.parameter(1), drops ? 0.0f : policy == StalePolicy::kScale ? -2.0f : -8.0f);
    EXPECT_EQ(job.shard(0).counters().staleness[4], 1u);
    job.push(1, 8.0f);  // of the newest
    EXPECT_EQ(job.answer(1), Outcome::kApplied);
  }
}

TEST(Shard, SspHoldsWhoIsTooFarAhead) {
  Job job(model_of(kShardSizes, {.kind = ModeKind::kSsp, .staleness = 1}), 2, 3);
  job.enter_all();
  job.push(0, 1.0f);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  job.push(0, 1.0f);
  EXPECT_EQ(job.answer(0), std::nullopt);  // two ahead of both
  job.push(1, 1.0f);
  EXPECT_EQ(job.answer(1), Outcome::kApplied);
  EXPECT_EQ(job.answer(0), std::nullopt);
  job.push(2, 1.0f);
  EXPECT_EQ(job.answer(2), Outcome::kApplied);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.parameter(0), -4.0f);  // with what has come while it waited
}

TEST(Shard, SspWithoutStalenessIsARoundOfAll) {
  Job job(model_of(kShardSizes, {.kind = ModeKind::kSsp}), 2, 2);
  job.enter_all();
  for (int round = 1; round <= 3; ++round) {
    job.push(0, 1.0f);
    EXPECT_EQ(job.answer(0), std::nullopt);
    job.push(1, 2.0f);
    EXPECT_EQ(job.answer(0), Outcome::kApplied);
    EXPECT_EQ(job.answer(1), Outcome::kApplied);
    EXPECT_EQ(job.parameter(0), -3.0f * static_cast<float>(round));
    EXPECT_EQ(job.parameter(1), -3.0f * static_cast<float>(round));
  }
}

TEST(Shard, SspDoesNotCountWhoIsGone) {
  Job job(model_of(kShardSizes, {.kind = ModeKind::kSsp}), 2, 3);
  job.enter(0);
  job.enter(1);
  job.push(0, 1.0f);
  job.push(1, 1.0f);
  EXPECT_EQ(job.answer(0), std::nullopt);  // for worker 2, which has not come yet
  job.leave(2);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.answer(1), Outcome::kApplied);
  job.push(0, 1.0f);
  job.leave(1);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  for (int i = 0; i < 5; ++i) {
    job.push(0, 1.0f);
    EXPECT_EQ(job.answer(0), Outcome::kApplied);
  }
  job.enter(1);  // at worker 0's clock: it neither waits for it nor is waited for
  job.push(1, 1.0f);
  EXPECT_EQ(job.answer(1), std::nullopt);
  job.push(0, 1.0f);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.answer(1), Outcome::kApplied);
}

TEST_P(ShardOnServers, ARoundIsTheMeanOfAllPushes) {
  Job job(model_of(kShardSizes, kSync), GetParam(), 4);
  job.enter_all();
  for (Worker worker = 3; worker > 0; --worker) {
    job.push(worker, static_cast<float>(worker));
    EXPECT_EQ(job.answer(worker), std::nullopt);
  }
  job.push(0, 2.0f);
  for (Worker worker = 0; worker < 4; ++worker) {
    EXPECT_EQ(job.answer(worker), Outcome::kApplied);
    EXPECT_EQ(job.parameter(worker), -2.0f);
  }
}

TEST(Shard, ARoundWaitsForNoBackupWorkers) {
  Job job(model_of(kShardSizes, {.kind = ModeKind::kSync, .backup_workers = 1}), 2, 3);
  job.enter_all();
  job.push(2, 2.0f);
  EXPECT_EQ(job.answer(2), std::nullopt);
  job.push(0, 4.0f);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.answer(2), Outcome::kApplied);
  job.push(1, 100.0f);
  EXPECT_EQ(job.answer(1), Outcome::kLate);
  EXPECT_EQ(job.parameter(1), -3.0f);
  job.push(1, 1.0f);
  job.push(0, 3.0f);
  EXPECT_EQ(job.answer(1), Outcome::kApplied);
  EXPECT_EQ(job.parameter(1), -5.0f);
}

TEST(Shard, ARoundDoesNotCountWhoIsGone) {
  Job job(model_of(kShardSizes, kSync), 2, 3);
  job.enter_all();
  job.push(1, 50.0f);
  job.leave(1);  // its push is not answered, and forgotten
  job.push(0, 1.0f);
  EXPECT_EQ(job.answer(0), std::nullopt);
  job.push(2, 3.0f);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.answer(2), Outcome::kApplied);
  EXPECT_EQ(job.parameter(0), -2.0f);
  job.push(0, 1.0f);
  job.leave(2);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.parameter(0), -3.0f);
}

TEST(Shard, WhoIsSilentDoesNotCountButIsAnswered) {
  Job job(model_of(kShardSizes, kSync), 2, 3);
  job.enter_all();
  job.push(2, 3.0f);
  job.fall_silent(2);
  job.push(0, 1.0f);
  EXPECT_EQ(job.answer(0), std::nullopt);
  job.push(1, 2.0f);
  for (Worker worker = 0; worker < 3; ++worker) {
    EXPECT_EQ(job.answer(worker), Outcome::kApplied);
    EXPECT_EQ(job.parameter(worker), -2.0f);
  }
  job.push(0, 1.0f);
  job.push(1, 1.0f);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.answer(1), Outcome::kApplied);
  job.hear(2);
  job.push(2, 100.0f);
  EXPECT_EQ(job.answer(2), Outcome::kLate);
  EXPECT_EQ(job.parameter(2), -3.0f);

  Job ssp(model_of(kShardSizes, {.kind = ModeKind::kSsp}), 2, 2);
  ssp.enter_all();
  ssp.fall_silent(1);
  for (int i = 0; i < 3; ++i) {
    ssp.push(0, 1.0f);
    EXPECT_EQ(ssp.answer(0), Outcome::kApplied);
  }
  ssp.hear(1);  // at worker 0's clock, which it learns with its next answer
  ssp.push(1, 1.0f);
  EXPECT_EQ(ssp.answer(1), Outcome::kApplied);
  ssp.push(1, 1.0f);
  EXPECT_EQ(ssp.answer(1), std::nullopt);
  ssp.push(0, 1.0f);
  EXPECT_EQ(ssp.answer(1), Outcome::kApplied);
  EXPECT_EQ(ssp.answer(0), Outcome::kApplied);
}

// Each server has seen another one silent: by its own count of pushes worker 0 would wait for
// worker 1 at the second, and worker 1 for worker 0 at the first.
TEST(Shard, TwoWorkersDoNotWaitForEachOtherAtTwoServers) {
  Job job(model_of(kShardSizes, {.kind = ModeKind::kSsp}), 2, 2);
  job.enter_all();
  std::vector<Ack> acks;
  job.shard(0).fall_silent(1, acks);
  job.shard(1).fall_silent(0, acks);
  ASSERT_TRUE(acks.empty());
  job.push_to(0, 0, 1);  // worker 0's first push, to server 0 alone
  job.push_to(1, 1, 1);
  job.shard(0).hear(1);
  job.shard(1).hear(0);
  job.push_to(0, 1, 1);
  job.push_to(1, 0, 1);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.answer(1), Outcome::kApplied);
}

TEST(Shard, APushThatWasNotAnsweredMayComeAgain) {
  Job job(model_of(kShardSizes, kSync), 1, 2);
  job.enter_all();
  job.push(0, 1.0f);
  job.push_again(0);
  EXPECT_EQ(job.answer(0), std::nullopt);
  job.push(1, 3.0f);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.parameter(0), -2.0f);

  Job ssp(model_of(kShardSizes, {.kind = ModeKind::kSsp}), 1, 2);
  ssp.enter_all();
  ssp.push(0, 1.0f);
  ssp.push_again(0);
  EXPECT_EQ(ssp.answer(0), std::nullopt);
  ssp.push(1, 1.0f);
  EXPECT_EQ(ssp.answer(0), Outcome::kApplied);
  EXPECT_EQ(ssp.parameter(0), -2.0f);
}

// It is at the slowest clock when it comes back, and its push at the clock that it had.
TEST(Shard, AHeldPushThatComesAgainWaitsForTheOthersAlone) {
  Job job(model_of(kShardSizes, {.kind = ModeKind::kSsp}), 1, 2);
  job.enter_all();
  job.push(0, 1.0f);
  EXPECT_EQ(job.answer(0), std::nullopt);
  job.leave(0);
  job.enter(0);
  job.push_again(0);
  EXPECT_EQ(job.answer(0), std::nullopt);
  job.push(1, 1.0f);
  EXPECT_EQ(job.answer(0), Outcome::kDuplicate);
  EXPECT_EQ(job.answer(1), Outcome::kApplied);
  EXPECT_EQ(job.parameter(0), -2.0f);
}

TEST(Shard, APushOfARoundThatComesAgainIsNotLate) {
  Job job(model_of(kShardSizes, kSync), 1, 2);
  job.enter_all();
  for (Worker worker = 0; worker < 2; ++worker) job.push(worker, 1.0f);
  for (Worker worker = 0; worker < 2; ++worker) EXPECT_EQ(job.answer(worker), Outcome::kApplied);
  job.push(0, 1.0f);
  job.forget_versions(0);
  job.push_again(0);
  EXPECT_EQ(job.answer(0), std::nullopt);
  job.push(1, 3.0f);
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  EXPECT_EQ(job.parameter(0), -3.0f);
}

TEST(Shard, APushBeforeTheAnswerToTheOneBeforeIsRefused) {
  for (const ModeKind kind : {ModeKind::kSsp, ModeKind::kSync}) {
    Job job(model_of(kShardSizes, {.kind = kind}), 1, 2);
    job.enter_all();
    job.push(0, 1.0f);
    EXPECT_EQ(job.answer(0), std::nullopt);
    const Push next{.worker = 0,
                    .seq = 2,
                    .rules = {exact_rule(), exact_rule()},
                    .used = std::vector<bool>(4, true)};
    EXPECT_FALSE(job.shard(0).check(next).ok());
    job.push(1, 1.0f);
    EXPECT_EQ(job.answer(0), Outcome::kApplied);
    EXPECT_TRUE(job.shard(0).check(next).ok());
  }
}

TEST(Shard, WhatAPushMayNotSayIsRefused) {
  Job job(model_of(kShardSizes, kSync), 1, 2);
  Shard& shard = job.shard(0);
  Push good{.worker = 0,
            .seq = 1,
            .rules = {exact_rule(), exact_rule()},
            .used = std::vector<bool>(4, true)};
  EXPECT_FALSE(shard.check(good).ok());  // it is not here
  job.enter_all();
  EXPECT_TRUE(shard.check(good).ok());
  const auto refused = [&](auto change) {
    Push push = good;
    change(push);
    return !shard.check(push).ok();
  };
  EXPECT_TRUE(refused([](Push& push) { push.worker = -1; }));
  EXPECT_TRUE(refused([](Push& push) { push.worker = 2; }));
  EXPECT_TRUE(refused([](Push& push) { push.seq = 0; }));
  EXPECT_TRUE(refused([](Push& push) { push.seq = 2; }));
  EXPECT_TRUE(refused([](Push& push) { push.used.pop_back(); }));
  EXPECT_TRUE(refused([](Push& push) { push.rules.pop_back(); }));
  EXPECT_TRUE(refused([](Push& push) { push.rules[1].kind = kernels::RuleKind::kAdam; }));
  EXPECT_TRUE(refused([](Push& push) { push.rules[0].kind = kernels::RuleKind::kAdagrad; }));
  EXPECT_TRUE(refused([](Push& push) { push.scale = 0.5; }));
  for (const std::vector<std::uint32_t>& slots :
       {std::vector<std::uint32_t>{4}, {1, 3}, {2, 1}, {4, 0}, {2, 2, 1}}) {
    EXPECT_TRUE(refused([&](Push& push) { push.rule_slots = slots; }));
  }
}

TEST(Shard, ATableMayHaveManyRules) {
  Job job(model_of({{5, 7, 3}}, {}), 1, 1);
  job.enter_all();
  std::vector<kernels::UpdateRule> rules(2, exact_rule());
  rules[1].lr = 4 * rules[0].lr;
  job.push_rules(0, 1.0f, rules, {2, 1});
  EXPECT_EQ(job.answer(0), Outcome::kApplied);
  const float first = job.parameter_of_slots(0, {0, 1});
  EXPECT_LT(first, 0.0f);
  EXPECT_EQ(job.parameter_of_slots(0, {2}), 4 * first);
}

TEST(Shard, MomentumMayBeginAndEndAtAnyTime) {
  Job job(model_of({{5, 7}}, {}), 1, 1);
  job.enter_all();
  float step = 0.0f;
  float before = 0.0f;
  const auto steps_by = [&](double momentum) {
    kernels::UpdateRule rule = exact_rule();
    rule.momentum = momentum;
    job.push_rules(0, 1.0f, {rule}, {});
    EXPECT_EQ(job.answer(0), Outcome::kApplied);
    const float now = job.parameter(0);
    const float made = now - before;
    before = now;
    return made;
  };
  step = steps_by(0.0);
  EXPECT_EQ(steps_by(0.5), step);  // a fresh buffer is the gradient
  EXPECT_EQ(steps_by(0.5), 1.5f * step);
  EXPECT_EQ(steps_by(0.0), step);
  EXPECT_EQ(steps_by(0.5), 1.75f * step);
}

// Parts of a checkpoint, of which one has got the push that brought momentum.
TEST(Shard, TakesOverPartsOfWhichOneHasMomentum) {
  for (const std::size_t with_momentum : {0u, 1u}) {
    const Model model = model_of({{1 << 16}}, {});
    Job job(model, 2, 1);
    job.enter_all();
    kernels::UpdateRule rule = exact_rule();
    rule.momentum = 0.5;
    job.push_rule_to(with_momentum, rule);
    Shard whole(model, 1, 0, 1);
    for (const std::size_t part : {0u, 1u}) whole.take_over(job.shard(part));
    ASSERT_EQ(kernels::state_count(whole.model().tables[0].rule), 1);
    std::vector<float> momentum(1 << 16);
    whole.parameters().copy_state(0, 0, reinterpret_cast<std::byte*>(momentum.data()));
    const auto has_it = std::ranges::count(momentum, 1.0f);
    EXPECT_GT(has_it, 0);
    EXPECT_EQ(has_it + std::ranges::count(momentum, 0.0f), 1 << 16);
  }
}

TEST(Shard, HoldsItsShareOfParametersAndState) {
  const kernels::UpdateRule adam{.kind = kernels::RuleKind::kAdam};
  const Model model = model_of({{1 << 20}}, {}, adam);
  for (int server = 0; server < 3; ++server) {
    const Shard shard(model, 3, server, 1);
    EXPECT_NEAR(static_cast<double>(shard.held_bytes()), 3.0 * 4.0 * (1 << 20) / 3.0,
                0.07 * 4 * (1 << 20));
  }
}

}  // namespace
}  // namespace ciranda::ps
