#pragma once

#include <functional>

#include "core/transport/join/remote_mesh.h"

namespace ciranda {

// What the arbiter of an elastic job has to do with a meeting.
struct ElasticJoin {
  int interrupt = -1;  // it may name other ranks meanwhile: readable ends the meeting; -1: never
  // It may have to: called once if rank 0's host does not answer for Dialer::kUnansweredNs.
  std::function<void()> unanswered = {};
};

// As join_remote(). Returns kShutdown as soon as it is interrupted.
Result<RemoteMesh> join_remote_unless(ElasticJoin elastic, RemoteJoin join, const LocalMesh& local,
                                      const Secret& key);

}  // namespace ciranda
