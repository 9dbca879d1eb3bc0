// Speed of the kernels against the memory's. "bytes" are those read plus those written.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "core/kernels/reduce.h"
#include "core/kernels/variants.h"

namespace ciranda::kernels {
namespace {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;

// Bytes on a cache line of their own, all touched, so that no page fault is measured.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : storage_(bytes + kLineBytes, std::byte{0}) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    aligned_ = storage_.data() + (kLineBytes - address % kLineBytes) % kLineBytes;
  }
  std::byte* data() { return aligned_; }

 private:
  static constexpr std::size_t kLineBytes = 64;
  std::vector<std::byte> storage_;
  std::byte* aligned_;
};

// In place, as in an allreduce of ranks of one host: every input is read and written once. With
// several threads each reduces its share, as the ranks would.
void reduce_in_place(benchmark::State& state, DType dtype, double postscale) {
  static std::vector<Buffer> ranks;
  const auto rank_count = static_cast<std::size_t>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  if (state.thread_index() == 0) {
    ranks.clear();
    for (std::size_t rank = 0; rank < rank_count; ++rank) ranks.emplace_back(bytes);
  }
  const std::size_t share = bytes / static_cast<std::size_t>(state.threads());
  const std::size_t offset = share * static_cast<std::size_t>(state.thread_index());
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (auto _ : state) {
    if (inputs.empty()) {  // `ranks` is ready once the first iteration's barrier is passed
      for (Buffer& rank : ranks) {
        inputs.push_back(rank.data() + offset);
        outputs.push_back(rank.data() + offset);
      }
    }
    reduce({.dtype = dtype, .op = ReduceOp::kSum, .postscale = postscale}, inputs, outputs,
           share / dtype_bytes(dtype));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * rank_count * share));
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"ranks", "bytes"})->UseRealTime();
  for (const std::int64_t bytes : {4 * kKiB, kMiB, 64 * kMiB}) bench->Args({2, bytes});
}
void sizes_and_ranks(benchmark::internal::Benchmark* bench) {
  sizes(bench);
  for (const int ranks : {3, 4, 8}) bench->Args({ranks, kMiB / 4});
}

BENCHMARK_CAPTURE(reduce_in_place, fp32, DType::kFloat32, 1.0)->Apply(sizes_and_ranks);
BENCHMARK_CAPTURE(reduce_in_place, fp32_two_threads, DType::kFloat32, 1.0)
    ->ArgNames({"ranks", "bytes"})
    ->Args({2, kMiB})
    ->Args({2, 64 * kMiB})
    ->Threads(2)
    ->UseRealTime();
BENCHMARK_CAPTURE(reduce_in_place, fp32_average, DType::kFloat32, 0.5)->Apply(sizes);
BENCHMARK_CAPTURE(reduce_in_place, fp16, DType::kFloat16, 1.0)->Apply(sizes);
BENCHMARK_CAPTURE(reduce_in_place, bf16, DType::kBFloat16, 1.0)->Apply(sizes);
BENCHMARK_CAPTURE(reduce_in_place, int32_average, DType::kInt32, 0.5)->Apply(sizes);

void cast_between(benchmark::State& state, DType from_dtype, DType to_dtype) {
  const auto count = static_cast<std::size_t>(state.range(0)) / sizeof(float);
  Buffer from(count * dtype_bytes(from_dtype));
  Buffer to(count * dtype_bytes(to_dtype));
  for (auto _ : state) {
    cast(from_dtype, from.data(), to_dtype, to.data(), count, 0.5);
    benchmark::ClobberMemory();
  }
  const std::size_t moved = count * (dtype_bytes(from_dtype) + dtype_bytes(to_dtype));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(moved));
}
void fp32_bytes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("fp32_bytes")->Arg(16 * kKiB)->Arg(kMiB)->Arg(64 * kMiB);
}
BENCHMARK_CAPTURE(cast_between, fp32_to_bf16, DType::kFloat32, DType::kBFloat16)->Apply(fp32_bytes);
BENCHMARK_CAPTURE(cast_between, bf16_to_fp32, DType::kBFloat16, DType::kFloat32)->Apply(fp32_bytes);
BENCHMARK_CAPTURE(cast_between, fp32_to_fp16, DType::kFloat32, DType::kFloat16)->Apply(fp32_bytes);
BENCHMARK_CAPTURE(cast_between, fp16_to_fp32, DType::kFloat16, DType::kFloat32)->Apply(fp32_bytes);

// Cycles through enough buffers that neither end is in a cache.
using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);
void copy_cold(benchmark::State& state, Copy copy_bytes) {
  constexpr std::size_t kSweptBytes = 512 * kMiB;  // of both ends together
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t pairs = kSweptBytes / (2 * bytes);
  Buffer from(pairs * bytes);
  Buffer to(pairs * bytes);
  std::size_t pair = 0;
  for (auto _ : state) {
    copy_bytes(to.data() + pair * bytes, from.data() + pair * bytes, bytes);
    benchmark::ClobberMemory();
    pair = (pair + 1) % pairs;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * bytes));
}
void copy_memcpy(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const Copy best = [] {
    for (const Variant& variant : variants()) {
      if (variant.available()) return variant.loops->copy_past_caches;
    }
    return Copy{copy_memcpy};
  }();
  best(to, from, bytes);
}
void copy_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("bytes")->UseRealTime();
  for (const std::int64_t bytes : {64 * kKiB, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    bench->Arg(bytes);
  }
}
BENCHMARK_CAPTURE(copy_cold, chosen, copy)->Apply(copy_sizes);
BENCHMARK_CAPTURE(copy_cold, memcpy, copy_memcpy)->Apply(copy_sizes);
BENCHMARK_CAPTURE(copy_cold, past_caches, copy_past_caches)->Apply(copy_sizes);

}  // namespace
}  // namespace ciranda::kernels

BENCHMARK_MAIN();
