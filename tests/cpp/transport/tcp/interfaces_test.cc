// What could break: a host advertises an address at which others find nobody, or another host.
#include "core/transport/tcp/interfaces.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ciranda {
namespace {

HostAddress on(std::string interface, const std::string& address) {
  std::vector<std::byte> bytes(address.find(':') == std::string::npos ? 4 : 16);
  EXPECT_EQ(::inet_pton(bytes.size() == 4 ? AF_INET : AF_INET6, address.c_str(), bytes.data()), 1);
  return {.interface = std::move(interface), .address = address, .bytes = std::move(bytes)};
}

const std::vector<HostAddress>& host() {
  static const std::vector<HostAddress> kHost = {
      on("lo", "127.0.0.1"),   on("lo", "::1"),           on("docker0", "172.17.0.1"),
      on("eth0", "192.0.2.2"), on("eth0", "2001:db8::2"), on("eth0", "fe80::1"),
      on("eth1", "10.1.0.2"),  on("ib0", "10.2.0.2"),     on("virbr0", "192.168.122.1"),
      on("lo", "127.0.1.1")};
  return kHost;
}

std::string chosen(std::string_view wanted) {
  const auto addresses = choose_addresses(host(), wanted);
  if (!addresses.ok()) return addresses.error().text;
  std::string text;
  for (const HostAddress& each : addresses.value()) text += each.address + " ";
  return text;
}

TEST(ChooseAddresses, OffersAllThatOthersCanReachWithBridgesOfGuestsLast) {
  EXPECT_EQ(chosen(""), "192.0.2.2 2001:db8::2 10.1.0.2 10.2.0.2 172.17.0.1 192.168.122.1 ");
}

TEST(ChooseAddresses, FollowsNamesAndNetworks) {
  EXPECT_EQ(chosen("eth1"), "10.1.0.2 ");
  EXPECT_EQ(chosen("eth*"), "192.0.2.2 2001:db8::2 10.1.0.2 ");
  EXPECT_EQ(chosen("10.0.0.0/8"), "10.1.0.2 10.2.0.2 ");
  EXPECT_EQ(chosen("10.2.0.2"), "10.2.0.2 ");
  EXPECT_EQ(chosen("2001:db8::/33"), "2001:db8::2 ");
  EXPECT_EQ(chosen("::/0"), "2001:db8::2 ");
  EXPECT_EQ(chosen("ib0,192.0.2.0/24"), "192.0.2.2 10.2.0.2 ");
  EXPECT_EQ(chosen("docker0"), "172.17.0.1 ") << "who asks for it gets it";
}

TEST(ChooseAddresses, LeavesOutWhatIsExcluded) {
  EXPECT_EQ(chosen("!docker0,!virbr*,!2001:db8::/32"), "192.0.2.2 10.1.0.2 10.2.0.2 ");
  EXPECT_EQ(chosen("eth*,!10.0.0.0/8"), "192.0.2.2 2001:db8::2 ");
}

TEST(ChooseAddresses, NeverOffersLoopbackAndSaysWhatThereIs) {
  EXPECT_EQ(chosen("lo"),
            "no address of this host that others can reach fits 'lo'; it has lo 127.0.0.1, lo ::1, "
            "docker0 172.17.0.1, eth0 192.0.2.2, eth0 2001:db8::2, eth0 fe80::1, eth1 10.1.0.2, "
            "ib0 10.2.0.2, virbr0 192.168.122.1, lo 127.0.1.1");
  EXPECT_EQ(choose_addresses({}, "").error().text,
            "this host has no address that other hosts can reach; it has none");
}

TEST(ChooseAddresses, NamesAPatternThatCannotBeRead) {
  const std::string no_network =
      "' is not a network; write for example 10.0.0.0/8 or 2001:db8::/32";
  for (const std::string bad : {"10.0.0.0/33", "10.0.0.0/x", "10.0.0/8", "2001::zz", "10.0.0.0/"}) {
    EXPECT_EQ(chosen(bad), "'" + bad + no_network);
  }
  EXPECT_NE(chosen("eth0,,eth1").find("is neither an interface nor a network"), std::string::npos);
  EXPECT_NE(chosen("!").find("is neither an interface nor a network"), std::string::npos);
}

TEST(ListHostAddresses, KnowsTheLoopbackOfThisHost) {
  const auto addresses = list_host_addresses();
  ASSERT_TRUE(addresses.ok()) << addresses.error().text;
  EXPECT_TRUE(std::ranges::count(addresses.value(), on("lo", "127.0.0.1")));
}

}  // namespace
}  // namespace ciranda
