// What could break: strangers keep a rank from its peers, learn something, or fill its log.
#include "transport/dial/acceptor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "core/transport/dial/job_key.h"
#include "sanitizers.h"

namespace ciranda {
namespace {

using test::in_ms;
using test::keys_of;
using test::Rank0;
using test::tls_keys_of;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

constexpr std::size_t kIntroductionBytes = sizeof(Cookie) + kHelloBytes;

// A caller without manners.
class Stranger {
 public:
  explicit Stranger(const Endpoint& endpoint)
      : socket_(connect_tcp(resolve(endpoint).value().front(), in_ms(5'000)).value()) {}

  bool say(std::span<const std::byte> bytes) { return send_some(socket_.get(), bytes).ok(); }

  // All that comes until the other side hangs up; "not hung up" if it does not.
  std::string hears(std::uint64_t timeout_ms = 5'000) {
    std::string heard;
    std::byte buffer[256];
    while (wait_readable(socket_.get(), in_ms(timeout_ms)).value()) {
      const auto count = receive_some(socket_.get(), buffer);
      if (!count.ok()) return heard;
      heard.append(reinterpret_cast<const char*>(buffer), count.value());
    }
    return "not hung up";
  }
  bool still_there() { return hears(1) == "not hung up"; }

 private:
  Fd socket_;
};

TEST(Acceptor, HangsUpOnStrangersWithoutAWord) {
  Rank0 rank0;
  std::string garbage(500, '\0');
  fill_random(std::as_writable_bytes(std::span(garbage)));
  for (const std::string& said :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("SSH-2.0-x\r\n"), garbage,
        std::string("\x16\x03\x01\x02", 4),
        std::string("in place of a cookie") + "\xc1"
                                              "cirand!"}) {
    Stranger stranger(rank0.endpoint());
    ASSERT_TRUE(stranger.say(bytes_of(said)));
    EXPECT_EQ(stranger.hears(), "");
  }
  Acceptor& acceptor = rank0.stop();
  EXPECT_EQ(acceptor.turned_away(), 5u);
  EXPECT_EQ(acceptor.unproven(), 0u);
}

TEST(Acceptor, AllowsAShortTimeInAll) {
  Rank0 rank0({.proof_ms = 150});
  Stranger silent(rank0.endpoint());
  Stranger slow(rank0.endpoint());
  const Hello hello{.from = 2, .to = 0};
  const ClientHandshake client(rank0.keys(), hello);
  const std::uint64_t began = monotonic_ns();
  std::size_t said = 0;
  for (const std::byte byte : client.hello()) {  // each byte in time, all of them not
    if (!slow.say({&byte, 1})) break;
    ++said;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(slow.hears(), "");
  EXPECT_EQ(silent.hears(), "");
  EXPECT_LT(monotonic_ns() - began, 2'000'000'000u);
  EXPECT_LT(said, kHelloBytes);
  EXPECT_NE(rank0.reason().find("it did not prove the job's key in time"), std::string::npos)
      << rank0.reason();
}

TEST(Acceptor, RefusesAConversationThatIsRepeated) {
  Rank0 rank0;
  // Between a rank and rank 0, somebody who listens and forwards.
  auto wire = listen_tcp("127.0.0.1").value();
  const Endpoint tapped = local_address(wire.get()).value().endpoint();
  std::string overheard;
  std::thread tap([&] {
    ASSERT_TRUE(wait_readable(wire.get(), in_ms(5'000)).value());
    const Fd client(::accept(wire.get(), nullptr, nullptr));
    auto server = connect_tcp(resolve(rank0.endpoint()).value().front(), in_ms(5'000)).value();
    std::byte buffer[256];
    struct Message {
      std::size_t bytes;
      int from;
      int to;
    };
    const int up = server.get();
    const int down = client.get();
    for (const auto& [bytes, from, to] :
         {Message{kIntroductionBytes, down, up}, Message{sizeof(Nonce), up, down},
          Message{kProofBytes, down, up}, Message{kWelcomeBytes, up, down}}) {
      for (std::size_t moved = 0; moved < bytes;) {
        ASSERT_TRUE(wait_readable(from, in_ms(5'000)).value());
        const std::size_t count = receive_some(from, buffer).value();
        ASSERT_EQ(send_some(to, std::span(buffer).first(count)).value(), count);
        overheard.append(reinterpret_cast<const char*>(buffer), count);
        moved += count;
      }
    }
  });
  const Endpoint candidates[] = {tapped};
  const Hello hello{.from = 2, .to = 0, .incarnation = 1};
  auto good = connect_authenticated(rank0.keys(), hello, candidates, in_ms(5'000));
  tap.join();
  ASSERT_TRUE(good.ok()) << good.error().text;
  ASSERT_TRUE(rank0.proven().has_value());

  Stranger again(rank0.endpoint());
  ASSERT_TRUE(again.say(bytes_of(std::string_view(overheard).substr(0, kIntroductionBytes))));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ASSERT_TRUE(again.say(bytes_of(
      std::string_view(overheard).substr(kIntroductionBytes + sizeof(Nonce), kProofBytes))));
  EXPECT_EQ(again.hears().size(), sizeof(Nonce)) << "random bytes and no more";
  EXPECT_FALSE(rank0.proven(50).has_value());
  EXPECT_NE(rank0.reason().find("or replays recorded bytes"), std::string::npos);
}

TEST(Acceptor, SaysWhyARankOfAnotherJobEpochOrKeyIsTurnedAway) {
  struct Case {
    ConnectionKeys keys;
    std::string reason;
    std::string told = "it closed the connection";
  };
  Case cases[] = {{keys_of(9), "does not hold this job's key"},
                  {keys_of(1, 9), "belongs to job 0909"},
                  {keys_of(1, 2, 2), "comes from epoch 2, this is epoch 3"},
                  {tls_keys_of(9), "does not hold this job's key", "it refused TLS"},
                  {tls_keys_of(1, 9), "belongs to another job", "it refused TLS"},
                  {tls_keys_of(1, 2, 2), "comes from epoch 2, this is epoch 3"}};
  for (const Case& each : cases) {
    Rank0 rank0({.tls = each.keys.tls != nullptr});
    const auto refused = rank0.call(2, 300, &each.keys);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kTimeout);
    EXPECT_NE(refused.error().text.find(each.told), std::string::npos) << refused.error().text;
    EXPECT_NE(rank0.reason().find(each.reason), std::string::npos) << rank0.reason();
  }
}

TEST(Acceptor, BothSidesSayThatOneOfThemWantsTls) {
  const ConnectionKeys clear = keys_of();
  const ConnectionKeys tls = tls_keys_of();
  for (const bool rank0_wants_it : {false, true}) {
    Rank0 rank0({.tls = rank0_wants_it});
    const auto refused = rank0.call(2, 300, rank0_wants_it ? &clear : &tls);
    ASSERT_FALSE(refused.ok());
    for (const std::string& text : {refused.error().text, rank0.reason()}) {
      EXPECT_NE(text.find(kTlsForAllOrNone), std::string::npos) << text;
    }
  }
}

TEST(Acceptor, NamesARankThatComesTwice) {
  Rank0 rank0;
  auto first = rank0.call(2);
  ASSERT_TRUE(first.ok()) << first.error().text;
  EXPECT_FALSE(rank0.call(2, 200).ok());
  EXPECT_TRUE(rank0.call(3).ok());
  auto restarted = rank0.call(2, 5'000, nullptr, 2);
  EXPECT_TRUE(restarted.ok()) << "a newer incarnation is welcome";
  EXPECT_NE(rank0.reason().find("rank 2 came twice (127.0.0.1:"), std::string::npos)
      << rank0.reason();
}

class Crowded : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Acceptor, Crowded, ::testing::Bool(),
                         [](const auto& tls) { return tls.param ? "Tls" : "Clear"; });

TEST_P(Crowded, LetsAPeerInWhileManyStrangersHoldTheLine) {
  Rank0 rank0({.tls = GetParam()});
  std::vector<Stranger> crowd;
  for (std::size_t i = 0; i < Acceptor::kStrangersMax; ++i) {
    crowd.emplace_back(rank0.endpoint());
    if (i % 2 == 0) (void)crowd.back().say(bytes_of(GetParam() ? "\x16" : "\xc1"));
  }
  const SocketAddress address = resolve(rank0.endpoint()).value().front();
  std::vector<Result<Fd>> too_many;  // some are hung up on before they know that they got through
  for (std::size_t i = 0; i < 2 * Acceptor::kStrangersMax; ++i) {
    too_many.push_back(connect_tcp(address, in_ms(5'000)));
  }
  const std::uint64_t began = monotonic_ns();
  const auto peer = rank0.call(2);
  EXPECT_TRUE(peer.ok()) << peer.error().text;
  EXPECT_LT(monotonic_ns() - began, 1'000'000'000u);
  EXPECT_TRUE(rank0.proven().has_value());
  EXPECT_EQ(rank0.stop().unproven(), Acceptor::kStrangersMax - 1);
  EXPECT_FALSE(crowd.front().still_there()) << "the oldest had to go";
}

TEST(Acceptor, HearsOnlyWhoShowsTheCookieOnceTooManyCame) {
  Rank0 rank0;
  const SocketAddress address = resolve(rank0.endpoint()).value().front();
  for (std::uint64_t i = 0; i < 2 * Acceptor::kCallsAtOnce; ++i) {
    (void)connect_tcp(address, in_ms(5'000));
  }
  for (Rank rank = 2; rank < 8; ++rank) EXPECT_TRUE(rank0.call(rank).ok()) << "a little later";
}

// By the clock that it is told. Nobody has called before: what the kernel turned away would call
// once more when the guard is down.
TEST(Acceptor, HearsAllAgainWhenNoMoreCome) {
  Rank0 rank0;
  const SocketAddress address = resolve(rank0.endpoint()).value().front();
  Acceptor& acceptor = rank0.stop();
  const std::uint64_t later = in_ms(60'000);
  ASSERT_TRUE(acceptor.poll(later).ok());
  const auto call_at = [&](std::uint64_t time) {
    const std::uint64_t before = acceptor.turned_away();
    for ((void)connect_tcp(address, in_ms(5'000)); acceptor.turned_away() == before;) {
      ASSERT_TRUE(wait_readable(acceptor.fd(), in_ms(5'000)).value());
      ASSERT_TRUE(acceptor.poll(time).ok());
    }
  };
  for (std::uint64_t i = 0; i < Acceptor::kCallsAtOnce; ++i) call_at(later);
  const std::string after_all = acceptor.summary(later).value_or("");
  EXPECT_EQ(after_all.find("too many"), std::string::npos) << after_all;
  EXPECT_EQ(acceptor.next_deadline_ns(), std::nullopt);
  call_at(later);
  const std::uint64_t over = later + Acceptor::kGuardMs * 1'000'000;
  const std::string one_more = acceptor.summary(over).value_or("");
  EXPECT_NE(one_more.find(": too many callers came without the job's cookie; for 10 s this process "
                          "answers only callers that have it"),
            std::string::npos)
      << one_more;
  EXPECT_EQ(acceptor.next_deadline_ns(), over);
  // What its thread would do for them the kernel has done now.
  Stranger text(rank0.endpoint());
  Stranger other_job(rank0.endpoint());
  ASSERT_TRUE(text.say(bytes_of("GET / HTTP/1.1\r\n\r\n")));
  ASSERT_TRUE(other_job.say(cookie_of(keys_of(9), 0)));
  { Stranger hangs_up(rank0.endpoint()); }
  EXPECT_FALSE(wait_readable(acceptor.fd(), in_ms(100)).value());
  Stranger invited(rank0.endpoint());
  ASSERT_TRUE(invited.say(cookie_of(rank0.keys(), 0)));
  EXPECT_TRUE(wait_readable(acceptor.fd(), in_ms(5'000)).value());
  ASSERT_TRUE(acceptor.poll(over - 1).ok());
  EXPECT_EQ(acceptor.unproven(), 1u);
  ASSERT_TRUE(acceptor.poll(over).ok());
  call_at(over);
}

// Calls without end, `per_second`, from the address that the ranks have: some hang up, some say
// something, and up to `held` stay.
class Flood {
 public:
  Flood(const Endpoint& endpoint, std::uint64_t per_second, std::size_t held)
      : to_(resolve(endpoint).value().front()), per_second_(per_second), held_(held) {
    thread_ = std::thread([this] { run(); });
  }
  // Ends it; how many calls there were.
  std::uint64_t stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    return calls_;
  }
  ~Flood() { stop(); }

 private:
  void run() {
    std::vector<Fd> calls(held_);
    for (const std::uint64_t began = monotonic_ns(); !over_;) {
      const std::uint64_t due = (monotonic_ns() - began) * per_second_ / 1'000'000'000;
      for (; calls_ < due && !over_; ++calls_) {
        Fd& place = calls[calls_ % held_];
        if (place.valid()) turn_away(std::move(place));
        place = Fd(::socket(to_.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        (void)::connect(place.get(), to_.get(), to_.length);
        if (calls_ % 2 == 0) (void)send_some(place.get(), bytes_of("sixteen bytes!!! and more"));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }

  const SocketAddress to_;
  const std::uint64_t per_second_;
  const std::size_t held_;
  std::uint64_t calls_ = 0;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

class Flooded : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Acceptor, Flooded, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& host) {
                           return std::string(host.param[0] == ':' ? "Ipv6" : "Ipv4");
                         });

// In a job's start, and while it makes links.
TEST_P(Flooded, LetsRanksInWhateverStrangersOfTheirAddressDo) {
  Rank0 rank0({.host = GetParam()});
  Flood flood(rank0.endpoint(), 20'000, 800);
  const std::uint64_t began = monotonic_ns();
  std::uint64_t longest_ns = 0;
  for (Incarnation incarnation = 1; monotonic_ns() < began + 3'000'000'000; ++incarnation) {
    for (Rank rank = 1; rank < 8; ++rank) {
      const std::uint64_t called_ns = monotonic_ns();
      const auto proven = rank0.call(rank, 2'000, nullptr, incarnation);
      ASSERT_TRUE(proven.ok()) << proven.error().text;
      longest_ns = std::max(longest_ns, monotonic_ns() - called_ns);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const double elapsed_ns = static_cast<double>(monotonic_ns() - began);
  const double core = static_cast<double>(rank0.cpu_ns()) / elapsed_ns;
  const std::uint64_t calls = flood.stop();
  std::printf("%.0f calls a second; the longest start %.1f ms; %.1f %% of a core\n",
              static_cast<double>(calls) * 1e9 / elapsed_ns, static_cast<double>(longest_ns) / 1e6,
              100 * core);
  EXPECT_LT(core, testing::kUnderTsan ? 0.5 : 0.1);
  EXPECT_GT(calls, 2 * Acceptor::kCallsAtOnce) << "a flood, also from a busy machine";
  EXPECT_LT(rank0.stop().turned_away(), 6'000u) << "the kernel turns them away";
}

TEST(Acceptor, TellsAProvenRankThatItIsOfAnotherVersion) {
  Rank0 rank0;
  const Endpoint candidates[] = {rank0.endpoint()};
  const Hello hello{.versions = {.min = 3, .max = 4}, .from = 2, .to = 0};
  const std::uint64_t began = monotonic_ns();
  const auto refused = connect_authenticated(rank0.keys(), hello, candidates, in_ms(10'000));
  EXPECT_LT(monotonic_ns() - began, 2'000'000'000u) << "it does not try again";
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().text,
            "rank 0 speaks protocol 2, this side 3 to 4; install the same ciranda on every host");
  EXPECT_NE(rank0.reason().find("rank 2 speaks protocol 3 to 4, this side 2 to 2; install"),
            std::string::npos)
      << rank0.reason();
}

TEST(Acceptor, WritesOneLineForManyCallersInTenSeconds) {
  Rank0 rank0;
  for (int i = 0; i < 20; ++i) {
    Stranger stranger(rank0.endpoint());
    (void)stranger.say(bytes_of("GET / "));
    (void)stranger.hears();
  }
  Acceptor& acceptor = rank0.stop();
  const std::uint64_t now = in_ms(60'000);
  const auto line = acceptor.summary(now);
  ASSERT_TRUE(line.has_value());
  EXPECT_TRUE(line->starts_with("turned away 20 callers; the last, 127.0.0.1:")) << *line;
  EXPECT_TRUE(line->ends_with(": the caller's first bytes are not ciranda's, they look like HTTP"))
      << *line;
  EXPECT_FALSE(acceptor.summary(now).has_value()) << "nothing new";
  Stranger late(rank0.endpoint());
  (void)late.say(bytes_of("GET / "));
  while (acceptor.turned_away() == 20) {
    ASSERT_TRUE(wait_readable(acceptor.fd(), in_ms(5'000)).value());
    ASSERT_TRUE(acceptor.poll(now).ok());
  }
  EXPECT_FALSE(acceptor.summary(now + 9'999'000'000).has_value()) << "too early";
  EXPECT_TRUE(acceptor.summary(now + 10'000'000'000).has_value());
}

TEST(Acceptor, TakesCallsOverIpv6AndOverBothFamiliesAtOnce) {
  Rank0 rank0({.host = "::1"});
  EXPECT_TRUE(rank0.call(2).ok());

  const ConnectionKeys keys = keys_of();
  std::vector<Fd> listeners;
  std::vector<Endpoint> endpoints;
  for (const char* host : {"127.0.0.1", "::1"}) {
    listeners.push_back(listen_tcp(host).value());
    endpoints.push_back(local_address(listeners.back().get()).value().endpoint());
  }
  auto acceptor =
      Acceptor::create(std::move(listeners), keys, {.self = 0, .incarnation = 1, .ranks = 8});
  for (std::size_t i = 0; i < 2; ++i) {
    std::thread client([&] {
      const Hello hello{.from = static_cast<Rank>(i + 1), .to = 0};
      EXPECT_TRUE(
          connect_authenticated(keys, hello, std::span(endpoints).subspan(i, 1), in_ms(5'000))
              .ok());
    });
    std::size_t proven = 0;
    const std::uint64_t deadline = in_ms(5'000);
    while (proven == 0 && monotonic_ns() < deadline) {
      (void)wait_readable(acceptor.value().fd(), in_ms(50));
      proven += acceptor.value().poll(monotonic_ns()).value().size();
    }
    client.join();
    EXPECT_EQ(proven, 1u) << to_string(endpoints[i]);
  }
}

TEST(Acceptor, SurvivesWithoutFileDescriptors) {
  Rank0 rank0;
  // Its thread runs: while one starts, UBSan looks at memory through a pipe of its own.
  ASSERT_TRUE(rank0.call(1).ok());
  const auto address = resolve(rank0.endpoint()).value().front();
  const Fd call(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const Fd lowest_free(::dup(0));
  const rlimit none_left{.rlim_cur = static_cast<rlim_t>(lowest_free.get()),
                         .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none_left), 0);
  const bool in_time = ::connect(call.get(), address.get(), address.length) == 0;
  EXPECT_TRUE(in_time || errno == ECONNRESET) << "it may be turned away before connect() returns";
  EXPECT_TRUE(wait_readable(call.get(), in_ms(5'000)).value()) << "it is turned away";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(rank0.call(2).ok());
  EXPECT_NE(rank0.reason().find("no file descriptor left"), std::string::npos) << rank0.reason();
  EXPECT_EQ(rank0.stop().turned_away(), 1u);
}

TEST(Acceptor, TakesNoCallsInAForkedChild) {
  Rank0 rank0;
  Acceptor& acceptor = rank0.stop();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto polled = acceptor.poll(monotonic_ns());
    ::_exit(!polled.ok() && polled.error().code == ErrorCode::kForked ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace ciranda
