// What agreement costs when no bytes have to travel: the steady state is a known allreduce.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "core/negotiate/negotiator.h"
#include "core/plan/fusion.h"
#include "core/wire/messages.h"

namespace ciranda {
namespace {

RequestSpec gradient(int index) {
  return {.name = "module.layer." + std::to_string(index) + ".weight",
          .op = ReduceOp::kAverage,
          .tensors = {{.dtype = DType::kFloat32, .shape = {256, 128}}}};
}

std::vector<std::byte> bytes_of(const Frame& frame) {
  std::vector<std::byte> bytes;
  encode(frame, bytes);
  return bytes;
}

// A negotiator of `size` ranks that knows `count` gradients.
struct World {
  World(int size, int count) : negotiator({.size = size}) {
    for (int i = 0; i < count; ++i) {
      Request request{.spec = gradient(i)};
      const std::vector<std::byte> bytes = bytes_of({.requests = {request}});
      for (Rank rank = 0; rank < size; ++rank)
        CIRANDA_ASSERT(negotiator.handle_frame(rank, bytes, 0, responses).ok());
      ids.push_back(negotiator.known(*request.spec));
    }
    CIRANDA_ASSERT(responses.size() == static_cast<std::size_t>(count));
    responses.clear();
  }
  Frame known_frame() const {
    Frame frame;
    for (std::uint32_t i = 0; i < ids.size(); ++i)
      frame.requests.push_back({.cache_id = ids[i], .contribution = {.token = i}});
    return frame;
  }
  Negotiator negotiator;
  std::vector<CacheId> ids;
  std::vector<Response> responses;
};

// One known allreduce: the frames of all ranks and the Response.
void BM_KnownAllreduce(benchmark::State& state) {
  const int size = static_cast<int>(state.range(0));
  World world(size, 1);
  const std::vector<std::byte> bytes = bytes_of(world.known_frame());
  for (auto _ : state) {
    for (Rank rank = 0; rank < size; ++rank)
      benchmark::DoNotOptimize(world.negotiator.handle_frame(rank, bytes, 0, world.responses).ok());
    CIRANDA_ASSERT(world.responses.size() == 1);
    world.responses.clear();
  }
}
BENCHMARK(BM_KnownAllreduce)->Arg(2)->Arg(8);

// A step of 404 small gradients in one frame a rank, with its fusion plan; time is per gradient.
void BM_KnownStepWithPlan(benchmark::State& state) {
  World world(2, 404);
  const std::vector<std::byte> bytes = bytes_of(world.known_frame());
  for (auto _ : state) {
    for (Rank rank = 0; rank < 2; ++rank)
      benchmark::DoNotOptimize(world.negotiator.handle_frame(rank, bytes, 0, world.responses).ok());
    benchmark::DoNotOptimize(plan_fusion(world.responses, {}));
    world.responses.clear();
  }
  state.SetItemsProcessed(state.iterations() * 404);
}
BENCHMARK(BM_KnownStepWithPlan);

void BM_EncodeKnown(benchmark::State& state) {
  Frame frame{.requests = {{.cache_id = 300,
                            .contribution = {.token = 70'000,
                                             .arena = {.segment = 1, .offset = 1u << 20}}}}};
  std::vector<std::byte> bytes;
  for (auto _ : state) {
    bytes.clear();
    encode(frame, bytes);
    benchmark::DoNotOptimize(bytes.data());
  }
}
BENCHMARK(BM_EncodeKnown);

void BM_DecodeKnown(benchmark::State& state) {
  const std::vector<std::byte> bytes =
      bytes_of({.requests = {{.cache_id = 300,
                              .contribution = {.token = 70'000,
                                               .arena = {.segment = 1, .offset = 1u << 20}}}}});
  Frame frame;
  for (auto _ : state) benchmark::DoNotOptimize(decode_frame(bytes, frame).ok());
}
BENCHMARK(BM_DecodeKnown);

void BM_KnownLookup(benchmark::State& state) {
  World world(1, 404);
  const RequestSpec spec = gradient(200);
  for (auto _ : state) benchmark::DoNotOptimize(world.negotiator.known(spec));
}
BENCHMARK(BM_KnownLookup);

}  // namespace
}  // namespace ciranda

BENCHMARK_MAIN();
