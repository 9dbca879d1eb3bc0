#include "core/backend/gloo/gloo.h"
#include "core/base/assert.h"

// Replaces gloo_backend.cc and gloo_group.cc in a build without Gloo.
namespace ciranda {

// NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<Backend> make_gloo(BackendContext) {
  CIRANDA_ASSERT(false);  // gloo_facts() says that Gloo is not built
  return nullptr;
}

BackendFacts gloo_facts() {
  return {
      .id = BackendId::kGloo,
      .built = false,
      .why_not = "this build has no Gloo; install libgloo (libgloo-dev), and build ciranda again"};
}

}  // namespace ciranda
