// How far two cores are apart: a cache line goes there and back. On a virtual machine this tells
// whether its cores share a cache today (some 60 ns) or sit on different dies (500 ns and more),
// which every figure of two ranks depends on.
#include <benchmark/benchmark.h>
#include <sched.h>

#include <atomic>
#include <thread>

namespace {

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

void CacheLineRoundTrip(benchmark::State& state) {
  struct alignas(128) Line {
    std::atomic<std::uint64_t> value{0};
  };
  Line ask;
  Line answer;
  constexpr std::uint64_t kStop = UINT64_MAX;
  std::thread other([&] {
    pin_to(1);
    for (std::uint64_t seen = 0; seen != kStop;) {
      const std::uint64_t now = ask.value.load(std::memory_order_acquire);
      if (now == seen) continue;
      seen = now;
      answer.value.store(seen, std::memory_order_release);
    }
  });
  pin_to(0);
  std::uint64_t turn = 0;
  for ([[maybe_unused]] auto _ : state) {
    ask.value.store(++turn, std::memory_order_release);
    while (answer.value.load(std::memory_order_acquire) != turn) {
    }
  }
  ask.value.store(kStop, std::memory_order_release);
  other.join();
}
BENCHMARK(CacheLineRoundTrip)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
