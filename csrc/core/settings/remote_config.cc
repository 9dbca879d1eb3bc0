#include "core/settings/remote_config.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr PortRange kRendezvousPorts = {20'000, 29'999};  // below the ports that kernels hand out

// Returns the first name of a list: "gpu03" for "gpu[03-05,7],node1".
std::string first_host(std::string_view list) {
  std::string name;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      name += list.front();
      list.remove_prefix(1);
      continue;
    }
    name += list.substr(1, list.find_first_of("-,]") - 1);
    list.remove_prefix(std::min(list.find(']'), list.size() - 1) + 1);
  }
  return name;
}

bool parse_ports(std::string_view text, PortRange& ports) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return false;
  const auto number = [](std::string_view digits, std::uint16_t& value) {
    const auto [rest, problem] = std::from_chars(digits.begin(), digits.end(), value);
    return problem == std::errc{} && rest == digits.end() && value > 0;
  };
  return number(text.substr(0, dash), ports.first) && number(text.substr(dash + 1), ports.last) &&
         ports.first <= ports.last;
}

// Returns a port that is the same on all hosts, and hardly ever the same for two jobs.
std::uint16_t port_of_job(const std::string& job_id, PortRange ports) {
  CIRANDA_ASSERT(ports.first > 0 && ports.first <= ports.last);
  std::uint32_t hash = 2'166'136'261;  // FNV-1a
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 16'777'619;
  return static_cast<std::uint16_t>(ports.first + hash % (ports.last - ports.first + 1u));
}

// Reads where rank 0 listens. It is CIRANDA_RENDEZVOUS, or a host that all ranks know with a port
// that every rank derives alike.
Status read_rendezvous(const Environment& env, const Starter& starter, const std::string& job_id,
                       RemoteConfig& remote) {
  if (const char* told = env.text("CIRANDA_RENDEZVOUS")) {
    if (parse_endpoint(told, remote.rendezvous)) return {};
    return bad_value("CIRANDA_RENDEZVOUS", told, "host:port, with an IPv6 address in []");
  }
  if (const char* master = env.text("MASTER_ADDR")) {
    remote.rendezvous.host = master;
  } else if (const char* hosts = env.text(starter.hosts)) {
    remote.rendezvous.host = first_host(hosts);
  } else {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = std::string(starter.name) +
                         " started ranks on several hosts, which meet at rank 0; set MASTER_ADDR "
                         "to an address of rank 0's host, or CIRANDA_RENDEZVOUS to host:port"};
  }
  const bool any = remote.ports.first == 0;
  remote.rendezvous.port = port_of_job(job_id, any ? kRendezvousPorts : remote.ports);
  return {};
}

}  // namespace

bool parse_endpoint(std::string_view text, Endpoint& endpoint) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && host.find(':') != std::string_view::npos) return false;
  const std::string_view port = text.substr(colon + 1);
  const auto [rest, problem] = std::from_chars(port.begin(), port.end(), endpoint.port);
  endpoint.host = host;
  return problem == std::errc{} && rest == port.end() && endpoint.port > 0;
}

Status read_keys(const Environment& env, const std::string& who, RemoteConfig& remote) {
  CIRANDA_TRY(env.integer("CIRANDA_KEY_FD", 0, 1 << 20, remote.key_fd));
  if (const char* file = env.text("CIRANDA_KEY_FILE")) remote.key_file = file;
  if (remote.key_fd < 0 && remote.key_file.empty()) {
    return Error{
        .code = ErrorCode::kInvalidArgument,
        .text =
            who +
            " need the job's key: make a key with `ciranda key FILE`, copy FILE to every host, and "
            "set CIRANDA_KEY_FILE=FILE for all ranks; or start the ranks with `ciranda run`"};
  }
  int tls = 0;
  CIRANDA_TRY(env.integer("CIRANDA_TLS", 0, 1, tls));
  remote.tls = tls == 1;
  return {};
}

Status read_remote(const Environment& env, const Starter& starter, const std::string& job_id,
                   RemoteConfig& remote) {
  CIRANDA_TRY(env.integer("CIRANDA_RENDEZVOUS_FD", 0, 1 << 20, remote.listener_fd));
  CIRANDA_TRY(read_keys(env, "ranks on several hosts", remote));
  if (const char* nic = env.text("CIRANDA_NIC")) remote.nic = nic;
  if (const char* ports = env.text("CIRANDA_PORT_RANGE")) {
    if (!parse_ports(ports, remote.ports)) {
      return bad_value("CIRANDA_PORT_RANGE", ports, "two ports, such as 20000-20099");
    }
  }
  return read_rendezvous(env, starter, job_id, remote);
}

}  // namespace ciranda
