// What negotiation costs host 0 of a large job: the work of its first rank for a step of known
// buckets that become ready one after the other, over real (Unix) sockets, sealed as in a job. The
// other hosts are played by this program, and only the coordinator's own CPU time is counted.
//
//   coordinator_bench --benchmark_filter=Joined
//
// Columns: messages and bytes between hosts, per bucket, both directions (payloads sealed, without
// TCP's headers).
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/carrier.h"
#include "core/wire/codec.h"

namespace ciranda {
namespace {

constexpr int kRanksPerHost = 8;
constexpr std::uint64_t kPatienceNs = 10'000'000'000;

RequestSpec bucket(int index) {
  return {.name = "bucket." + std::to_string(index),
          .op = ReduceOp::kAverage,
          .in_arena = true,
          .tensors = {{.shape = {1 << 20}}}};
}

Secret key(std::uint8_t fill) {
  std::array<std::byte, Secret::kBytes> bytes;
  bytes.fill(std::byte{fill});
  return std::move(Secret::take(bytes)).value();
}

ProvenSocket proven(int fd, Rank peer, bool at_centre) {
  Session session{
      .peer = peer, .send_key = key(at_centre ? 1 : 2), .receive_key = key(at_centre ? 2 : 1)};
  return {.stream = Stream(Fd(fd)), .session = std::move(session), .address = "bench"};
}

std::uint64_t cpu_ns() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

Frame request_of(CacheId id) {
  return {.requests = {
              {.cache_id = id,
               .contribution = {.token = 70'000, .arena = {.segment = 1, .offset = 1u << 20}}}}};
}

// Host 0's first rank, and the other hosts' ends of its connections.
class Job {
 public:
  Job(int ranks, int buckets) : negotiator_(options(ranks)) {
    const auto hosts = static_cast<int>(hosts_.size());
    std::vector<ControlConnection> control;
    for (int host = 1; host < hosts; ++host) {
      int ends[2];
      CIRANDA_ASSERT(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
      control.emplace_back(proven(ends[0], host * kRanksPerHost, true));
      others_.emplace_back(proven(ends[1], 0, false));
    }
    carrier_ = std::make_unique<Carrier>(std::move(control), hosts_, 0, negotiator_, kPatienceNs);
    for (int i = 0; i < buckets; ++i) {
      std::vector<std::byte> bytes;
      encode({.requests = {{.spec = bucket(i)}}}, bytes);
      for (Rank rank = 0; rank < ranks; ++rank) {
        CIRANDA_ASSERT(negotiator_.handle_frame(rank, bytes, 0, responses_).ok());
      }
      ids_.push_back(negotiator_.known(bucket(i)));
    }
  }

  // One bucket is submitted everywhere; nanoseconds of the coordinator.
  std::uint64_t agree(CacheId id, bool joined) {
    for (std::size_t i = 0; i < others_.size(); ++i) {
      const auto host = static_cast<int>(i) + 1;
      if (joined) {
        say(i, host * kRanksPerHost,
            {.kind = FrameKind::kReady, .host = host, .ready = {{.op = {id, 0}}}});
        continue;
      }
      for (int local = 0; local < kRanksPerHost; ++local) {
        say(i, host * kRanksPerHost + local, request_of(id));
      }
    }
    std::vector<std::byte> own;
    encode(request_of(id), own);
    std::uint64_t spent_ns = 0;
    responses_.clear();
    const std::uint64_t begin_ns = cpu_ns();
    for (Rank rank = 0; rank < kRanksPerHost; ++rank) carrier_->submit(rank, own, 0);
    spent_ns += cpu_ns() - begin_ns;
    while (responses_.empty()) {
      const std::uint64_t round_ns = cpu_ns();
      CIRANDA_ASSERT(carrier_
                         ->advance(
                             [this](Rank from, std::span<const std::byte> frame) {
                               CIRANDA_ASSERT(
                                   negotiator_.handle_frame(from, frame, 0, responses_).ok());
                               return true;
                             },
                             0, true)
                         .ok());
      spent_ns += cpu_ns() - round_ns;
      drain();
    }
    drain();
    return spent_ns;
  }

  const std::vector<CacheId>& ids() const { return ids_; }
  std::uint64_t messages() const { return messages_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Negotiator::Options options(int ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      if (rank % kRanksPerHost == 0) hosts_.emplace_back();
      hosts_.back().push_back(rank);
    }
    return {.size = ranks, .hosts = hosts_};
  }

  void say(std::size_t other, Rank from, const Frame& frame) {
    payload_.clear();
    Writer(payload_).varint(static_cast<std::uint64_t>(from));
    encode(frame, payload_);
    CIRANDA_ASSERT(others_[other].send(1, payload_).ok());
    ++messages_;
    bytes_ += payload_.size() + kSealedHeaderBytes + kSealBytes;
  }

  // What the other hosts got; they are not what is measured, so nobody opens it.
  void drain() {
    std::array<std::byte, 65536> bytes;
    for (const ControlConnection& other : others_) {
      for (ssize_t got; (got = ::read(other.fd(), bytes.data(), bytes.size())) > 0;) {
        bytes_ += static_cast<std::uint64_t>(got);
        for (std::size_t at = 0; at < static_cast<std::size_t>(got);) {
          std::uint32_t payload = 0;
          std::memcpy(&payload, bytes.data() + at, sizeof payload);
          at += payload + kSealedHeaderBytes + kSealBytes;
          ++messages_;
        }
      }
    }
  }

  Hosts hosts_;
  Negotiator negotiator_;
  std::vector<ControlConnection> others_;
  std::unique_ptr<Carrier> carrier_;
  std::vector<CacheId> ids_;
  std::vector<Response> responses_;
  std::vector<std::byte> payload_;
  std::uint64_t messages_ = 0, bytes_ = 0;
};

void step(benchmark::State& state, bool joined, int buckets) {
  rlimit files = {};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  Job job(static_cast<int>(state.range(0)), buckets);
  std::uint64_t agreed = 0;
  for (auto _ : state) {
    std::uint64_t ns = 0;
    for (const CacheId id : job.ids()) ns += job.agree(id, joined);
    agreed += job.ids().size();
    state.SetIterationTime(static_cast<double>(ns) / 1e9 / static_cast<double>(job.ids().size()));
  }
  state.counters["messages"] = static_cast<double>(job.messages()) / static_cast<double>(agreed);
  state.counters["bytes"] = static_cast<double>(job.bytes()) / static_cast<double>(agreed);
}

// The time is of one bucket.
void BM_JoinedBucket(benchmark::State& state) {
  step(state, true, 25);
}
BENCHMARK(BM_JoinedBucket)->RangeMultiplier(8)->Range(8, 4096)->Iterations(4)->UseManualTime();

// As if nothing could be joined: each rank's Request travels alone.
void BM_SeparateBucket(benchmark::State& state) {
  step(state, false, 2);
}
BENCHMARK(BM_SeparateBucket)->RangeMultiplier(8)->Range(8, 512)->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace ciranda

BENCHMARK_MAIN();
