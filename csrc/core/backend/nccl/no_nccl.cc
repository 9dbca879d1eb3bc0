#include "core/backend/nccl/nccl.h"
#include "core/base/assert.h"

// In the place of the other files where NCCL is not found, or not wanted.
namespace ciranda {

// NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<Backend> make_nccl(BackendContext) {
  CIRANDA_ASSERT(false);  // its facts say that there is none
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
