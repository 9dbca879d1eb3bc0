#include "core/settings/operations_config.h"

#include <optional>
#include <string>
#include <string_view>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// Returns true if `name`, a variable of Horovod, names the library `ours`. If it names a library
// that ciranda does without, warns and returns false, so that the script still runs.
Result<bool> names_library(const Environment& env, const char* name, std::string_view ours,
                           Config& config) {
  const char* text = env.text(name);
  if (text == nullptr) return false;
  std::string library = text;
  for (char& c : library) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (library == ours) return true;
  for (const std::string_view other : {"mpi", "ccl", "ddl"}) {
    if (library != other) continue;
    config.warnings.push_back(std::string(name) + "=" + text +
                              " has no effect: ciranda does not use that library");
    return false;
  }
  return bad_value(name, text, std::string(ours) + ", mpi, ccl or ddl");
}

// Returns the backend with that name, except the native one, which needs no library.
std::optional<BackendId> library_named(std::string_view name, bool on_gpu) {
  for (const BackendTraits& row : kBackends) {
    if (row.id != BackendId::kNative && row.on_gpu == on_gpu && row.name == name) return row.id;
  }
  return std::nullopt;
}

// Returns the names of those libraries, such as " or gloo".
std::string or_libraries(bool on_gpu) {
  std::string words;
  for (const BackendTraits& row : kBackends) {
    if (row.id == BackendId::kNative || row.on_gpu != on_gpu) continue;
    words += " or " + std::string(row.name);
  }
  return words;
}

}  // namespace

Status read_cpu_operations(const Environment& env, Config& config) {
  CIRANDA_ASSERT(!config.starter.empty());  // by read_config()
  constexpr const char* kName = "CIRANDA_CPU_OPERATIONS";
  const char* text = env.text(kName);
  if (text == nullptr) {
    if (config.starter == "horovodrun") return {};  // it always sets that variable
    const auto gloo = names_library(env, "HOROVOD_CPU_OPERATIONS", "gloo", config);
    if (!gloo) return gloo.error();
    if (gloo.value()) config.engine.backend_choice.cpu = BackendId::kGloo;
    return {};
  }
  const std::string_view name = text;
  const int hosts = config.rank_info.cross_size;
  if (name == "shm" && hosts > 1) {
    return bad_value(kName, text,
                     "auto, ring or gloo: the ranks are on " + std::to_string(hosts) +
                         " hosts, and shared memory does not reach from one to another");
  }
  if (name == "ring" && hosts == 1) {
    return bad_value(kName, text,
                     "auto, shm or gloo: all ranks are on one host, and the ring joins hosts");
  }
  if (name == "auto" || name == "shm" || name == "ring") return {};
  if (const auto library = library_named(name, /*on_gpu=*/false)) {
    config.engine.backend_choice.cpu = *library;
    return {};
  }
  return bad_value(kName, text, "auto, shm, ring" + or_libraries(/*on_gpu=*/false));
}

// Only NCCL can work with memory of a GPU.
Status read_gpu_operations(const Environment& env, Config& config) {
  constexpr const char* kName = "CIRANDA_GPU_OPERATIONS";
  constexpr const char* kBlocking = "NCCL_COMM_BLOCKING";  // wins over what the backend asks for
  if (const char* text = env.text(kBlocking); text != nullptr && std::string_view(text) != "0") {
    config.engine.backend_choice.gpu_refused =
        bad_value(kBlocking, text, "0 or unset: a blocking NCCL call cannot be interrupted").text;
  }
  if (const char* text = env.text(kName)) {
    const std::string_view name = text;
    if (name == "auto") return {};
    if (const auto library = library_named(name, /*on_gpu=*/true)) {
      config.engine.backend_choice.gpu = *library;
      return {};
    }
    const bool cpu = name == "shm" || name == "ring" || library_named(name, /*on_gpu=*/false);
    return bad_value(kName, text,
                     "auto" + or_libraries(/*on_gpu=*/true) +
                         (cpu ? ": " + std::string(name) + " is for tensors of the CPU" : ""));
  }
  for (const char* name :
       {"HOROVOD_GPU_OPERATIONS", "HOROVOD_GPU_ALLREDUCE", "HOROVOD_GPU_ALLGATHER",
        "HOROVOD_GPU_BROADCAST", "HOROVOD_GPU_ALLTOALL", "HOROVOD_GPU_REDUCESCATTER"}) {
    const auto nccl = names_library(env, name, "nccl", config);
    if (!nccl) return nccl.error();
  }
  return {};
}

Status check_libraries(const Environment& env, Config& config) {
  int trusted = 0;
  CIRANDA_TRY(env.integer("CIRANDA_TRUSTED_NETWORK", 0, 1, trusted));
  config.trusted_network = trusted == 1;
  config.engine.ring.authenticates = !config.remote.tls && !config.trusted_network;
  if (config.remote.tls && trusted == 0) {
    config.engine.backend_choice.gpu_refused =
        "--tls or CIRANDA_TLS asks for encryption between hosts, and NCCL encrypts nothing; leave "
        "out TLS, keep the tensors on the CPU, or declare NCCL's network trusted by "
        "--trusted-network or CIRANDA_TRUSTED_NETWORK=1";
  }
  if (config.engine.backend_choice.cpu != BackendId::kGloo) return {};
  if (config.wire_dtype) {
    return bad_value("CIRANDA_WIRE_DTYPE", env.text("CIRANDA_WIRE_DTYPE"),
                     "float32 with Gloo: only ciranda's own ring rounds what it sends");
  }
  if (config.remote.tls) {
    return bad_value("CIRANDA_TLS", env.text("CIRANDA_TLS"), "0 with Gloo, which encrypts nothing");
  }
  if (trusted == 1 || config.rank_info.size == 1) return {};
  const bool one_host = config.rank_info.cross_size == 1;
  config.warnings.push_back(
      std::string("Gloo neither authenticates connections nor encrypts data: ") +
      (one_host ? "any user of this host" : "everyone who reaches a port of these hosts") +
      " can read and change the ranks' data; if you trust them, set " +
      "--trusted-network or CIRANDA_TRUSTED_NETWORK=1, else set CIRANDA_CPU_OPERATIONS=auto");
  return {};
}

}  // namespace ciranda
