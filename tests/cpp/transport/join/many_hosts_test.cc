// Many hosts start at once: breaks when rank 0 loses callers in the crowd, or is told or asked more
// than once a host.
//
// CIRANDA_START_HOSTS: how many, of 8 ranks each. Their first ranks are threads; what the others
// say to them is said for them.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "core/base/clock.h"
#include "transport/join/meeting.h"

namespace ciranda::testing {
namespace {

constexpr int kRanksPerHost = 8;

// A host whose ranks 1 to 7 have introduced themselves, as seen by its first rank.
struct Host {
  LocalMesh first;
  std::vector<Fd> others;  // the other ends of their sockets
};
Host host_of(const RemoteJoin& first_rank) {
  Host host;
  host.first.size = kRanksPerHost;
  host.first.peers.resize(kRanksPerHost);
  for (int local = 1; local < kRanksPerHost; ++local) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    host.first.peers[static_cast<std::size_t>(local)].socket = Fd(ends[0]);
    host.others.emplace_back(ends[1]);
    Introduction own = first_rank.self;
    own.rank += local;
    own.local_rank = local;
    own.addresses = {{"192.0.2.17", 40'000}, {"2001:db8:0:1::17", 40'000}};
    std::vector<std::byte> letter;
    encode(own, letter);
    const auto [memory, fd] = std::move(MemorySegment::create(letter.size())).value();
    std::memcpy(memory.data(), letter.data(), letter.size());
    EXPECT_TRUE(send_message(ends[1],
                             {.kind = PeerMessage::Kind::kIntroduction,
                              .segment = static_cast<std::uint32_t>(letter.size()),
                              .bytes = memory.bytes()},
                             fd.get())
                    .ok());
  }
  return host;
}

TEST(ManyHosts, MeetWithOneConnectionAHost) {
  const char* text = std::getenv("CIRANDA_START_HOSTS");
  const int count = text != nullptr ? std::atoi(text) : 8;
  std::vector<RemoteJoin> all = joins(std::vector<int>(static_cast<std::size_t>(count), 1), 1,
                                      /*timeout_ms=*/60'000);
  std::vector<Host> hosts;
  for (RemoteJoin& join : all) {
    join.self.size = count * kRanksPerHost;
    join.self.rank *= kRanksPerHost;
    join.self.local_size = kRanksPerHost;
    hosts.push_back(host_of(join));
  }
  std::vector<std::optional<Result<RemoteMesh>>> results(all.size());
  std::vector<std::uint64_t> ended_ns(all.size());
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < count) std::this_thread::yield();
      results[i] = join_remote(std::move(all[i]), hosts[i].first, test_key());
      ended_ns[i] = monotonic_ns();
    });
  }
  while (ready < count) std::this_thread::yield();
  const std::uint64_t began_ns = monotonic_ns();
  for (std::thread& thread : threads) thread.join();

  for (const auto& result : results) ASSERT_TRUE(result->ok()) << result->error().text;
  const RemoteMesh& rank0 = results[0]->value();
  EXPECT_EQ(rank0.size(), count * kRanksPerHost);
  ASSERT_EQ(rank0.control.size(), all.size() - 1);
  std::uint64_t received = 0, sent = 0;
  for (const ControlConnection& connection : rank0.control) {
    tcp_info facts{};
    socklen_t length = sizeof facts;
    ASSERT_EQ(::getsockopt(connection.fd(), IPPROTO_TCP, TCP_INFO, &facts, &length), 0);
    received += facts.tcpi_bytes_received;
    sent += facts.tcpi_bytes_sent;
  }
  for (const Host& host : hosts) {  // each rank of it has the table, without a byte from rank 0
    for (const Fd& other : host.others) {
      const auto told = receive_message(other.get());
      ASSERT_TRUE(told.ok() && told.value().has_value());
      EXPECT_EQ(told.value()->message.kind, PeerMessage::Kind::kHostTable);
    }
  }
  std::printf(
      "%d hosts x %d ranks: %.0f ms, rank 0 has %zu connections, received %.1f kB, sent "
      "%.1f kB\n",
      count, kRanksPerHost,
      static_cast<double>(*std::max_element(ended_ns.begin(), ended_ns.end()) - began_ns) / 1e6,
      rank0.control.size(), static_cast<double>(received) / 1e3, static_cast<double>(sent) / 1e3);
}

}  // namespace
}  // namespace ciranda::testing
