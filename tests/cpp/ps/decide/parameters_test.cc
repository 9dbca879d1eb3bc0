// What could break: an element that is updated twice, by another slot's rule or on another server;
// a worker's memory that keeps an old value; state that a push needs and nobody has.
#include "core/ps/decide/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::exact_rule;
using testing::model_of;

using Floats = std::vector<float>;

const std::vector<std::vector<std::int64_t>> kSizes = {{3, 40'000, 1}, {17}};

std::byte* bytes_of(Floats& floats) {
  return reinterpret_cast<std::byte*>(floats.data());
}

// A worker's memory: its gradients, then its parameters.
Floats memory_of(const Layout& layout, float gradient, float parameter) {
  Floats memory(layout.memory_bytes() / sizeof(float), gradient);
  std::fill(memory.begin() + static_cast<std::ptrdiff_t>(memory.size() / 2), memory.end(),
            parameter);
  return memory;
}

Push push_of(const Model& model, std::vector<bool> used = {}) {
  Push push{.worker = 0, .seq = 1, .used = std::move(used)};
  for (const Table& table : model.tables) push.rules.push_back(table.rule);
  if (push.used.empty()) push.used.assign(slot_count(model), true);
  return push;
}

// The elements of a slot in a worker's parameters, or in a copied table.
Floats slot_of(const Layout& layout, const Floats& memory, std::size_t table, std::size_t slot) {
  const Layout::Place place = layout.slots(table)[slot];
  const auto first = static_cast<std::ptrdiff_t>(layout.parameters_at(table) / sizeof(float));
  return {memory.begin() + first + place.begin, memory.begin() + first + place.end};
}
bool all_are(const Floats& values, float wanted) {
  return std::ranges::count(values, wanted) == static_cast<std::ptrdiff_t>(values.size());
}

class ParametersOnServers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Servers, ParametersOnServers, ::testing::Values(1, 2, 5));

TEST_P(ParametersOnServers, EachElementIsUpdatedOnceAndOnOneServer) {
  const Model model = model_of(kSizes);
  const Layout layout(model, GetParam());
  Floats worker = memory_of(layout, 2.0f, 10.0f);
  Floats target = memory_of(layout, 0.0f, -1.0f);
  const Push push = push_of(model, {true, false, true, false});
  const std::byte* const gradients = bytes_of(worker);
  std::byte* const written = bytes_of(target);
  for (int server = 0; server < GetParam(); ++server) {
    Parameters parameters(model, GetParam(), server);
    parameters.read_from(bytes_of(worker));
    parameters.update({.pushes = {&push, 1},
                       .gradients = {&gradients, 1},
                       .scale = 0.5,
                       .targets = {&written, 1}});
    EXPECT_TRUE(std::ranges::equal(parameters.steps(), std::array{1, 0, 1, 0}));
    EXPECT_EQ(parameters.traffic().parameter_bytes, layout.share_bytes(server));
  }
  EXPECT_TRUE(all_are(slot_of(layout, target, 0, 0), 9.0f));
  EXPECT_TRUE(all_are(slot_of(layout, target, 0, 1), 10.0f));  // copied, though it has no gradient
  EXPECT_TRUE(all_are(slot_of(layout, target, 0, 2), 9.0f));
  EXPECT_TRUE(all_are(slot_of(layout, target, 1, 0), 10.0f));
  EXPECT_TRUE(all_are(slot_of(layout, worker, 0, 0), 10.0f));  // no target
}

TEST_P(ParametersOnServers, PackedGradientsAreThoseOfTheServersOwnArrays) {
  const Model model = model_of(kSizes);
  const Layout layout(model, GetParam());
  Floats worker = memory_of(layout, 0.0f, 0.0f);
  for (std::size_t i = 0; i < worker.size() / 2; ++i) worker[i] = static_cast<float>(i % 1000);
  const Push push = push_of(model);
  for (int server = 0; server < GetParam(); ++server) {
    std::vector<std::byte> packed;
    for (const auto& [begin, bytes] : layout.gradients_of(server)) {
      packed.insert(packed.end(), bytes_of(worker) + begin, bytes_of(worker) + begin + bytes);
    }
    Parameters one(model, GetParam(), server);
    Parameters other(model, GetParam(), server);
    const std::byte* from = bytes_of(worker);
    one.update({.pushes = {&push, 1}, .gradients = {&from, 1}});
    from = packed.data();
    other.update({.pushes = {&push, 1}, .gradients = {&from, 1}, .packed = true});
    EXPECT_TRUE(std::ranges::equal(one.arrays().front(), other.arrays().front()));
  }
}

TEST(Parameters, AVectorGetsTheGradientsAndTheParametersStay) {
  const Model model = model_of({{5}});
  Parameters parameters(model, 1, 0);
  Floats worker = memory_of(parameters.layout(), 3.0f, 7.0f);
  parameters.read_from(bytes_of(worker));
  Floats vector(worker.size() / 2, 1.0f);
  const Push push = push_of(model);
  const std::byte* const gradients = bytes_of(worker);
  parameters.update(
      {.pushes = {&push, 1}, .gradients = {&gradients, 1}, .vector = bytes_of(vector)});
  EXPECT_EQ(vector.front(), 4.0f);
  EXPECT_EQ(parameters.steps().front(), 0);
  parameters.write_to(bytes_of(worker));
  EXPECT_TRUE(all_are(slot_of(parameters.layout(), worker, 0, 0), 7.0f));
}

TEST(Parameters, RulesHaveToCoverAllSlotsAndHaveTheirState) {
  const Model model = model_of(kSizes);
  const Parameters parameters(model, 1, 0);
  EXPECT_TRUE(parameters.check(push_of(model)).ok());
  Push push = push_of(model);
  push.used.push_back(true);
  EXPECT_EQ(parameters.check(push).error().text,
            "a push of worker 0 is for another number of parameters");
  push = push_of(model);
  push.rules.pop_back();
  EXPECT_FALSE(parameters.check(push).ok());
  push = push_of(model);
  push.rules.push_back(exact_rule());
  push.rule_slots = {2, 1, 1};
  EXPECT_TRUE(parameters.check(push).ok());
  push.rule_slots = {1, 1, 1};
  EXPECT_FALSE(parameters.check(push).ok());
  push.rule_slots = {2, 2, 1};
  EXPECT_FALSE(parameters.check(push).ok());
  push = push_of(model);
  push.rules.back().kind = kernels::RuleKind::kAdam;
  EXPECT_EQ(parameters.check(push).error().text,
            "a push of worker 0 has an update rule that needs other state");
}

TEST(Parameters, MomentumBeginsWithThePushThatBringsIt) {
  const Model model = model_of({{5}, {5}});
  Parameters parameters(model, 1, 0);
  EXPECT_EQ(parameters.arrays().size(), 1u);
  const std::uint64_t before = parameters.held_bytes();
  Push push = push_of(model);
  push.rules.back().momentum = 0.5;
  ASSERT_TRUE(parameters.begin_states(push).ok());
  EXPECT_EQ(parameters.arrays().size(), 2u);
  EXPECT_EQ(parameters.held_bytes(), before / 2 * 3);  // of one table of two
  Floats worker = memory_of(parameters.layout(), 2.0f, 0.0f);
  const std::byte* const gradients = bytes_of(worker);
  parameters.update({.pushes = {&push, 1}, .gradients = {&gradients, 1}});
  Floats state(static_cast<std::size_t>(parameters.layout().elements(1)));
  parameters.copy_state(1, 0, bytes_of(state));
  EXPECT_EQ(state.front(), 2.0f);
}

TEST(Parameters, PartsOfAnyNumberOfServersAreTakenOver) {
  const Model model = model_of(kSizes);
  Floats worker = memory_of(Layout(model, 1), 0.0f, 0.0f);
  for (std::size_t i = worker.size() / 2; i < worker.size(); ++i) worker[i] = static_cast<float>(i);
  Floats gathered(worker.size(), -1.0f);
  for (int server = 0; server < 3; ++server) {
    Parameters whole(model, 3, server);
    for (int from = 0; from < 2; ++from) {
      Parameters part(model, 2, from);
      part.read_from(bytes_of(worker));
      ASSERT_TRUE(whole.take_over(part));
    }
    whole.write_to(bytes_of(gathered));
  }
  const Layout layout(model, 1);
  for (std::size_t table = 0; table < model.tables.size(); ++table) {
    for (std::size_t slot = 0; slot < model.tables[table].slots.size(); ++slot) {
      EXPECT_EQ(slot_of(layout, gathered, table, slot), slot_of(layout, worker, table, slot));
    }
  }
}

}  // namespace
}  // namespace ciranda::ps
