#include <cuda.h>
#include <dlfcn.h>

#include <string>

#include "core/backend/nccl/nccl.h"
#include "core/backend/nccl/nccl_backend.h"

namespace ciranda {
namespace {

// Runs once per process: a library stays loaded.
const Result<NcclLibrary>& library() {
  static const Result<NcclLibrary> kLoaded = load_nccl();
  return kLoaded;
}

// Returns why no GPU of this machine can be used; empty if one can. Wakes the driver.
std::string why_no_gpu() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return "this machine has no NVIDIA driver (libcuda.so.1)";
  const auto init = reinterpret_cast<decltype(&::cuInit)>(::dlsym(driver, "cuInit"));
  const auto count =
      reinterpret_cast<decltype(&::cuDeviceGetCount)>(::dlsym(driver, "cuDeviceGetCount"));
  if (init == nullptr || count == nullptr)
    return "libcuda.so.1 is not the NVIDIA driver: it lacks cuInit or cuDeviceGetCount";
  int devices = 0;
  CUresult result = init(0);
  if (result == CUDA_SUCCESS) result = count(&devices);
  if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && devices == 0)) {
    return "the NVIDIA driver sees no GPU (see nvidia-smi and CUDA_VISIBLE_DEVICES)";
  }
  if (result == CUDA_SUCCESS) return "";
  return "the NVIDIA driver reports error " + std::to_string(result) + " (see nvidia-smi)";
}

}  // namespace

std::unique_ptr<Backend> make_nccl(BackendContext context) {
  return std::make_unique<NcclBackend>(library().value().api, std::move(context));
}

BackendFacts nccl_facts() {
  BackendFacts facts{.id = BackendId::kNccl};
  if (!library()) {
    facts.why_not = library().error().text;
    return facts;
  }
  facts.version = library().value().version;
  facts.path = library().value().path;
  static const std::string kWhy = why_no_gpu();
  facts.available = kWhy.empty();
  if (!facts.available) {
    facts.why_not = "NCCL needs a GPU, and " + kWhy + "; keep the tensors on the CPU";
  }
  return facts;
}

}  // namespace ciranda
