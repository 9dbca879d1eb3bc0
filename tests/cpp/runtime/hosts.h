#pragma once

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/world.h"
#include "transport/meeting.h"

namespace ciranda::testing {

// Several hosts in this process: each has its ranks as threads over loopback memory, and the ranks
// are connected by TCP on 127.0.0.1.
inline World several_hosts(const std::vector<int>& ranks_of_hosts, const EngineOptions& options) {
  std::vector<RemoteMesh> remotes = met(ranks_of_hosts, options.ring.grain.channels);
  std::vector<std::unique_ptr<Engine>> engines;
  for (const int ranks : ranks_of_hosts) {
    auto meshes = make_loopback(ranks);
    EXPECT_TRUE(meshes.ok());
    for (LocalMesh& mesh : meshes.value()) {
      auto engine = Engine::start(std::move(mesh), std::move(remotes[engines.size()]), options);
      EXPECT_TRUE(engine.ok());
      engines.push_back(std::move(engine).value());
    }
  }
  return World(std::move(engines));
}

}  // namespace ciranda::testing
