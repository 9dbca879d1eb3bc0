#pragma once

#include <functional>
#include <stdexcept>
#include <string>

// What the programs here ask of what they see; an error ends them.

inline void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

inline void require_error(const std::string& text, const std::function<void()>& act) {
  try {
    act();
  } catch (const std::runtime_error& error) {
    const std::string said = error.what();
    return require(said.find(text) != std::string::npos, "not '" + text + "' but: " + said);
  }
  throw std::runtime_error("no error with '" + text + "'");
}
