#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/transport/dial/acceptor.h"
#include "core/transport/dial/dialer.h"
#include "core/transport/tcp/socket_io.h"
#include "wire/keys.h"

namespace ciranda::test {

inline std::uint64_t in_ms(std::uint64_t ms) {
  return monotonic_ns() + ms * 1'000'000;
}

// Rank 0 of a job of 8, which takes calls in a thread of its own.
class Rank0 {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    std::uint64_t proof_ms = 2'000;
    Epoch epoch = 3;
    bool tls = false;
  };
  explicit Rank0(const Options& options)
      : keys_(options.tls ? tls_keys_of(1, 2, options.epoch) : keys_of(1, 2, options.epoch)),
        acceptor_(make(options)),
        thread_([this] { run(); }) {}
  Rank0() : Rank0(Options()) {}
  ~Rank0() { stop(); }

  Endpoint endpoint() const { return endpoint_; }
  const ConnectionKeys& keys() const { return keys_; }

  // A client's side of a connection.
  Result<ProvenSocket> call(Rank from, std::uint64_t timeout_ms = 5'000,
                            const ConnectionKeys* keys = nullptr, Incarnation incarnation = 1) {
    const Hello hello{.from = from, .to = 0, .incarnation = incarnation};
    const Endpoint candidates[] = {endpoint_};
    return connect_authenticated(keys == nullptr ? keys_ : *keys, hello, candidates,
                                 in_ms(timeout_ms));
  }

  // The next connection that the acceptor gave; waits for it.
  std::optional<ProvenSocket> proven(std::uint64_t timeout_ms = 5'000) {
    const std::uint64_t deadline = in_ms(timeout_ms);
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (!proven_.empty()) {
          ProvenSocket first = std::move(proven_.front());
          proven_.erase(proven_.begin());
          return first;
        }
      }
      if (monotonic_ns() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // What its thread has computed so far.
  std::uint64_t cpu_ns() {
    clockid_t clock{};
    timespec used{};
    EXPECT_EQ(::pthread_getcpuclockid(thread_.native_handle(), &clock), 0);
    EXPECT_EQ(::clock_gettime(clock, &used), 0);
    return static_cast<std::uint64_t>(used.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(used.tv_nsec);
  }

  // Ends the thread; afterwards the acceptor belongs to the test.
  Acceptor& stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return acceptor_;
  }
  std::string reason() { return stop().summary(monotonic_ns()).value_or("nobody was turned away"); }

 private:
  Acceptor make(const Options& options) {
    auto listener = listen_tcp(options.host);
    EXPECT_TRUE(listener.ok()) << listener.error().text;
    endpoint_ = local_address(listener.value().get()).value().endpoint();
    std::vector<Fd> listeners;
    listeners.push_back(std::move(listener).value());
    return Acceptor::create(std::move(listeners), keys_, {.self = 0, .incarnation = 7, .ranks = 8},
                            options.proof_ms)
        .value();
  }
  void run() {
    while (!stop_) {
      (void)wait_readable(acceptor_.fd(), in_ms(5));
      auto proven = acceptor_.poll(monotonic_ns());
      ASSERT_TRUE(proven.ok()) << proven.error().text;
      ASSERT_LE(acceptor_.unproven(), Acceptor::kStrangersMax);
      const std::lock_guard lock(mutex_);
      for (ProvenSocket& each : proven.value()) proven_.push_back(std::move(each));
    }
  }

  const ConnectionKeys keys_;
  Endpoint endpoint_;
  Acceptor acceptor_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<ProvenSocket> proven_;
  std::thread thread_;
};

}  // namespace ciranda::test
