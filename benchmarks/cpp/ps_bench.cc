// A push and its answer, without Python: what a worker's Client and a server in another process
// take for it. Beside it what cannot be undercut: a packet of a Unix socket, there and back between
// two processes that sleep while they wait. Where both run decides more than all else, so it is an
// argument: on one core, on two, or (0) as the kernel likes.
#include <benchmark/benchmark.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/ps/io/client.h"
#include "core/ps/io/server.h"

namespace ciranda::ps {
namespace {

constexpr std::size_t kPacketBytes = 128;  // about those of a push
const kernels::UpdateRule kRule{.kind = kernels::RuleKind::kSgd, .lr = 0x1p-20};

// How long each turn took.
class Turns {
 public:
  explicit Turns(benchmark::State& state) : state_(state) {}
  template <typename Turn>
  void run(Turn turn) {
    for ([[maybe_unused]] auto _ : state_) {
      const std::uint64_t begin_ns = monotonic_ns();
      turn();
      ns_.push_back(monotonic_ns() - begin_ns);
    }
    std::sort(ns_.begin(), ns_.end());
    state_.counters["p50_us"] = at(0.5);
    state_.counters["p99_us"] = at(0.99);
  }

 private:
  double at(double part) const {
    const auto last = static_cast<double>(ns_.size() - 1);
    return static_cast<double>(ns_[static_cast<std::size_t>(part * last)]) / 1e3;
  }
  benchmark::State& state_;
  std::vector<std::uint64_t> ns_;
};

// While it lives this process is on the first of so many cores of those that it may use.
class Held {
 public:
  explicit Held(std::int64_t cores) {
    ::sched_getaffinity(0, sizeof all_, &all_);
    for (int core = 0; core < CPU_SETSIZE && static_cast<std::int64_t>(few_.size()) < cores;
         ++core) {
      if (CPU_ISSET(static_cast<std::size_t>(core), &all_)) few_.push_back(core);
    }
    if (!few_.empty()) hold(few_.front());
  }
  ~Held() { ::sched_setaffinity(0, sizeof all_, &all_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  // In the other process.
  void take_the_last() const {
    if (!few_.empty()) hold(few_.back());
  }

 private:
  static void hold(int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(core), &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }
  cpu_set_t all_{};
  std::vector<int> few_;
};

// Another process, which ends by itself.
template <typename Body>
class Forked {
 public:
  Forked(const Held& held, Body body) : process_(::fork()) {
    if (process_ != 0) return;
    held.take_the_last();
    body();
    std::_Exit(0);
  }
  ~Forked() { ::waitpid(process_, nullptr, 0); }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;

 private:
  pid_t process_;
};

void PacketThereAndBack(benchmark::State& state) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()) != 0) std::abort();
  std::array<char, kPacketBytes> packet{};
  const Held held(state.range(0));
  {
    const Forked other(held, [&] {
      ::close(ends[0]);
      while (::recv(ends[1], packet.data(), packet.size(), 0) > 0) {
        ::send(ends[1], packet.data(), packet.size(), 0);
      }
    });
    ::close(ends[1]);
    Turns(state).run([&] {
      ::send(ends[0], packet.data(), packet.size(), 0);
      ::recv(ends[0], packet.data(), packet.size(), 0);
    });
    ::close(ends[0]);
  }
}
BENCHMARK(PacketThereAndBack)->UseRealTime()->DenseRange(0, 2);

template <typename T>
T value_of(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "ps_bench: %s\n", result.error().text.c_str());
    std::abort();
  }
  return std::move(result).value();
}

void PushAndAnswer(benchmark::State& state) {
  std::string folder = std::filesystem::temp_directory_path() / "ciranda-ps-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) std::abort();
  const Held held(state.range(1));
  {
    const Forked server(held, [&] {
      static_cast<void>(
          value_of(Server::start({.job_folder = folder, .protocol = {.job_id = "bench"}}))->run());
    });
    const auto client =
        value_of(Client::connect({.address = {.folder = folder}, .job_id = "bench"}));
    const std::int64_t elements = state.range(0) / static_cast<std::int64_t>(sizeof(float));
    const Model model{.tables = {{.rule = kRule, .slots = {{.name = "p", .shape = {elements}}}}}};
    const auto zeros = [](const Layout& layout, std::byte* memory) {
      std::fill_n(memory, layout.memory_bytes(), std::byte{0});
    };
    ParameterClient& parameters = client->parameters();
    if (!parameters.declare(model, zeros)) std::abort();
    Turns(state).run([&] {
      if (!parameters.push(parameters.versions(), 1.0, {kRule}, {true})) std::abort();
      if (value_of(parameters.answer()) != Outcome::kApplied) std::abort();
    });
  }
  std::filesystem::remove_all(folder);
  state.SetBytesProcessed(state.iterations() * state.range(0) * 2);  // gradients and parameters
}
BENCHMARK(PushAndAnswer)->UseRealTime()->ArgsProduct({{4 << 10, 64 << 20}, {0, 1, 2}});

}  // namespace
}  // namespace ciranda::ps

BENCHMARK_MAIN();
