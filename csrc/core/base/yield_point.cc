#include "core/base/yield_point.h"

#if defined(CIRANDA_YIELD_POINTS)

#include <sched.h>
#include <unistd.h>

#include <atomic>

namespace ciranda {
namespace {

constexpr std::uint64_t kYieldsOneIn = 4;
constexpr std::uint64_t kSleepsOneIn = 64;  // longer than another thread takes to wake
constexpr useconds_t kSleepUs = 100;

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): of a test, for the whole process
std::atomic<std::uint64_t> seed{0};
std::atomic<std::uint64_t> threads{0};
thread_local std::uint64_t state = 0;
thread_local std::uint64_t seeded_with = 0;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

std::uint64_t next_random() {  // xorshift64
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

}  // namespace

void set_yield_seed(std::uint64_t value) {
  seed.store(value);
}

void yield_point() {
  const std::uint64_t wanted = seed.load(std::memory_order_relaxed);
  if (wanted == 0) return;
  if (seeded_with != wanted) {
    seeded_with = wanted;
    state = wanted * 0x9e3779b97f4a7c15u + threads.fetch_add(1) + 1;
  }
  const std::uint64_t chance = next_random() >> 16;
  if (chance % kSleepsOneIn == 0) {
    ::usleep(kSleepUs);
  } else if (chance % kYieldsOneIn == 0) {
    ::sched_yield();
  }
}

}  // namespace ciranda

#endif
