#include "core/backend/gloo/gloo.h"
#include "core/base/assert.h"

// In the place of gloo_backend.cc and gloo_group.cc where Gloo is not found, or not wanted.
namespace ciranda {

// NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<Backend> make_gloo(BackendContext) {
  CIRANDA_ASSERT(false);  // its facts say that there is none
  return nullptr;
}

BackendFacts gloo_facts() {
  return {
      .id = BackendId::kGloo,
      .built = false,
      .why_not = "this build has no Gloo; install libgloo (libgloo-dev), and build ciranda again"};
}

}  // namespace ciranda
