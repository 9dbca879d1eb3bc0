#pragma once

#include "core/transport/join/remote_mesh.h"

namespace ciranda {

// As join_remote(), for an elastic job, whose arbiter may name other ranks meanwhile: returns
// kShutdown as soon as the descriptor `interrupt` is readable (-1: never).
Result<RemoteMesh> join_remote_unless(int interrupt, RemoteJoin join, const LocalMesh& local,
                                      const Secret& key);

}  // namespace ciranda
