#include "core/backend/nccl/nccl.h"
#include "core/base/assert.h"

// Replaces the other files in a build without NCCL.
namespace ciranda {

// NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<Backend> make_nccl(BackendContext) {
  CIRANDA_ASSERT(false);  // nccl_facts() says that NCCL is not built
  return nullptr;
}

BackendFacts nccl_facts() {
  return {
      .id = BackendId::kNccl,
      .built = false,
      .why_not =
          "this build has no NCCL; install NCCL's and CUDA's headers (the wheels "
          "nvidia-nccl-cu13 and nvidia-cuda-crt, which go with torch's), and build ciranda again"};
}

}  // namespace ciranda
