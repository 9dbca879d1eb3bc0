// What could break: a server that comes back with other parameters, other state or another memory
// of what it has decided than the one that was killed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/ps/decide/journal.h"
#include "core/ps/decide/shard.h"
#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::exact_rule;
using testing::model_of;

constexpr int kWorkers = 3;

using Bytes = std::vector<std::byte>;

class Tape final : public Journal {
 public:
  void write(const Change& change, const Data& data) override {
    Bytes encoded;
    encode(change, encoded);
    Bytes all;
    for (const auto& piece : data) all.insert(all.end(), piece.begin(), piece.end());
    records_.emplace_back(std::move(encoded), std::move(all));
  }
  void clear() { records_.clear(); }
  std::size_t size() const { return records_.size(); }
  void repeat_to(Shard& shard) const {
    for (const auto& [encoded, data] : records_) {
      const auto change = decode_change(encoded);
      ASSERT_TRUE(change.ok()) << change.error().text;
      const Status repeated = shard.repeat(change.value(), data);
      ASSERT_TRUE(repeated.ok()) << repeated.error().text;
    }
  }

 private:
  std::vector<std::pair<Bytes, Bytes>> records_;
};

struct Snapshot {
  Bytes saved;
  std::vector<Bytes> arrays;
  bool operator==(const Snapshot&) const = default;
};

Snapshot snapshot_of(Shard& shard) {
  Snapshot snapshot;
  shard.save(snapshot.saved);
  for (const auto& array : shard.arrays()) {
    snapshot.arrays.emplace_back(array.begin(), array.end());
  }
  return snapshot;
}

// One server of two, with a random history.
class History {
 public:
  History(const Model& model, std::uint32_t seed)
      : model_(model),
        random_(seed),
        server_(static_cast<int>(seed % 2)),
        shard_(model, 2, server_, kWorkers),
        layout_(model, 2) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      memory_.emplace_back(layout_.memory_bytes());
      fill(memory_.back());
      shard_.enter(worker, memory_.back().data());
      seq_.push_back(0);
      clock_.push_back(0);
      base_.push_back(0);
      waits_.push_back(false);
      pushed_.emplace_back();
    }
    shard_.give(0);
    shard_.keep_journal(&tape_);
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      if (step == 0 || below(10) == 0) take_snapshot();
      const Worker worker = below(kWorkers);
      const auto w = static_cast<std::size_t>(worker);
      std::vector<Ack> acks;
      if (below(20) == 0) {
        shard_.leave(worker, acks);
        hear(acks);
        shard_.enter(worker, memory_[w].data());
        if (waits_[w]) shard_.push(pushed_[w], acks);  // it asks again
      } else if (!waits_[w]) {
        push(worker, acks);
      }
      hear(acks);
    }
  }

  Snapshot recovered() {
    Shard again(snapshot_model_, 2, server_, kWorkers);
    const Status restored = again.restore(snapshot_.saved);
    EXPECT_TRUE(restored.ok()) << restored.error().text;
    const Shard::Arrays arrays = again.arrays();
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      std::copy(snapshot_.arrays[i].begin(), snapshot_.arrays[i].end(), arrays[i].begin());
    }
    tape_.repeat_to(again);
    return snapshot_of(again);
  }
  Shard& shard() { return shard_; }
  const Tape& tape() const { return tape_; }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  void fill(Bytes& memory) {
    std::normal_distribution<float> values;
    auto* floats = reinterpret_cast<float*>(memory.data());
    std::generate_n(floats, memory.size() / sizeof(float), [&] { return values(random_); });
  }
  void take_snapshot() {
    snapshot_ = snapshot_of(shard_);
    snapshot_model_ = shard_.model();
    tape_.clear();
  }
  void push(Worker worker, std::vector<Ack>& acks) {
    const auto w = static_cast<std::size_t>(worker);
    std::normal_distribution<float> values;
    auto* floats = reinterpret_cast<float*>(memory_[w].data());
    std::generate_n(floats, layout_.gradient_bytes() / sizeof(float),
                    [&] { return values(random_); });
    Push push{.worker = worker,
              .seq = ++seq_[w],
              .base = base_[w],
              .clock = std::max(clock_[w], shard_.clock(worker)) + 1,
              .scale = model_.mode.kind == ModeKind::kSync ? 1.0 : 0.5};
    for (const Table& table : model_.tables) push.rules.push_back(table.rule);
    momentum_begins_ = momentum_begins_ || below(15) == 0;
    if (momentum_begins_) push.rules.back().momentum = 0.5;
    for (std::size_t i = 0; i < slot_count(model_); ++i) push.used.push_back(below(4) != 0);
    const Status fits = shard_.check(push);
    ASSERT_TRUE(fits.ok()) << fits.error().text;
    waits_[w] = true;
    pushed_[w] = push;
    shard_.push(std::move(push), acks);
  }
  void hear(std::vector<Ack>& acks) {
    for (const Ack& ack : std::exchange(acks, {})) {
      const auto w = static_cast<std::size_t>(ack.worker);
      waits_[w] = false;
      base_[w] = ack.version;
      clock_[w] = std::max(clock_[w], ack.clock);
    }
  }

  const Model model_;
  std::mt19937 random_;
  const int server_;
  Shard shard_;
  const Layout layout_;
  std::vector<Bytes> memory_;
  std::vector<std::uint64_t> seq_, clock_, base_;
  std::vector<bool> waits_;
  std::vector<Push> pushed_;
  Tape tape_;
  Snapshot snapshot_;
  Model snapshot_model_;
  bool momentum_begins_ = false;
};

