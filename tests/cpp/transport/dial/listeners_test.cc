// What could break: addresses told to other hosts at which nobody listens.
#include "core/transport/dial/listeners.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

TEST(Listeners, ARankIsCalledWhereItListens) {
  const auto listeners = listen_at_addresses({"127.0.0.1"}, "", {});
  ASSERT_TRUE(listeners.ok());
  ASSERT_EQ(listeners.value().addresses.size(), 1u);
  const auto address = local_address(listeners.value().sockets.front().get());
  EXPECT_EQ(listeners.value().addresses.front().host, "127.0.0.1");
  EXPECT_EQ(listeners.value().addresses.front().port, address.value().endpoint().port);
}

TEST(Listeners, AnAddressThatIsNotOursIsLeftOut) {
  const auto listeners = listen_at_addresses({"192.0.2.1", "127.0.0.1"}, "", {});
  ASSERT_TRUE(listeners.ok());
  ASSERT_EQ(listeners.value().addresses.size(), 1u);
  EXPECT_EQ(listeners.value().addresses.front().host, "127.0.0.1");
  EXPECT_FALSE(listen_at_addresses({"192.0.2.1"}, "", {}).ok());
}

TEST(Listeners, NoMoreAddressesThanOthersAreTold) {
  const std::vector<std::string> many(kAddressesMax + 1, "127.0.0.1");
  EXPECT_EQ(listen_at_addresses(many, "", {}).value().addresses.size(), kAddressesMax);
}

TEST(Listeners, Rank0TakesWhatTheStarterOpened) {
  Fd inherited = std::move(listen_tcp("127.0.0.1")).value();
  const Endpoint endpoint = local_address(inherited.get()).value().endpoint();
  const auto listeners = listen_at_rendezvous({}, std::move(inherited), "");
  ASSERT_TRUE(listeners.ok());
  EXPECT_EQ(listeners.value().addresses.front().port, endpoint.port);
}

TEST(Listeners, ATakenRendezvousNamesTheWayOut) {
  const Fd other = std::move(listen_tcp("127.0.0.1")).value();
  const Endpoint taken = local_address(other.get()).value().endpoint();
  const auto listeners = listen_at_rendezvous(taken, {}, "");
  ASSERT_FALSE(listeners.ok());
  EXPECT_NE(listeners.error().text.find("CIRANDA_RENDEZVOUS=host:port"), std::string::npos);
}

}  // namespace
}  // namespace ciranda
