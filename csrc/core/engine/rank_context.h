#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/engine/engine_options.h"
#include "core/engine/run/group_directory.h"
#include "core/engine/run/segment_table.h"
#include "core/engine/submission_queue.h"
#include "core/negotiate/group_table.h"
#include "core/trace/timeline.h"
#include "core/transport/join/remote_mesh.h"
#include "core/transport/local/control_block.h"
#include "core/transport/local/local_mesh.h"
#include "core/transport/local/peer_bells.h"
#include "core/transport/tcp/socket_set.h"

namespace ciranda {

// The state that the parts of one rank's engine share. It is constant after construction or
// thread-safe, except `remote.links` and the arming of `sockets`, which belong to the thread that
// has the seat.
struct RankContext {
  RankContext(LocalMesh local, RemoteMesh others, EngineOptions how)
      : mesh(std::move(local)),
        remote(std::move(others)),
        options(std::move(how)),
        control(mesh.control.data(), mesh.size),
        bells(control, mesh),
        groups(GroupTable(remote.size(), remote.hosts).world()),
        segments(mesh),
        pace(options.pace),
        timeline(rank(), std::to_string(control.mark()), remote.host) {}

  Rank rank() const { return remote.self; }
  int size() const { return remote.size(); }
  const std::vector<Rank>& local_ranks() const { return remote.local_ranks(); }
  Rank global(int local) const { return local_ranks()[static_cast<std::size_t>(local)]; }
  int local_of(Rank rank) const {
    const std::vector<Rank>& all = local_ranks();
    return static_cast<int>(std::lower_bound(all.begin(), all.end(), rank) - all.begin());
  }
  // The members of `group` on this host.
  const std::vector<Rank>& members_here(const Group& group) const {
    return group.hosts[static_cast<std::size_t>(remote.host)];
  }
  // The local ranks of the members of `group` on this host, ascending.
  std::vector<Rank> locals_of(const Group& group) const {
    std::vector<Rank> locals;
    for (const Rank member : members_here(group)) locals.push_back(local_of(member));
    return locals;
  }
  bool one_host() const { return remote.hosts.size() == 1; }
  // Returns true if this rank carries the frames of its host to other hosts.
  bool first_of_several_hosts() const { return !one_host() && mesh.self == 0; }
  LocalMesh::Peer& peer(int local) {
    CIRANDA_ASSERT(local >= 0 && local < mesh.size);
    return mesh.peers[static_cast<std::size_t>(local)];
  }
  RankFlags& flags() const { return control.flags(mesh.self); }

  LocalMesh mesh;
  RemoteMesh remote;
  const EngineOptions options;
  const ControlBlock control;
  const PeerBells bells;
  GroupDirectory groups;
  SegmentTable segments;
  std::atomic<Pace> pace;
  static_assert(decltype(pace)::is_always_lock_free);
  Mutex pair_regions_mutex;
  // The regions that this rank provides.
  std::map<GroupId, ArenaBuffer> pair_regions GUARDED_BY(pair_regions_mutex);
  SubmissionQueue queue;
  SocketSet sockets;  // what the background thread sleeps on
  Timeline timeline;
  std::atomic<Rank> dying{-1};  // the local rank whose process has begun to end, if it is known

  struct Counters {
    std::atomic<std::uint64_t> waiting_ns{0}, communicating_ns{0}, operations{0}, bytes{0};
  } counters;
};

}  // namespace ciranda
