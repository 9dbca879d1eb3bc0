#pragma once

#include "core/base/result.h"
#include "core/settings/config.h"
#include "core/settings/environment.h"

// These functions read which library runs the operations, as the user chose it. `config` must have
// the starter and the rank_info by then.
namespace ciranda {

Status read_cpu_operations(const Environment& env, Config& config);
Status read_gpu_operations(const Environment& env, Config& config);

// Returns an Error if the settings ask for something that Gloo cannot do, and warns of the
// protection that Gloo lacks. If the settings ask for encryption that NCCL lacks, tensors on a GPU
// are refused. Call it last.
Status check_libraries(const Environment& env, Config& config);

}  // namespace ciranda
