// Whoever does not hold the key calls while a job trains: breaks when results change, a step waits
// for them, or a rank keeps more descriptors or memory for them than it may.
//
// CIRANDA_STRANGERS: how many call (`make soak`: 10,000). Prints what a step took without them,
// with them at another port of this machine, and with them at rank 0.
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/base/clock.h"
#include "core/transport/dial/dialer.h"
#include "core/transport/dial/job_key.h"
#include "core/transport/tcp/socket_io.h"
#include "engine/hosts.h"
#include "sanitizers.h"

namespace ciranda::testing {
namespace {

std::uint64_t in_ms(std::uint64_t ms) {
  return monotonic_ns() + ms * 1'000'000;
}

// What one rank said when it met rank 0 of an earlier start with the same key.
struct Recorded {
  std::vector<std::byte> hello;  // and the cookie before it
  std::vector<std::byte> proof;
};
Recorded overhear() {
  std::vector<RemoteJoin> both = joins({1, 1});
  const SocketAddress rank0 = resolve(both[0].rendezvous).value().front();
  Fd wire = listen_tcp("127.0.0.1").value();
  both[1].rendezvous = local_address(wire.get()).value().endpoint();
  std::vector<std::byte> heard;
  std::thread tap([&] {
    EXPECT_TRUE(wait_readable(wire.get(), in_ms(10'000)).value());
    const Fd client(::accept4(wire.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const Fd server = connect_tcp(rank0, in_ms(5'000)).value();
    const auto forward = [&heard](const Fd& from, const Fd& to, bool keep) {
      std::byte buffer[4096];
      const auto count = receive_some(from.get(), buffer);
      if (!count) return false;
      const auto bytes = std::span(buffer).first(count.value());
      if (keep) heard.insert(heard.end(), bytes.begin(), bytes.end());
      return send_some(to.get(), bytes).ok();
    };
    while (forward(client, server, true) && forward(server, client, false)) {
      (void)wait_readable(client.get(), in_ms(1));
    }
  });
  {
    const auto locals = inside({1, 1});
    for (const auto& mesh : meet(std::move(both), locals)) EXPECT_TRUE(mesh.ok());
  }
  tap.join();
  constexpr std::ptrdiff_t kProofAt = sizeof(Cookie) + kHelloBytes;
  EXPECT_GE(heard.size(), kProofAt + kProofBytes);
  return {{heard.begin(), heard.begin() + kProofAt},
          {heard.begin() + kProofAt, heard.begin() + kProofAt + kProofBytes}};
}

// Calls again and again, in every bad way, from many addresses.
class Strangers {
 public:
  static constexpr std::size_t kHeldMax = 150;

  Strangers(Endpoint where, const Recorded& recorded)
      : where_(resolve(where).value().front()), endpoint_(std::move(where)), recorded_(recorded) {
    JobId job;
    std::memcpy(job.data(), recorded.hello.data() + sizeof(Cookie) + 16, job.size());
    others_.emplace(std::move(ConnectionKeys::derive(test_key(std::byte{9}), job, 0)).value());
  }

  void call(int which) {
    if (which % 5 == 3) return prove_with_another_key();
    Fd socket = connect(which);
    if (!socket.valid()) return;
    std::byte noise[300];
    switch (which % 5) {
      case 0:
        for (std::byte& each : noise) each = static_cast<std::byte>(random_());
        say(socket, noise);
        break;
      case 1:
        say(socket, std::span(recorded_.hello).first(1 + random_() % (recorded_.hello.size() - 1)));
        break;
      case 2:
        say(socket, recorded_.hello);
        (void)wait_readable(socket.get(), in_ms(5));
        say(socket, recorded_.proof);
        break;
      default:
        break;  // silence
    }
    held_.push_back(std::move(socket));
    if (held_.size() > kHeldMax) held_.erase(held_.begin());
  }

 private:
  Fd connect(int which) {
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7f000000u + 2u + static_cast<unsigned>(which % 200));
    (void)::bind(socket.get(), reinterpret_cast<sockaddr*>(&from), sizeof from);
    if (::connect(socket.get(), where_.get(), where_.length) != 0 && errno != EINPROGRESS)
      return {};
    (void)wait_writable(socket.get(), in_ms(5));
    return socket;
  }
  static void say(const Fd& socket, std::span<const std::byte> bytes) {
    (void)send_some(socket.get(), bytes);
  }
  void prove_with_another_key() {
    Dialer dialer(*others_, {.purpose = Purpose::kData, .from = 1, .to = 0}, {endpoint_},
                  in_ms(20));
    for (const std::uint64_t end = in_ms(5); monotonic_ns() < end;) {
      if (!dialer.advance(monotonic_ns())) break;
      (void)wait_for(dialer.watched(), in_ms(1));
    }
  }

  const SocketAddress where_;
  const Endpoint endpoint_;
  const Recorded recorded_;
  std::optional<ConnectionKeys> others_;
  std::mt19937 random_{1};
  std::vector<Fd> held_;
};

int strangers_wanted() {
  const char* text = std::getenv("CIRANDA_STRANGERS");
  return text != nullptr ? std::atoi(text) : 300;
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t all = 0;
  std::size_t resident = 0;
  EXPECT_TRUE(statm >> all >> resident);
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

TEST(Strangers, ChangeNothing) {
  const Recorded recorded = overhear();
  const int wanted = strangers_wanted();
  std::vector<RemoteJoin> both = joins({1, 1});
  const Endpoint rank0 = both[0].rendezvous;
  Fd decoy = listen_tcp("127.0.0.1").value();
  const Endpoint elsewhere = local_address(decoy.get()).value().endpoint();
  std::vector<std::unique_ptr<Engine>> engines;
  {
    auto locals = inside({1, 1});
    auto remotes = meet(std::move(both), locals);
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(remotes[i].ok());
      engines.push_back(Engine::start(std::move(locals[i]), std::move(remotes[i]).value(),
                                      EngineOptions{.pace = {.spin_ns = 20'000}})
                            .value());
    }
  }
  World world(std::move(engines));

  // Phases of equal length in turns; within each, steps of about a millisecond.
  enum Phase { kAlone, kElsewhere, kHere, kPhases };
  constexpr int kRounds = 10;
  const int calls_a_round = wanted / kRounds;
  std::vector<double> took_us[kPhases];
  std::atomic<int> phase{kAlone};
  std::atomic<bool> over{false};
  const std::size_t descriptors_before = open_descriptors();
  [[maybe_unused]] const std::size_t bytes_before = resident_bytes();
  std::size_t descriptors_most = 0;
  std::thread strangers([&] {
    Strangers there(elsewhere, recorded);
    Strangers here(rank0, recorded);
    int which = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (const Phase now : {kAlone, kElsewhere, kHere}) {
        phase = now;
        for (int i = 0; i < calls_a_round; ++i, ++which) {
          const std::uint64_t next_ns = monotonic_ns() + 2'000'000;
          if (now == kElsewhere) there.call(which);
          if (now == kHere) here.call(which);
          if (i % 10 == 0) descriptors_most = std::max(descriptors_most, open_descriptors());
          // A port at which nobody proves anything: calls are taken and ended.
          for (Fd call; now == kElsewhere;) {
            call = Fd(::accept4(decoy.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (!call.valid()) break;
            turn_away(std::move(call));
          }
          const std::uint64_t time = monotonic_ns();
          if (time < next_ns) {
            std::this_thread::sleep_for(std::chrono::nanoseconds(next_ns - time));
          }
        }
      }
    }
    over = true;
  });
  world.run([&](Engine& engine) {
    std::vector<float> tensor(100'000);
    for (bool last = false; !last;) {
      std::vector<float> flag(1, engine.rank() == 0 && over ? 1.0f : 0.0f);
      const int now = phase;
      const std::uint64_t began = monotonic_ns();
      std::fill(tensor.begin(), tensor.end(), static_cast<float>(engine.rank() + 1));
      for (std::vector<float>* each : {&tensor, &flag}) {
        auto handle = allreduce(engine, *each, {.name = each == &flag ? "flag" : "t"});
        ASSERT_TRUE(handle.ok());
        const Status status = engine.wait(handle.value());
        ASSERT_TRUE(status.ok()) << status.error().text;
      }
      ASSERT_EQ(tensor, std::vector<float>(100'000, 3.0f));
      if (engine.rank() == 0 && now == phase) {
        took_us[now].push_back(static_cast<double>(monotonic_ns() - began) / 1000);
      }
      last = flag[0] > 0.0f;
    }
  });
  strangers.join();
  EXPECT_LT(*std::ranges::max_element(took_us[kHere]), 2e6) << "a step waited for strangers";
  constexpr std::size_t kOfTheirs = 2 * Strangers::kHeldMax;
  constexpr std::size_t kOthers = 8;  // a call, the links of the ranks, the folder that is read
  EXPECT_LE(descriptors_most, descriptors_before + kOfTheirs + Acceptor::kStrangersMax + kOthers);
  EXPECT_LE(open_descriptors(), descriptors_before + Acceptor::kStrangersMax + kOthers);
  if (!kUnderAsan) {  // which keeps what was freed
    EXPECT_LT(resident_bytes(), bytes_before + (std::size_t{32} << 20));
  }
  std::printf(
      "%d strangers; a step, median: %.1f us without, %.1f us with them elsewhere, %.1f us "
      "with them at rank 0\n",
      wanted, median(took_us[kAlone]), median(took_us[kElsewhere]), median(took_us[kHere]));
}

}  // namespace
}  // namespace ciranda::testing
