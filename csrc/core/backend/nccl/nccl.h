#pragma once

#include "core/backend/registry.h"

namespace ciranda {

// Collectives of memory of NVIDIA GPUs by NCCL.
std::unique_ptr<Backend> make_nccl(BackendContext context);
BackendFacts nccl_facts();

}  // namespace ciranda
