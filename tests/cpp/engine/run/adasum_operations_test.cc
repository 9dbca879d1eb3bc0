#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "adasum_model.h"
#include "core/engine/engine.h"
#include "engine/hosts.h"
#include "engine/world.h"

namespace ciranda::testing {
namespace {

Gradient gradient_of(Rank rank, std::size_t count) {
  Gradient gradient(count);
  for (std::size_t i = 0; i < count; ++i) {
    gradient[i] = std::sin(static_cast<double>(i * 5 + static_cast<std::size_t>(rank) * 3 + 1));
  }
  return gradient;
}

Gradient expected(const std::vector<Rank>& ranks, std::size_t count) {
  std::vector<Gradient> gradients;
  for (const Rank rank : ranks) gradients.push_back(gradient_of(rank, count));
  return adasum(gradients);
}

std::vector<Rank> all_of(const Engine& engine) {
  return engine.group(kWorldGroup)->ranks;
}

void expect_near(const Gradient& found, const Gradient& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(found[i], wanted[i], 1e-12) << i;
}

// Ranks of each host.
class AdasumOnHosts : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  static World make() {
    const std::vector<int>& hosts = GetParam();
    return hosts.size() == 1 ? World(hosts.front())
                             : several_hosts(hosts, {.pace = {.spin_ns = 20'000}}, /*tls=*/false);
  }
};
INSTANTIATE_TEST_SUITE_P(Hosts, AdasumOnHosts,
                         ::testing::Values(std::vector{1}, std::vector{2}, std::vector{3},
                                           std::vector{4}, std::vector{8}, std::vector{2, 2},
                                           std::vector{1, 2}));

TEST_P(AdasumOnHosts, IsTheModels) {
  World world = make();
  world.run([](Engine& engine) {
    for (const std::size_t count : {0u, 1u, 5u, 1000u, 70'001u, 5u}) {
      Gradient tensor = gradient_of(engine.rank(), count);
      const auto handle = allreduce(engine, tensor, {.op = ReduceOp::kAdasum});
      ASSERT_TRUE(handle.ok());
      const Status status = engine.wait(handle.value());
      ASSERT_TRUE(status.ok()) << status.error().text;
      expect_near(tensor, expected(all_of(engine), count));
    }
  });
}

// Each tensor by itself; what else runs meanwhile is not mixed up with it.
TEST_P(AdasumOnHosts, WeighsEachTensorOfAGroup) {
  World world = make();
  world.run([](Engine& engine) {
    Gradient a = gradient_of(engine.rank(), 1001);
    Gradient b = gradient_of(engine.rank() + 7, 3);
    Gradient c = gradient_of(engine.rank(), 1);
    std::vector<float> sum(100, 1.0F);
    Gradient d = gradient_of(engine.rank(), 64);
    for (double& value : d) value /= 2;
    const std::vector<Handle> handles = {
        engine
            .submit(in_place<double>(OpKind::kAllreduce, {&a, &b, &c},
                                     {.name = "group", .op = ReduceOp::kAdasum}))
            .value(),
        allreduce(engine, sum).value(),
        allreduce(engine, d,
                  {.name = "d", .op = ReduceOp::kAdasum, .prescale = 4, .postscale = 0.5})
            .value()};
    ASSERT_TRUE(engine.wait(handles).ok());
    std::vector<Rank> ranks = all_of(engine);
    expect_near(a, expected(ranks, 1001));
    expect_near(c, expected(ranks, 1));
    expect_near(d, expected(ranks, 64));
    for (Rank& rank : ranks) rank += 7;
    expect_near(b, expected(ranks, 3));
    EXPECT_EQ(sum, std::vector<float>(100, static_cast<float>(engine.size())));
  });
}

// A rank that waits for nothing is asked to drive.
TEST_P(AdasumOnHosts, RunsWhereRanksWaitInAnotherOrder) {
  World world = make();
  world.run([](Engine& engine) {
    std::vector<Gradient> tensors;
    std::vector<Handle> handles;
    for (int i = 0; i < 4; ++i) tensors.push_back(gradient_of(engine.rank(), 3000));
    for (int i = 0; i < 4; ++i) {
      const int which = engine.rank() % 2 == 0 ? i : 3 - i;
      handles.push_back(allreduce(engine, tensors[static_cast<std::size_t>(which)],
                                  {.name = std::to_string(which), .op = ReduceOp::kAdasum})
                            .value());
    }
    for (const Handle& handle : handles) ASSERT_TRUE(engine.wait(handle).ok());
    for (const Gradient& tensor : tensors) expect_near(tensor, expected(all_of(engine), 3000));
  });
}

TEST(Adasum, OfASetLeavesTheOthersAlone) {
  World world(4);
  world.run([](Engine& engine) {
    const auto set = engine.add_group({0, 2, 3});
    ASSERT_TRUE(set.ok());
    if (engine.rank() == 1) return;
    Gradient tensor = gradient_of(engine.rank(), 500);
    const auto handle =
        allreduce(engine, tensor, {.group = set.value()->id, .op = ReduceOp::kAdasum});
    ASSERT_TRUE(engine.wait(handle.value()).ok());
    expect_near(tensor, expected({0, 2, 3}, 500));
  });
}

// Its parts are told to nobody who has left: join() waits until they are done.
TEST(Adasum, IsDoneBeforeItsRankJoins) {
  World world(3);
  world.run([](Engine& engine) {
    Gradient tensor = gradient_of(engine.rank(), 9000);
    const Handle handle = allreduce(engine, tensor, {.op = ReduceOp::kAdasum}).value();
    ASSERT_TRUE(engine.join().ok());
    ASSERT_TRUE(engine.wait(handle).ok());
    expect_near(tensor, expected(all_of(engine), 9000));
  });
}

// A set that is removed between two parts would take the parts to come with it.
TEST(Adasum, IsDoneBeforeItsSetIsRemoved) {
  World world(3);
  world.run([](Engine& engine) {
    for (int i = 0; i < 50; ++i) {
      const GroupId set = engine.add_group({0, 2}).value()->id;
      Gradient tensor = gradient_of(engine.rank(), 900);
      Handle handle;
      if (engine.rank() != 1)
        handle = allreduce(engine, tensor, {.group = set, .op = ReduceOp::kAdasum}).value();
      const Status removed = engine.remove_group(set);
      ASSERT_TRUE(removed.ok()) << removed.error().text;
      if (engine.rank() == 1) continue;
      const Status status = engine.wait(handle);
      ASSERT_TRUE(status.ok()) << status.error().text;
      expect_near(tensor, expected({0, 2}, 900));
    }
  });
}

TEST(Adasum, IsNothingThatAJoinedRankCanAddZerosTo) {
  World world(2);
  world.run([](Engine& engine) {
    if (engine.rank() == 1) {
      ASSERT_TRUE(engine.join().ok());
      return;
    }
    Gradient tensor(5);
    const Handle handle = allreduce(engine, tensor, {.op = ReduceOp::kAdasum}).value();
    EXPECT_FALSE(engine.wait(handle).ok());
    ASSERT_TRUE(engine.join().ok());
  });
}

TEST(Adasum, IsAgreedLikeAnyOperator) {
  World world(2);
  world.run([](Engine& engine) {
    Gradient tensor(5, 1.0);
    const ReduceOp op = engine.rank() == 0 ? ReduceOp::kAdasum : ReduceOp::kSum;
    const Status status = engine.wait(allreduce(engine, tensor, {.name = "x", .op = op}).value());
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().text.find("Adasum"), std::string::npos) << status.error().text;
  });
}

TEST(Adasum, TakesFloatsOfAnAllreduceAlone) {
  World world(1);
  Engine& engine = world[0];
  std::vector<std::int64_t> whole(4);
  const auto refused = allreduce(engine, whole, {.op = ReduceOp::kAdasum});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("floating point tensors, not int64"), std::string::npos);
  std::vector<float> input(4), output;
  EXPECT_FALSE(
      gather_like(engine, OpKind::kReducescatter, input, {}, output, {.op = ReduceOp::kAdasum})
          .ok());
}

}  // namespace
}  // namespace ciranda::testing