const std::vector<Mode> kModes = {{},
                                  {.policy = StalePolicy::kScale},
                                  {.policy = StalePolicy::kDrop, .max_staleness = 1},
                                  {.kind = ModeKind::kSsp, .staleness = 1},
                                  {.kind = ModeKind::kSync},
                                  {.kind = ModeKind::kSync, .backup_workers = 1}};
const std::vector<kernels::UpdateRule> kRules = {
    {.kind = kernels::RuleKind::kSgd, .lr = 0.1, .momentum = 0.9},
    {.kind = kernels::RuleKind::kSgd, .lr = 0.1},
    {.kind = kernels::RuleKind::kAdam, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}};

TEST(ShardState, ASnapshotAndTheChangesSinceMakeItAgainToTheBit) {
  std::size_t repeated = 0;
  for (const Mode& mode : kModes) {
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE("mode " + std::to_string(&mode - kModes.data()) + ", seed " +
                   std::to_string(seed));
      History history(model_of({{5, 700}, {33}}, mode, kRules[seed % kRules.size()]), seed);
      history.run(40);
      const Snapshot now = snapshot_of(history.shard());
      const Snapshot again = history.recovered();
      ASSERT_EQ(again.arrays, now.arrays);
      // Clocks may be told by who is here, which is not kept: the rest is in the same places.
      Shard one(history.shard().model(), 2, 0, kWorkers);
      Shard other(history.shard().model(), 2, 0, kWorkers);
      ASSERT_TRUE(one.restore(now.saved).ok());
      ASSERT_TRUE(other.restore(again.saved).ok());
      EXPECT_EQ(other.version(), one.version());
      EXPECT_TRUE(std::ranges::equal(other.parameters().steps(), one.parameters().steps()));
      for (Worker worker = 0; worker < kWorkers; ++worker) {
        EXPECT_EQ(other.decided(worker), one.decided(worker));
      }
      repeated += history.tape().size();
    }
  }
  EXPECT_GT(repeated, 500u);
}

TEST(ShardState, WhatIsOfAnotherModelIsRefused) {
  const Model model = model_of({{40}});
  Shard shard(model, 1, 0, 1);
  Bytes saved;
  Shard(model_of({{40, 3}}), 1, 0, 1).save(saved);
  EXPECT_EQ(shard.restore(saved).error().text, "shard.steps at byte 3 are others");
  EXPECT_FALSE(shard.given());
  saved.clear();
  Shard(model, 1, 0, 1).save(saved);
  for (std::size_t size = 0; size < saved.size(); ++size) {
    EXPECT_FALSE(shard.restore(std::span(saved).first(size)).ok());
  }
  ASSERT_TRUE(shard.restore(saved).ok());

  const std::vector<std::byte> share(Layout(model, 1).share_bytes(0));
  Change change{.pushes = {{.worker = 0, .seq = 1, .rules = {exact_rule()}, .used = {true}}}};
  EXPECT_TRUE(shard.repeat(change, share).ok());
  EXPECT_EQ(shard.repeat(change, std::span(share).first(64)).error().text,
            "a stored change does not have the gradients that it lists");
  change.pushes.front().used = {true, true};
  EXPECT_EQ(shard.repeat(change, share).error().text, "a stored change belongs to another model");
  EXPECT_FALSE(shard.repeat({}, {}).ok());
}

// A worker whose answer was held, and who asks again since its server was lost, is held again.
TEST(ShardState, ADuplicateDoesNotPassTheGate) {
  const Model model = model_of({{40}}, {.kind = ModeKind::kSsp});
  Shard shard(model, 1, 0, 2);
  std::vector<Bytes> memory(2, Bytes(shard.layout().memory_bytes()));
  for (Worker worker = 0; worker < 2; ++worker) {
    shard.enter(worker, memory[static_cast<std::size_t>(worker)].data());
  }
  shard.give(0);
  const auto push = [&](Worker worker, std::uint64_t seq) {
    std::vector<Ack> acks;
    shard.push(
        {.worker = worker, .seq = seq, .clock = seq, .rules = {exact_rule()}, .used = {true}},
        acks);
    return acks.size();
  };
  EXPECT_EQ(push(0, 1), 0u);
  shard.enter(0, memory[0].data(), 1);
  EXPECT_EQ(push(0, 1), 0u);
  EXPECT_EQ(push(1, 1), 2u);
}

}  // namespace
}  // namespace ciranda::ps
