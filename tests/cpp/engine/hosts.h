#pragma once

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/world.h"
#include "transport/join/meeting.h"

namespace ciranda::testing {

// Several hosts in this process: each has its ranks as threads over loopback memory, and the ranks
// are connected by TCP on 127.0.0.1.
inline World several_hosts(const std::vector<int>& ranks_of_hosts, const EngineOptions& options,
                           bool tls = false) {
  Met meeting = met(ranks_of_hosts, options.ring.streams_max, 20'000, tls);
  std::vector<std::unique_ptr<Engine>> engines;
  for (std::size_t rank = 0; rank < meeting.locals.size(); ++rank) {
    auto engine =
        Engine::start(std::move(meeting.locals[rank]), std::move(meeting.remotes[rank]), options);
    EXPECT_TRUE(engine.ok());
    engines.push_back(std::move(engine).value());
  }
  return World(std::move(engines));
}

}  // namespace ciranda::testing
