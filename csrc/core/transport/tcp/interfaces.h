#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace ciranda {

// One address of one interface of this host.
struct HostAddress {
  std::string interface;              // "eth0"
  std::string address;                // "192.0.2.2", "2001:db8::2"
  std::vector<std::byte> bytes = {};  // 4 or 16, in network order
  bool operator==(const HostAddress&) const = default;
};

// Returns the addresses of all interfaces that are up, in the kernel's order.
Result<std::vector<HostAddress>> list_host_addresses();

// Returns the addresses at which other hosts may reach this one, the best first. A pure function.
//
// `wanted` is a list of patterns separated by commas. A pattern is the name of an interface
// ("eth0"), a prefix of such names ("eth*"), an address, or a network ("10.0.0.0/8",
// "2001:db8::/32"). A pattern after "!" excludes the addresses that match it. If no pattern
// includes any, all addresses are candidates. Loopback and IPv6 link-local addresses are never
// returned, because on another host they mean a different machine. Bridges of containers and
// virtual machines come last, because many hosts share their addresses.
//
// Returns kInvalidArgument for a malformed pattern, which it names. Returns it too if no address is
// left, and lists the addresses that the host has.
Result<std::vector<HostAddress>> choose_addresses(std::span<const HostAddress> all,
                                                  std::string_view wanted);

}  // namespace ciranda
