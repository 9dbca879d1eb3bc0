#pragma once

#include "core/backend/registry.h"

namespace ciranda {

// Runs collectives on memory of NVIDIA GPUs by NCCL.
std::unique_ptr<Backend> make_nccl(BackendContext context);
BackendFacts nccl_facts();

}  // namespace ciranda
