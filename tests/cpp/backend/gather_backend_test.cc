// What could break: the example of docs/backends.md, or the contract that it shows.
#include "backend/gather_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "backend/board.h"
#include "engine/world.h"

namespace ciranda::testing {
namespace {

struct Sum {
  std::vector<float> a, b;
  std::optional<Status> status;

  Execution execution() {
    const auto whole = [](std::vector<float>& tensor) {
      auto* bytes = reinterpret_cast<std::byte*>(tensor.data());
      const std::uint64_t count = tensor.size() * sizeof(float);
      return Buffer{.in = bytes, .out = bytes, .in_bytes = count, .out_bytes = count};
    };
    Execution execution;
    execution.buffers = {whole(a), whole(b)};
    execution.done = [this](const Status& done, const auto&) { status = done; };
    return execution;
  }
};

TEST(GatherBackend, SumsOnceAllRanksHaveStarted) {
  Board board(3);
  std::deque<GatherBackend> ranks;
  std::deque<Sum> sums;
  for (Rank rank = 0; rank < 3; ++rank) {
    const auto value = static_cast<float>(rank + 1);
    ranks.emplace_back(board.context(rank));
    sums.push_back({.a = {value}, .b = {value * 10, -value}, .status = {}});
    EXPECT_FALSE(rank > 0 && ranks[0].advance());
    ranks.back().start(sums.back().execution());
  }
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(ranks[rank].supports(FusedOp{}));
    EXPECT_TRUE(ranks[rank].advance());
    EXPECT_TRUE(ranks[rank].idle());
    EXPECT_TRUE(sums[rank].status && sums[rank].status->ok());
    EXPECT_EQ(sums[rank].a, std::vector<float>{6});
    EXPECT_EQ(sums[rank].b, (std::vector<float>{60, -6}));
  }
}

const BackendEntry kRow{
    .id = BackendId::kGloo,
    .make = [](BackendContext context) -> std::unique_ptr<Backend> {
      return std::make_unique<GatherBackend>(std::move(context));
    },
    .facts = [] { return BackendFacts{.id = BackendId::kGloo, .available = true}; }};

// Its exchange is then the native backend's allgather.
TEST(GatherBackend, RunsInTheWorldsOfItsRow) {
  World world(3, {.pace = {.spin_ns = 20'000}, .backends = {&kRow, 1}});
  world.run([](Engine& engine) {
    for (int step = 0; step < 5; ++step) {
      std::vector<std::vector<float>> tensors(20);
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        tensors[i].assign(i, static_cast<float>(engine.rank()));
        auto handle = allreduce(engine, tensors[i],
                                {.name = "t" + std::to_string(i), .backend = BackendId::kGloo});
        ASSERT_TRUE(handle.ok()) << handle.error().text;
        handles.push_back(std::move(handle).value());
      }
      ASSERT_TRUE(engine.wait(handles).ok());
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(tensors[i], std::vector<float>(i, 3.0F));
      }
    }
  });
}

// The members of a group that can be summed use their memory until they are.
TEST(GatherBackend, AGroupEndsWithItsLastPartThoughAnotherIsRefused) {
  World world(2, {.pace = {.spin_ns = 20'000}, .backends = {&kRow, 1}});
  for (const DType first : {DType::kFloat32, DType::kFloat64}) {
    world.run([&](Engine& engine) {
      std::vector<float> narrow(4, 1.0F);
      std::vector<double> wide(4, 1.0);
      Submission group = in_place<float>(OpKind::kAllreduce, {&narrow},
                                         {.name = "group", .backend = BackendId::kGloo});
      RequestSpec spec = *group.spec;
      auto* const more = reinterpret_cast<std::byte*>(wide.data());
      const auto at = static_cast<std::ptrdiff_t>(first == DType::kFloat32 ? 1 : 0);
      spec.tensors.insert(spec.tensors.begin() + at, {DType::kFloat64, {4}});
      group.inputs.push_back(more);
      group.outputs.push_back(more);
      if (at == 0) std::reverse(group.inputs.begin(), group.inputs.end());
      if (at == 0) std::reverse(group.outputs.begin(), group.outputs.end());
      group.spec = std::make_shared<const RequestSpec>(std::move(spec));
      auto handle = engine.submit(std::move(group));
      ASSERT_TRUE(handle.ok());
      const Status status = engine.wait(handle.value());
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kUnsupported) << status.error().text;
      EXPECT_EQ(narrow, std::vector<float>(4, 2.0F));
      auto next = allreduce(engine, narrow, {.name = "group"});
      ASSERT_TRUE(next.ok()) << next.error().text;
      EXPECT_TRUE(engine.wait(next.value()).ok()) << "the World goes on";
    });
  }
}

TEST(GatherBackend, AbortEndsWhatWaitsForARank) {
  Board board(2);
  GatherBackend rank(board.context(0));
  Sum sum{.a = {1}, .b = {2}, .status = {}};
  rank.start(sum.execution());
  EXPECT_FALSE(rank.advance());
  rank.abort({.code = ErrorCode::kRankLost, .text = "rank 1 was lost"});
  EXPECT_TRUE(rank.idle());
  ASSERT_TRUE(sum.status && !sum.status->ok());
  EXPECT_EQ(sum.status->error().text, "rank 1 was lost");
}

}  // namespace
}  // namespace ciranda::testing
