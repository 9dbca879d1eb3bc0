#include "core/transport/dial/throttle.h"

#include <algorithm>

#include "core/base/assert.h"

namespace ciranda {

bool Throttle::admit(std::uint64_t now_ns) {
  const std::uint64_t then_ns = std::max(full_ns_, now_ns) + turn_ns_;
  if (then_ns - now_ns > allowance_ns_) return false;
  full_ns_ = then_ns;
  return true;
}

void Throttle::give_back() {
  CIRANDA_ASSERT(full_ns_ >= turn_ns_);  // by admit()
  full_ns_ -= turn_ns_;
}

}  // namespace ciranda
