// What could break: a sentence that blames the wrong user.
#include "core/transport/tcp/users.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/transport/tcp/tcp.h"

namespace ciranda {
namespace {

TEST(Users, HaveANumberAndANameWhereThereIsOne) {
  EXPECT_EQ(name_of_user(0), "user 0 (root)");
  EXPECT_EQ(name_of_user(4'000'000'000), "user 4000000000");
}

TEST(Users, WhoListensIsFoundInBothFamilies) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    auto socket = listen_tcp(host);
    ASSERT_TRUE(socket.ok()) << socket.error().text;
    const std::uint16_t port = local_address(socket.value().get()).value().endpoint().port;
    EXPECT_EQ(who_listens_on(port), ::geteuid());
    socket.value().reset();
    EXPECT_EQ(who_listens_on(port), std::nullopt);
  }
}

}  // namespace
}  // namespace ciranda
