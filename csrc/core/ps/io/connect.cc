#include "core/ps/io/connect.h"

#include <poll.h>

#include <algorithm>
#include <list>
#include <numeric>
#include <span>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/base/descriptors.h"
#include "core/ps/io/server.h"
#include "core/transport/dial/dialer.h"
#include "core/transport/join/origin.h"
#include "core/transport/local/job_folder.h"

namespace ciranda::ps {
namespace {

using Links = std::vector<std::unique_ptr<ServerLink>>;

std::string words_of(int server) {
  return "server " + std::to_string(server);
}

// One wait for servers, and the notice that reports it.
struct Patience {
  WaitNotice& notice;
  const std::uint64_t begun_ns = monotonic_ns();

  std::uint64_t due_ns() const { return notice.due_ns(begun_ns); }
  void say(const std::string& whom) {
    notice.say(begun_ns, monotonic_ns(), whom + ", which cannot be reached yet");
  }
};

std::string words_of(const std::list<Dialer>& dialers) {
  std::string words;
  for (const Dialer& dialer : dialers) words += (words.empty() ? "" : ", ") + words_of(dialer.to());
  return words;
}

// Waits for news of any dialer, until the earliest deadline.
Status wait_for_news(const std::list<Dialer>& dialers, std::uint64_t deadline_ns) {
  std::vector<pollfd> polled;
  for (const Dialer& dialer : dialers) {
    polled.push_back(poll_for(dialer.watched()));
    deadline_ns = std::min(deadline_ns, dialer.next_deadline_ns());
  }
  const int ready = ::poll(polled.data(), polled.size(), poll_timeout_ms(deadline_ns));
  return ready < 0 && errno != EINTR ? Status(Error::from_errno("poll", errno)) : Status();
}

// Dials those of `servers` that are on other hosts, all at the same time.
Status dial_all(const ServersAddress& address, std::span<const int> servers,
                const WorkerMemory& memory, std::uint64_t deadline_ns, Patience& patience,
                Links& links) {
  std::list<Dialer> dialers;
  for (const int server : servers) {
    const auto& endpoint = address.servers[static_cast<std::size_t>(server)];
    if (!endpoint) continue;
    CIRANDA_ASSERT(address.keys);
    const Hello hello{.purpose = Purpose::kService,
                      .from = address.worker,
                      .to = server,
                      .incarnation = address.life};
    dialers.emplace_back(*address.keys, hello, std::vector{*endpoint}, deadline_ns);
  }
  while (!dialers.empty()) {
    for (auto next = dialers.begin(); next != dialers.end();) {
      auto proven = next->advance(monotonic_ns());
      if (!proven) return proven.error();
      const auto dialer = next++;
      if (!proven.value()) continue;
      (void)pace_when_far(proven.value()->stream.fd());
      links[static_cast<std::size_t>(dialer->to())] = make_link_elsewhere(
          std::move(*proven.value()), dialer->to(), address.authenticates, memory);
      dialers.erase(dialer);
    }
    if (dialers.empty()) break;
    CIRANDA_TRY(wait_for_news(dialers, patience.due_ns()));
    if (monotonic_ns() >= patience.due_ns()) patience.say(words_of(dialers));
  }
  return {};
}

Result<Fd> dial_here(const ServersAddress& address, int server, std::uint64_t deadline_ns,
                     Patience& patience) {
  for (;;) {
    const std::uint64_t until_ns = std::min(deadline_ns, patience.due_ns());
    auto socket = connect_in_job_folder(folder_of_server(address.folder, server), until_ns,
                                        address.timeout_ms, words_of(server));
    if (socket || socket.error().code != ErrorCode::kTimeout || until_ns == deadline_ns) {
      return socket;
    }
    patience.say(words_of(server));
  }
}

Result<Links> connect(const ServersAddress& address, std::span<const int> servers,
                      const WorkerMemory& memory, std::uint64_t deadline_ns, WaitNotice& notice) {
  Links links(address.servers.size());
  Patience patience{.notice = notice};
  for (const int server : servers) {
    const auto at = static_cast<std::size_t>(server);
    if (address.servers[at]) continue;
    auto socket = dial_here(address, server, deadline_ns, patience);
    if (!socket) return socket.error();
    links[at] = make_link_here(std::move(socket).value(), server, memory);
  }
  CIRANDA_TRY(dial_all(address, servers, memory, deadline_ns, patience, links));
  return links;
}

}  // namespace

Result<std::unique_ptr<ServerLink>> connect_to_server(const ServersAddress& address, int server,
                                                      const WorkerMemory& memory,
                                                      std::uint64_t deadline_ns) {
  WaitNotice nobody("", kNever / 4);  // never due: the caller has reported that it reconnects
  auto links = connect(address, {&server, 1}, memory, deadline_ns, nobody);
  if (!links) return links.error();
  CIRANDA_ASSERT(links.value()[static_cast<std::size_t>(server)] != nullptr);
  return std::move(links.value()[static_cast<std::size_t>(server)]);
}

Result<Links> connect_to_servers(const ServersAddress& address, const WorkerMemory& memory,
                                 WaitNotice& notice) {
  open_standard_descriptors();
  std::vector<int> all(address.servers.size());
  std::iota(all.begin(), all.end(), 0);
  return connect(address, all, memory, monotonic_ns() + address.timeout_ms * kMsInNs, notice);
}

Origin origin_of_worker(const Config& config) {
  if (!config.servers_by_hand) return {};
  Origin origin{.job = config.origin_job};
  if (!config.prove_origin || config.coordinates) return origin;  // anyone may start a coordinator
  const OriginDigests digests = origin_of_this_process(config.rank_variable);
  if (digests.host == 0) return origin;
  // Two nodes that torchrun starts on one host have two starters but are one job: let them count as
  // two hosts.
  origin.host = digests.host + static_cast<std::uint64_t>(config.rank_info.cross_rank);
  origin.process = digests.process;
  origin.starter = digests.starter;
  return origin;
}

}  // namespace ciranda::ps
