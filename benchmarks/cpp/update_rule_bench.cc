// Speed of the optimizer's pass against the memory's, and against doing the same in several passes.
// "bytes" are those read plus those written; "range" is the memory of one array.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "core/kernels/reduce.h"
#include "core/kernels/update_rule.h"
#include "core/kernels/variants.h"

namespace ciranda::kernels {
namespace {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;
constexpr std::size_t kRanks = 2;
constexpr std::size_t kAdamStates = 2;

// What the owner of a slice meets: a gradient and a parameter copy for each rank, and state.
class Slice {
 public:
  explicit Slice(std::size_t bytes, std::size_t state_arrays = kAdamStates) {
    constexpr std::size_t kLineBytes = 64;
    const std::size_t padded = bytes + kLineBytes;
    storage_.resize((2 * kRanks + state_arrays) * padded + kLineBytes, std::byte{0});
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    std::byte* next = storage_.data() + (kLineBytes - address % kLineBytes) % kLineBytes;
    const auto take = [&](std::vector<std::byte*>& arrays, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i, next += padded) arrays.push_back(next);
    };
    take(gradients, kRanks);
    take(parameters, kRanks);
    take(states, state_arrays);
    const std::vector<float> ones(bytes / sizeof(float), 1.0f);
    for (std::byte* gradient : gradients) std::memcpy(gradient, ones.data(), bytes);
  }
  std::vector<const std::byte*> inputs() const { return {gradients.begin(), gradients.end()}; }

  std::vector<std::byte*> gradients;
  std::vector<std::byte*> parameters;
  std::vector<std::byte*> states;

 private:
  std::vector<std::byte> storage_;
};

// `arrays` read plus arrays written.
void set_bytes(benchmark::State& state, std::size_t arrays) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(arrays) * state.range(0));
}
constexpr std::size_t kAdamArrays = (kRanks + 1 + kAdamStates) + (kRanks + kAdamStates);

void update_slice(benchmark::State& state, const UpdateRule& rule, DType dtype) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Slice slice(bytes);
  const std::vector<const std::byte*> gradients = slice.inputs();
  const std::span states = std::span(slice.states).first(state_arrays(rule).size());
  for (auto _ : state) {
    update(rule, {.dtype = dtype,
                  .step = 10,
                  .gradient_scale = 0.5,
                  .gradients = gradients,
                  .parameters = slice.parameters,
                  .states = states,
                  .count = bytes / dtype_bytes(dtype)});
    benchmark::ClobberMemory();
  }
  set_bytes(state, (kRanks + 1 + states.size()) + (kRanks + states.size()));
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("range")->UseRealTime();
  for (const std::int64_t bytes : {16 * kKiB, kMiB, 64 * kMiB}) bench->Arg(bytes);
}
constexpr UpdateRule kAdam = {.kind = RuleKind::kAdam};
BENCHMARK_CAPTURE(update_slice, adam_fp32, kAdam, DType::kFloat32)->Apply(sizes);
BENCHMARK_CAPTURE(update_slice, adam_bf16, kAdam, DType::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(update_slice, adam_fp16, kAdam, DType::kFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(update_slice, sgd_momentum_fp32, {.momentum = 0.9}, DType::kFloat32)
    ->Apply(sizes);

// The same streams with next to no arithmetic: as fast as the memory allows.
void same_streams(benchmark::State& state) {
  using Line [[gnu::vector_size(64)]] = float;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Slice slice(bytes);
  for (auto _ : state) {
    for (std::size_t at = 0; at < bytes; at += sizeof(Line)) {
      const auto line = [at](std::byte* array) { return reinterpret_cast<Line*>(array + at); };
      const Line sum = *line(slice.gradients[0]) + *line(slice.gradients[1]);
      *line(slice.states[0]) += sum;
      *line(slice.states[1]) += sum;
      *line(slice.parameters[1]) = *line(slice.parameters[0]) += sum;
    }
    benchmark::ClobberMemory();
  }
  set_bytes(state, kAdamArrays);
}
BENCHMARK(same_streams)->Apply(sizes);

void allreduce_in_place(Slice& slice, std::size_t count) {
  reduce({.dtype = DType::kFloat32, .op = ReduceOp::kSum, .postscale = 0.5}, slice.inputs(),
         slice.gradients, count);
}

void plain_adam(std::byte* parameter, std::span<std::byte* const> states, const std::byte* gradient,
                std::size_t count) {
  const std::byte* const gradients[] = {gradient};
  std::byte* const parameters[] = {parameter};
  update(kAdam, {.dtype = DType::kFloat32,
                 .step = 10,
                 .gradients = gradients,
                 .parameters = parameters,
                 .states = states,
                 .count = count});
}

// The same in passes of their own: reduce, step one copy of the parameter, copy it to the other.
void in_three_passes(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Slice slice(bytes);
  for (auto _ : state) {
    allreduce_in_place(slice, bytes / sizeof(float));
    plain_adam(slice.parameters[0], slice.states, slice.gradients[0], bytes / sizeof(float));
    kernels::copy(slice.parameters[1], slice.parameters[0], bytes);
    benchmark::ClobberMemory();
  }
  set_bytes(state, kAdamArrays);  // of the work, as above
}
BENCHMARK(in_three_passes)->Apply(sizes);

// What ranks do that all step for themselves, each with a state of its own.
void every_rank_steps(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Slice slice(bytes, kRanks * kAdamStates);
  for (auto _ : state) {
    allreduce_in_place(slice, bytes / sizeof(float));
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const auto states = std::span(slice.states).subspan(rank * kAdamStates, kAdamStates);
      plain_adam(slice.parameters[rank], states, slice.gradients[rank], bytes / sizeof(float));
    }
    benchmark::ClobberMemory();
  }
  set_bytes(state, kAdamArrays);  // of the work, as above
}
BENCHMARK(every_rank_steps)->Apply(sizes);

void sum_squares(benchmark::State& state, DType dtype) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Slice slice(bytes);
  const std::vector<const std::byte*> gradients = slice.inputs();
  for (auto _ : state) {
    benchmark::DoNotOptimize(sum_of_squares(dtype, gradients, 0.5, bytes / dtype_bytes(dtype)));
  }
  set_bytes(state, kRanks);
}
BENCHMARK_CAPTURE(sum_squares, fp32, DType::kFloat32)->Apply(sizes);
BENCHMARK_CAPTURE(sum_squares, bf16, DType::kBFloat16)->Apply(sizes);

}  // namespace
}  // namespace ciranda::kernels

BENCHMARK_MAIN();
