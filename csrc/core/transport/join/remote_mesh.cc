#include "core/transport/join/remote_mesh.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/base/descriptors.h"
#include "core/transport/dial/acceptor.h"
#include "core/transport/dial/connection_thread.h"
#include "core/transport/dial/listeners.h"
#include "core/transport/join/elastic_join.h"
#include "core/transport/join/host_speaker.h"
#include "core/transport/join/meeting.h"
#include "core/transport/tcp/interfaces.h"

namespace ciranda {
namespace {

// Descriptors for everything but data links: the program's files, local ranks, strangers.
constexpr std::size_t kOtherDescriptors = 1024;

// Rank 0 must be the first rank of host 0, because the other hosts call rank 0 and the first rank
// of host 0 makes the order of the log.
Status check_place(const Introduction& self) {
  if ((self.rank == 0) == (self.host == 0 && self.local_rank == 0)) return {};
  return Error{.code = ErrorCode::kInvalidArgument,
               .text = "rank " + std::to_string(self.rank) + " is local rank " +
                       std::to_string(self.local_rank) + " of host " + std::to_string(self.host) +
                       ", but rank 0 must be local rank 0 of host 0"};
}

// Listens, and puts the addresses into the introduction.
Result<Acceptor> open_acceptor(RemoteJoin& join, const ConnectionKeys& keys,
                               Incarnation incarnation) {
  const Rank self = join.self.rank;
  auto listeners = self == 0
                       ? listen_at_rendezvous(join.rendezvous, std::move(join.listener), join.nic)
                       : listen_at_addresses(std::move(join.addresses), join.nic, join.ports);
  if (!listeners) return listeners.error();
  join.self.addresses = std::move(listeners.value().addresses);
  return Acceptor::create(
      std::move(listeners.value().sockets), keys,
      {.self = self, .incarnation = incarnation, .ranks = join.self.size, .versions = {}});
}

SpeakerWait wait_of(const Meeting& meeting) {
  return {.deadline_ns = meeting.deadline_ns, .interrupt = meeting.interrupt};
}

// Called by the first rank of a host. Gathers the introductions of its ranks, meets the other
// hosts, and sends the result to its ranks.
Result<MetHosts> speak_for_host(const Meeting& meeting, const LocalMesh& local,
                                const Introduction& introduction, const Hello& self,
                                const ConnectionKeys& keys, Acceptor& acceptor) {
  const auto meet = [&]() -> Result<MetHosts> {
    auto host = gather_host(local, introduction, wait_of(meeting));
    if (!host) return host.error();
    if (introduction.rank == 0) return lead_meeting(meeting, acceptor, std::move(host).value());
    return follow_meeting(meeting, keys, self, std::move(host).value());
  };
  auto met = meet();
  if (met) {
    CIRANDA_TRY(tell_host(local, met.value().host_table));
  } else {
    refuse_host(local, met.error());
  }
  return met;
}

Result<MetHosts> hear_of_hosts(const Meeting& meeting, const LocalMesh& local,
                               const Introduction& introduction) {
  auto host_table = let_first_speak(local, introduction, wait_of(meeting));
  if (!host_table) return host_table.error();
  return MetHosts{.host_table = std::move(host_table).value(), .control = {}};
}

// Returns a sentence with the first address of each host. The hosts have met through these
// addresses, and later calls try them first.
std::string chosen_addresses(const HostTable& host_table, const std::string& own) {
  constexpr std::size_t kNamed = 8;
  std::string text = std::to_string(host_table.hosts.size()) + " hosts met";
  if (const auto all = list_host_addresses()) {
    const auto here = std::ranges::find(all.value(), own, &HostAddress::address);
    if (here != all.value().end()) text += " through " + here->interface;
  }
  text += ": host 0 at " + own;
  for (std::size_t host = 1; host < std::min(host_table.hosts.size(), kNamed); ++host) {
    const auto first = static_cast<std::size_t>(host_table.hosts[host].front());
    text +=
        ", host " + std::to_string(host) + " at " + host_table.ranks[first].addresses.front().host;
  }
  if (host_table.hosts.size() > kNamed) {
    text += " and " + std::to_string(host_table.hosts.size() - kNamed) + " more";
  }
  return text;
}

Result<DataLinks> open_links(RemoteJoin& join, const Hello& self, const HostTable& host_table,
                             std::unique_ptr<const ConnectionKeys> keys, Acceptor acceptor) {
  const auto streams = static_cast<std::size_t>(join.streams);
  const auto shortage =
      raise_descriptor_limit(host_table.ranks.size() * streams + kOtherDescriptors);
  if (shortage && join.warn) join.warn(*shortage);
  DataLinks::Directory directory{
      .self = self, .streams = join.streams, .timeout_ms = join.timeout_ms};
  directory.self.purpose = Purpose::kData;
  for (const Introduction& one : host_table.ranks) {
    std::vector<Endpoint>& endpoints = directory.ranks.emplace_back();
    for (const auto& address : one.addresses) endpoints.push_back({address.host, address.port});
  }
  auto connection_thread =
      ConnectionThread::start(std::move(keys), std::move(acceptor), std::move(join.warn));
  if (!connection_thread) return connection_thread.error();
  return DataLinks(std::move(directory), std::move(connection_thread).value());
}

}  // namespace

RemoteMesh RemoteMesh::one_host(Rank self, int size) {
  CIRANDA_ASSERT(self >= 0 && self < size);
  RemoteMesh mesh;
  mesh.self = self;
  mesh.ranks = size;
  mesh.hosts.emplace_back();
  for (Rank rank = 0; rank < size; ++rank) mesh.hosts.front().push_back(rank);
  return mesh;
}

Result<RemoteMesh> join_remote(RemoteJoin join, const LocalMesh& local, const Secret& key) {
  return join_remote_unless({}, std::move(join), local, key);
}

Result<RemoteMesh> join_remote_unless(ElasticJoin elastic, RemoteJoin join, const LocalMesh& local,
                                      const Secret& key) {
  CIRANDA_TRY(check_place(join.self));
  auto keys = ConnectionKeys::of_job(key, join.job_id, join.epoch, join.tls);
  if (!keys) return keys.error();
  // An incarnation must grow from one start of a rank to the next, on the same host.
  const Hello self{.from = join.self.rank, .to = kNoRank, .incarnation = monotonic_ns()};
  const Meeting meeting{.rendezvous = join.rendezvous,
                        .deadline_ns = monotonic_ns() + join.timeout_ms * kMsInNs,
                        .timeout_ms = join.timeout_ms,
                        .interrupt = elastic.interrupt,
                        .unanswered = std::move(elastic.unanswered)};
  auto acceptor = open_acceptor(join, *keys.value(), self.incarnation);
  if (!acceptor) return acceptor.error();
  auto met = local.self == 0
                 ? speak_for_host(meeting, local, join.self, self, *keys.value(), acceptor.value())
                 : hear_of_hosts(meeting, local, join.self);
  if (!met) return met.error();
  HostTable& host_table = met.value().host_table;
  CIRANDA_ASSERT(host_table.ranks.size() == static_cast<std::size_t>(join.self.size));
  CIRANDA_TRY(keys.value()->narrow_to(key, host_table.meeting));
  auto links =
      open_links(join, self, host_table, std::move(keys).value(), std::move(acceptor).value());
  if (!links) return links.error();
  if (self.from == 0 && join.epoch == 0 && join.tell) {
    join.tell(chosen_addresses(host_table, join.self.addresses.front().host));
  }
  const auto own = static_cast<std::size_t>(self.from);
  return RemoteMesh{.self = self.from,
                    .ranks = join.self.size,
                    .host = join.self.host,
                    .address = host_table.ranks[own].addresses.front().host,
                    .hosts = std::move(host_table.hosts),
                    .links = std::move(links).value(),
                    .control = std::move(met.value().control)};
}
}  // namespace ciranda
