#include "core/service/connect.h"

#include <poll.h>

#include <algorithm>
#include <list>
#include <numeric>
#include <span>
#include <utility>

#include "core/base/clock.h"
#include "core/service/server.h"
#include "core/transport/call.h"
#include "core/transport/job_folder.h"

namespace ciranda::ps {
namespace {

constexpr std::uint64_t kMsInNs = 1'000'000;

using Links = std::vector<std::unique_ptr<ServerLink>>;

// For news of any call, or for the first deadline.
Status wait_for_news(const std::list<Call>& calls) {
  std::vector<pollfd> polled;
  std::uint64_t deadline_ns = kNever;
  for (const Call& call : calls) {
    polled.push_back(poll_for(call.watched()));
    deadline_ns = std::min(deadline_ns, call.next_deadline_ns());
  }
  const int ready = ::poll(polled.data(), polled.size(), poll_timeout_ms(deadline_ns));
  return ready < 0 && errno != EINTR ? Status(Error::from_errno("poll", errno)) : Status();
}

// Those of `servers` that are on other hosts.
Status call_all(const ServersAddress& address, std::span<const int> servers,
                const WorkerMemory& memory, std::uint64_t deadline_ns, Links& links) {
  std::list<Call> calls;
  for (const int server : servers) {
    const auto& endpoint = address.servers[static_cast<std::size_t>(server)];
    if (!endpoint) continue;
    const Hello hello{.purpose = Purpose::kService,
                      .from = address.worker,
                      .to = server,
                      .incarnation = address.life};
    calls.emplace_back(*address.keys, hello, std::vector{*endpoint}, deadline_ns);
  }
  while (!calls.empty()) {
    for (auto next = calls.begin(); next != calls.end();) {
      auto proven = next->advance(monotonic_ns());
      if (!proven) return proven.error();
      const auto call = next++;
      if (!proven.value()) continue;
      (void)pace_when_far(proven.value()->stream.fd());
      links[static_cast<std::size_t>(call->to())] = make_link_elsewhere(
          std::move(*proven.value()), call->to(), address.authenticates, memory);
      calls.erase(call);
    }
    if (!calls.empty()) CIRANDA_TRY(wait_for_news(calls));
  }
  return {};
}

Result<Links> connect(const ServersAddress& address, std::span<const int> servers,
                      const WorkerMemory& memory, std::uint64_t deadline_ns) {
  Links links(address.servers.size());
  for (const int server : servers) {
    const auto at = static_cast<std::size_t>(server);
    if (address.servers[at]) continue;
    auto socket = connect_in_job_folder(folder_of_server(address.folder, server), deadline_ns,
                                        address.timeout_ms, "server " + std::to_string(server));
    if (!socket) return socket.error();
    links[at] = make_link_here(std::move(socket).value(), server, memory);
  }
  CIRANDA_TRY(call_all(address, servers, memory, deadline_ns, links));
  return links;
}

}  // namespace

Result<std::unique_ptr<ServerLink>> connect_to_server(const ServersAddress& address, int server,
                                                      const WorkerMemory& memory,
                                                      std::uint64_t deadline_ns) {
  auto links = connect(address, {&server, 1}, memory, deadline_ns);
  if (!links) return links.error();
  return std::move(links.value()[static_cast<std::size_t>(server)]);
}

Result<Links> connect_to_servers(const ServersAddress& address, const WorkerMemory& memory) {
  std::vector<int> all(address.servers.size());
  std::iota(all.begin(), all.end(), 0);
  return connect(address, all, memory, monotonic_ns() + address.timeout_ms * kMsInNs);
}

}  // namespace ciranda::ps
