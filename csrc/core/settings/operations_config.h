#pragma once

#include "core/base/result.h"
#include "core/settings/config.h"
#include "core/settings/environment.h"

// Which library runs the operations, as the user chose it. Each takes a Config whose place is read.
namespace ciranda {

Status read_cpu_operations(const Environment& env, Config& config);
Status read_gpu_operations(const Environment& env, Config& config);

// What Gloo and NCCL cannot do is an Error, what they do not do a warning. Comes last.
Status check_libraries(const Environment& env, Config& config);

}  // namespace ciranda
