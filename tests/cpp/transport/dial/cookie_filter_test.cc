// What could break: the kernel lets in who should stay out, or keeps out who should come in.
#include "core/transport/dial/cookie_filter.h"

#include <gtest/gtest.h>

#include "core/base/clock.h"
#include "core/transport/tcp/socket_io.h"
#include "core/transport/tcp/tcp.h"
#include "wire/keys.h"

namespace ciranda {
namespace {

std::uint64_t ms_from_now(std::uint64_t ms) {
  return monotonic_ns() + ms * 1'000'000;
}

class CookieFilter : public ::testing::TestWithParam<const char*> {
 protected:
  CookieFilter() : listener_(listen_tcp(GetParam()).value()) {
    EXPECT_TRUE(let_in_only(listener_.get(), cookie_).ok());
  }

  // Who has said that, if anything.
  Fd caller(std::span<const std::byte> says) {
    Fd socket = connect_tcp(local_address(listener_.get()).value(), ms_from_now(5'000)).value();
    EXPECT_EQ(send_some(socket.get(), says).value(), says.size());
    return socket;
  }
  bool called(std::uint64_t wait_ms) {
    return wait_readable(listener_.get(), ms_from_now(wait_ms)).value();
  }

  const Cookie cookie_ = cookie_of(test::keys_of(), 0);
  const Fd listener_;
};
INSTANTIATE_TEST_SUITE_P(Families, CookieFilter, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& host) {
                           return std::string(host.param[0] == ':' ? "Ipv6" : "Ipv4");
                         });

TEST_P(CookieFilter, CompletesNoCallWithoutTheCookie) {
  std::vector<Fd> callers;
  callers.push_back(caller({}));
  callers.push_back(caller(std::span(cookie_).first(15)));
  for (std::size_t at = 0; at < cookie_.size(); ++at) {
    Cookie other = cookie_;
    other[at] ^= std::byte{1};
    callers.push_back(caller(other));
  }
  callers.front().reset();  // also its end is none
  EXPECT_FALSE(called(100));
  let_all_in(listener_.get());
  callers.push_back(caller({}));
  EXPECT_TRUE(called(5'000));
}

TEST_P(CookieFilter, CompletesACallWithItAndPassesWhatFollows) {
  std::vector<std::byte> hello(cookie_.begin(), cookie_.end());
  hello.resize(100, std::byte{7});
  const Fd client = caller(hello);
  ASSERT_TRUE(called(5'000));
  const Fd server(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  let_all_in(server.get());
  const auto hears = [&server] {
    std::vector<std::byte> buffer(200);
    EXPECT_TRUE(wait_readable(server.get(), ms_from_now(5'000)).value());
    buffer.resize(receive_some(server.get(), buffer).value());
    return buffer;
  };
  EXPECT_EQ(hears(), hello);
  const std::vector<std::byte> more(50, std::byte{8});
  ASSERT_TRUE(send_some(client.get(), more).ok());
  EXPECT_EQ(hears(), more);
}

}  // namespace
}  // namespace ciranda
