#include "core/transport/tcp/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>

#include "core/base/assert.h"

namespace ciranda {
namespace {

struct Network {
  std::vector<std::byte> bytes;
  std::size_t bits = 0;  // length of the common prefix
};

struct Pattern {
  bool excludes = false;
  std::string_view interface;  // may end with '*'; used if there is no network
  std::optional<Network> network;
};

std::optional<std::vector<std::byte>> parse_address(const std::string& text) {
  for (const auto& [family, size] : {std::pair(AF_INET, 4), std::pair(AF_INET6, 16)}) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    if (::inet_pton(family, text.c_str(), bytes.data()) == 1) return bytes;
  }
  return std::nullopt;
}

// Returns nullopt for text that does not look like a network, an Error for a malformed network.
Result<std::optional<Network>> parse_network(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto bytes = parse_address(std::string(text.substr(0, slash)));
  if (!bytes.has_value()) {
    if (slash == std::string_view::npos && text.find(':') == std::string_view::npos) {
      return std::optional<Network>();
    }
  } else {
    const std::size_t most = 8 * bytes->size();
    std::size_t bits = most;
    if (slash == std::string_view::npos) return std::optional(Network{*bytes, bits});
    const std::string_view digits = text.substr(slash + 1);
    const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (fault == std::errc() && end == digits.data() + digits.size() && bits <= most) {
      return std::optional(Network{*bytes, bits});
    }
  }
  return Error{.code = ErrorCode::kInvalidArgument,
               .text = "'" + std::string(text) +
                       "' is not a network; write for example 10.0.0.0/8 or 2001:db8::/32"};
}

Result<Pattern> parse_pattern(std::string_view text) {
  Pattern pattern;
  pattern.excludes = text.starts_with('!');
  if (pattern.excludes) text.remove_prefix(1);
  auto network = parse_network(text);
  if (!network) return network.error();
  pattern.network = std::move(network).value();
  pattern.interface = text;
  if (text.empty() || text.starts_with('!') || text.starts_with('*')) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = "'" + std::string(text) +
                         "' is neither an interface nor a network; write for example "
                         "eth0,10.0.0.0/8,!docker0"};
  }
  return pattern;
}

Result<std::vector<Pattern>> parse_patterns(std::string_view wanted) {
  std::vector<Pattern> patterns;
  while (!wanted.empty()) {
    const std::size_t comma = std::min(wanted.find(','), wanted.size());
    auto pattern = parse_pattern(wanted.substr(0, comma));
    if (!pattern) return pattern.error();
    patterns.push_back(std::move(pattern).value());
    wanted.remove_prefix(std::min(comma + 1, wanted.size()));
  }
  return patterns;
}

bool is_in(std::span<const std::byte> address, const Network& network) {
  CIRANDA_ASSERT(network.bits <= 8 * network.bytes.size());  // by parse_network()
  if (address.size() != network.bytes.size()) return false;
  for (std::size_t bit = 0; bit < network.bits; ++bit) {
    const auto mask = static_cast<std::byte>(0x80 >> bit % 8);
    if (((address[bit / 8] ^ network.bytes[bit / 8]) & mask) != std::byte{0}) return false;
  }
  return true;
}

bool fits(const HostAddress& address, const Pattern& pattern) {
  if (pattern.network.has_value()) return is_in(address.bytes, *pattern.network);
  std::string_view name = pattern.interface;
  if (!name.ends_with('*')) return address.interface == name;
  name.remove_suffix(1);
  return address.interface.starts_with(name);
}

// Returns true for a loopback or IPv6 link-local address, with which another host cannot reach us.
bool stays_at_home(const HostAddress& address) {
  CIRANDA_ASSERT(address.bytes.size() == 4 || address.bytes.size() == 16);
  const auto begins = [&](std::initializer_list<int> first, std::size_t bits) {
    Network network{.bytes = std::vector<std::byte>(address.bytes.size()), .bits = bits};
    std::ranges::transform(first, network.bytes.begin(),
                           [](int byte) { return static_cast<std::byte>(byte); });
    return is_in(address.bytes, network);
  };
  if (address.bytes.size() == 4) return begins({127}, 8);
  if (begins({0xfe, 0x80}, 10)) return true;
  const bool is_one = address.bytes.back() == std::byte{1};
  return is_one && begins({}, 120);  // ::1
}

bool is_bridge_of_guests(const HostAddress& address) {
  constexpr std::string_view kFirst[] = {"docker", "br-",   "virbr",  "veth", "cni",
                                         "lxcbr",  "lxdbr", "podman", "vmnet"};
  return std::ranges::any_of(
      kFirst, [&](std::string_view first) { return address.interface.starts_with(first); });
}

Error nothing_left(std::span<const HostAddress> all, std::string_view wanted) {
  std::string there;
  for (const HostAddress& each : all) {
    there += (there.empty() ? "" : ", ") + each.interface + " " + each.address;
  }
  return {.code = ErrorCode::kInvalidArgument,
          .text = (wanted.empty() ? "this host has no address that other hosts can reach"
                                  : "no address of this host that others can reach fits '" +
                                        std::string(wanted) + "'") +
                  "; it has " + (there.empty() ? "none" : there)};
}

}  // namespace

Result<std::vector<HostAddress>> list_host_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return Error::from_errno("cannot list the interfaces", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<HostAddress> found;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const void* raw = nullptr;
    std::size_t size = 0;
    if (each->ifa_addr->sa_family == AF_INET) {
      raw = &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
      size = sizeof(in_addr);
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      raw = &reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr;
      size = sizeof(in6_addr);
    } else {
      continue;
    }
    char text[INET6_ADDRSTRLEN] = "";
    ::inet_ntop(each->ifa_addr->sa_family, raw, text, sizeof text);
    const auto* begin = static_cast<const std::byte*>(raw);
    found.push_back({.interface = each->ifa_name, .address = text, .bytes = {begin, begin + size}});
  }
  return found;
}

Result<std::vector<HostAddress>> choose_addresses(std::span<const HostAddress> all,
                                                  std::string_view wanted) {
  auto patterns = parse_patterns(wanted);
  if (!patterns) return patterns.error();
  const auto any = [&](const HostAddress& address, bool excludes) {
    return std::ranges::any_of(patterns.value(), [&](const Pattern& pattern) {
      return pattern.excludes == excludes && fits(address, pattern);
    });
  };
  const bool takes_all = std::ranges::all_of(
      patterns.value(), [](const Pattern& pattern) { return pattern.excludes; });
  std::vector<HostAddress> chosen;
  std::ranges::copy_if(all, std::back_inserter(chosen), [&](const HostAddress& address) {
    return !stays_at_home(address) && (takes_all || any(address, false)) && !any(address, true);
  });
  if (chosen.empty()) return nothing_left(all, wanted);
  std::stable_partition(chosen.begin(), chosen.end(),
                        [](const HostAddress& address) { return !is_bridge_of_guests(address); });
  return chosen;
}

}  // namespace ciranda
