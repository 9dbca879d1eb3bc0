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
  std::vector<std::byte> bytes = {};  // 4 or 16, as they travel
  bool operator==(const HostAddress&) const = default;
};

// The addresses of all interfaces that are up, in the kernel's order.
Result<std::vector<HostAddress>> list_host_addresses();

// The addresses at which other hosts may find this one, the best first. A pure function.
//
// `wanted` are patterns with commas between them: the name of an interface ("eth0"; "eth*" for all
// that begin so), an address or a network ("10.0.0.0/8", "2001:db8::/32"), or one of these behind
// "!", which excludes. Without a pattern that includes, all are candidates. Never among them:
// loopback addresses and IPv6 link-local ones, which mean another host elsewhere. Last come bridges
// of containers and virtual machines, whose addresses many hosts share.
//
// kInvalidArgument names the pattern that cannot be read or, when nothing is left, what there was.
Result<std::vector<HostAddress>> choose_addresses(std::span<const HostAddress> all,
                                                  std::string_view wanted);

}  // namespace ciranda
