#pragma once

#include <string>

namespace ciranda::sim {

// A rule that was broken. Only the simulation throws it, and only run_schedule catches it.
struct Violation {
  std::string text;
};

inline void require(bool condition, const std::string& text) {
  if (!condition) throw Violation{text};
}
inline void require(bool condition, const char* text) {
  if (!condition) throw Violation{text};
}

}  // namespace ciranda::sim
