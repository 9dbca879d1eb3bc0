// What could break: ranks that do not agree on where the data of an operation is.
#include "core/engine/run/inline_data.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/world.h"

namespace ciranda::testing {
namespace {

RequestSpec allreduce_of(std::int64_t floats) {
  return {.name = "x", .tensors = {{.dtype = DType::kFloat32, .shape = {floats}}}};
}

TEST(InlineData, IsOfFewBytesOfOneTensorThatOurBackendReduces) {
  EXPECT_TRUE(may_travel_inline(allreduce_of(1)));
  EXPECT_TRUE(may_travel_inline(allreduce_of(kInlineBytesMax / 4)));
  EXPECT_FALSE(may_travel_inline(allreduce_of(kInlineBytesMax / 4 + 1)));
  EXPECT_FALSE(may_travel_inline(allreduce_of(0)));
  RequestSpec other = allreduce_of(1);
  other.in_arena = true;
  EXPECT_FALSE(may_travel_inline(other));
  other = allreduce_of(1);
  other.backend = BackendId::kGloo;
  EXPECT_FALSE(may_travel_inline(other));
  other = allreduce_of(1);
  other.tensors.push_back(other.tensors.front());
  EXPECT_FALSE(may_travel_inline(other));
  other = allreduce_of(1);
  other.kind = OpKind::kBroadcast;
  EXPECT_FALSE(may_travel_inline(other));
}

// An operation of two ranks and two requests, with `bytes` of each rank inline.
struct Agreed {
  explicit Agreed(std::vector<std::size_t> bytes) {
    const GroupTable groups(2, {});
    op.group = groups.world();
    for (std::uint32_t i = 0; i < 2; ++i) {
      Response& response = responses.emplace_back();
      response.spec = std::make_shared<const RequestSpec>(allreduce_of(2));
      response.group = op.group;
      for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
        auto& own = response.contributions.emplace_back();
        own.rank = static_cast<Rank>(rank);
        const float numbers[] = {static_cast<float>(rank + 1), static_cast<float>(i)};
        own.contribution.inline_data.assign(reinterpret_cast<const std::byte*>(numbers),
                                            bytes[rank]);
      }
      op.members.push_back({.response = i, .tensor = 0});
    }
  }
  FusedOp op;
  std::vector<Response> responses;
};

TEST(InlineData, IsUsedWhereAllOfEveryRankIsThere) {
  const auto came = [](const Agreed& agreed) { return came_inline(agreed.op, agreed.responses); };
  EXPECT_TRUE(came(Agreed({8, 8})));
  EXPECT_FALSE(came(Agreed({8, 0})));
  EXPECT_FALSE(came(Agreed({8, 4})));  // of a rank that is not ours
  EXPECT_FALSE(came(Agreed({8})));     // one has joined, or is on another host
  Agreed partly({8, 8});
  partly.responses[1].contributions[0].contribution.inline_data.clear();
  EXPECT_FALSE(came(partly));
}

// Ranks of one host are fewer; what more ranks send as if they were on one is not looked at.
TEST(InlineData, IsNotUsedBeyondTheRanksOfAHost) {
  const auto came = [](int ranks) {
    Agreed agreed(std::vector<std::size_t>(static_cast<std::size_t>(ranks), 8));
    agreed.op.group = GroupTable(ranks, {}).world();
    return came_inline(agreed.op, agreed.responses);
  };
  EXPECT_TRUE(came(kLocalRanksMax));
  EXPECT_FALSE(came(kLocalRanksMax + 1));
}

TEST(InlineData, IsReducedRequestByRequest) {
  Agreed agreed({8, 8});
  agreed.op.op = ReduceOp::kAverage;
  float first[2];
  float second[2];
  Buffers buffers;
  for (float* out : {first, second}) {
    buffers.push_back({.out = reinterpret_cast<std::byte*>(out), .out_bytes = sizeof first});
  }
  reduce_inline(agreed.op, agreed.responses, buffers);
  EXPECT_EQ(first[0], 1.5F);
  EXPECT_EQ(first[1], 0.0F);
  EXPECT_EQ(second[0], 1.5F);
  EXPECT_EQ(second[1], 1.0F);
}

// Small and large ones at a time, fused and not, in another order on each rank, and anew by number.
TEST(InlineData, TravelsBesideWhatIsStaged) {
  World world(3);
  world.run([](Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::vector<double>> tensors;
      for (const std::size_t count : {1u, 8u, 9u, 1000u, 2u, 100'000u}) {
        tensors.emplace_back(count, engine.rank() + round);
      }
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::size_t at = (i + static_cast<std::size_t>(engine.rank())) % tensors.size();
        handles.push_back(
            allreduce(engine, tensors[at], {.name = "t" + std::to_string(at)}).value());
      }
      ASSERT_TRUE(engine.wait(handles).ok());
      for (const auto& tensor : tensors) {
        EXPECT_EQ(tensor, std::vector<double>(tensor.size(), 3.0 + 3.0 * round));
      }
    }
  });
}

}  // namespace
}  // namespace ciranda::testing
