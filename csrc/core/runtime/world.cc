#include "core/runtime/world.h"

#include <utility>

namespace ciranda {

Result<std::unique_ptr<World>> World::start(Config config) {
  auto mesh = join_unix({.folder = config.job_folder,
                         .job_id = config.job_id,
                         .rank = config.place.rank,
                         .size = config.place.size,
                         .timeout_ms = config.start_timeout_ms});
  if (!mesh) return mesh.error();
  auto engine = Engine::start(std::move(mesh).value(), config.engine);
  if (!engine) return engine.error();
  return std::unique_ptr<World>(
      new World(std::move(config), std::shared_ptr<Engine>(std::move(engine).value())));
}

}  // namespace ciranda
