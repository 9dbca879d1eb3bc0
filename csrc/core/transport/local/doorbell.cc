#include "core/transport/local/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "core/base/assert.h"

namespace ciranda {
namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

std::uint32_t* futex_word(std::atomic<std::uint32_t>& word) {
  return reinterpret_cast<std::uint32_t*>(&word);
}

}  // namespace

void Doorbell::ring() {
  // Pairs with announce(): either the sleeper's second look sees the ringer's change, or this load
  // sees the sleeper. A load alone keeps the cache line shared while nobody sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_sleepers();
}

void Doorbell::wake_sleepers() {
  if (sleepers.load(std::memory_order_relaxed) == 0) return;
  rings.fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_futex, futex_word(rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::uint32_t Doorbell::announce() {
  const std::uint32_t ticket = rings.load(std::memory_order_seq_cst);
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  return ticket;
}

void Doorbell::withdraw() {
  const std::uint32_t before = sleepers.fetch_sub(1, std::memory_order_seq_cst);
  CIRANDA_ASSERT(before > 0);  // by announce()
}

void Doorbell::sleep(std::uint32_t ticket, std::uint64_t timeout_ns) {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000u);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000u);
  ::syscall(SYS_futex, futex_word(rings), FUTEX_WAIT, ticket, &timeout, nullptr, 0);
  withdraw();
}

}  // namespace ciranda
