#pragma once

#include <cstdint>
#include <cstdlib>

namespace ciranda::sim {

// Which jobs to play: `count` seeds from `first` on, or the one and how many that the environment
// asks for (CIRANDA_SIM_SEED, CIRANDA_SIM_SCHEDULES).
struct Seeds {
  explicit Seeds(std::uint64_t usual_count)
      : first(from_environment("CIRANDA_SIM_SEED", 1)),
        count(std::getenv("CIRANDA_SIM_SEED") != nullptr
                  ? 1
                  : from_environment("CIRANDA_SIM_SCHEDULES", usual_count)) {}
  std::uint64_t end() const { return first + count; }

  const std::uint64_t first;
  const std::uint64_t count;

 private:
  static std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
  }
};

}  // namespace ciranda::sim
