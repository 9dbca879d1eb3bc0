#include "core/ps/decide/declarations.h"

#include <algorithm>

namespace ciranda::ps {

bool Declarations::anyone_waits() const {
  return std::ranges::any_of(declared_, [](const auto& each) { return each.second.waits; });
}

std::vector<Declarations::Waiting> Declarations::take_waiting() {
  std::vector<Waiting> waiting;
  for (auto& [caller, declared] : declared_) {
    if (!std::exchange(declared.waits, false)) continue;
    waiting.push_back({.caller = caller, .returns = declared.returns});
  }
  return waiting;
}

}  // namespace ciranda::ps
