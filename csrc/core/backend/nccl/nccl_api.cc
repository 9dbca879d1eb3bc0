#include "core/backend/nccl/nccl_api.h"

#include <dlfcn.h>

#include <climits>
#include <cstdlib>
#include <utility>

namespace ciranda {
namespace {

constexpr int kVersionMin = NCCL_VERSION(2, 14, 0);

// A function of the library, found by its name.
template <typename Call>
struct Found {
  const char* name;
  Call call = nullptr;
};

class LoadedNccl final : public NcclApi {
 public:
  // Looks up all functions. Returns the name of a function that the library lacks, or null.
  const char* find_functions(void* library) {
    const char* missing = nullptr;
    each([&]<typename Call>(Found<Call>& function) {
      function.call = reinterpret_cast<Call>(::dlsym(library, function.name));
      if (function.call == nullptr) missing = function.name;
    });
    return missing;
  }

  int version() override {
    int code = 0;
    return get_version_.call(&code) == ncclSuccess ? code : 0;
  }
  const char* error_string(ncclResult_t result) override { return error_string_.call(result); }
  const char* last_error(ncclComm_t comm) override { return last_error_.call(comm); }

  ncclResult_t get_unique_id(ncclUniqueId* id) override { return get_unique_id_.call(id); }
  ncclResult_t comm_init_rank_config(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                                     ncclConfig_t* config) override {
    return comm_init_.call(comm, ranks, id, rank, config);
  }
  ncclResult_t comm_get_async_error(ncclComm_t comm, ncclResult_t* error) override {
    return comm_get_async_error_.call(comm, error);
  }
  ncclResult_t comm_finalize(ncclComm_t comm) override { return comm_finalize_.call(comm); }
  ncclResult_t comm_destroy(ncclComm_t comm) override { return comm_destroy_.call(comm); }
  ncclResult_t comm_abort(ncclComm_t comm) override { return comm_abort_.call(comm); }

  ncclResult_t red_op_create_pre_mul_sum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                         ncclScalarResidence_t residence,
                                         ncclComm_t comm) override {
    return red_op_create_.call(op, scalar, type, residence, comm);
  }
  ncclResult_t red_op_destroy(ncclRedOp_t op, ncclComm_t comm) override {
    return red_op_destroy_.call(op, comm);
  }

  ncclResult_t group_start() override { return group_start_.call(); }
  ncclResult_t group_end() override { return group_end_.call(); }
  ncclResult_t all_reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) override {
    return all_reduce_.call(in, out, count, type, op, comm, stream);
  }
  ncclResult_t reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                      ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) override {
    return reduce_.call(in, out, count, type, op, root, comm, stream);
  }
  ncclResult_t reduce_scatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                              ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) override {
    return reduce_scatter_.call(in, out, count, type, op, comm, stream);
  }
  ncclResult_t broadcast(const void* in, void* out, std::size_t count, ncclDataType_t type,
                         int root, ncclComm_t comm, cudaStream_t stream) override {
    return broadcast_.call(in, out, count, type, root, comm, stream);
  }
  ncclResult_t all_gather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) override {
    return all_gather_.call(in, out, count, type, comm, stream);
  }
  ncclResult_t send(const void* in, std::size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                    cudaStream_t stream) override {
    return send_.call(in, count, type, to, comm, stream);
  }
  ncclResult_t recv(void* out, std::size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                    cudaStream_t stream) override {
    return recv_.call(out, count, type, from, comm, stream);
  }

 private:
  template <typename Fn>
  void each(Fn fn) {
    fn(error_string_), fn(last_error_), fn(get_version_), fn(get_unique_id_), fn(comm_init_),
        fn(comm_get_async_error_);
    fn(comm_finalize_), fn(comm_destroy_), fn(comm_abort_);
    fn(red_op_create_), fn(red_op_destroy_), fn(group_start_), fn(group_end_);
    fn(all_reduce_), fn(reduce_), fn(reduce_scatter_), fn(broadcast_), fn(all_gather_);
    fn(send_), fn(recv_);
  }

  Found<decltype(&::ncclGetErrorString)> error_string_{"ncclGetErrorString"};
  Found<decltype(&::ncclGetLastError)> last_error_{"ncclGetLastError"};
  Found<decltype(&::ncclGetVersion)> get_version_{"ncclGetVersion"};
  Found<decltype(&::ncclGetUniqueId)> get_unique_id_{"ncclGetUniqueId"};
  Found<decltype(&::ncclCommInitRankConfig)> comm_init_{"ncclCommInitRankConfig"};
  Found<decltype(&::ncclCommGetAsyncError)> comm_get_async_error_{"ncclCommGetAsyncError"};
  Found<decltype(&::ncclCommFinalize)> comm_finalize_{"ncclCommFinalize"};
  Found<decltype(&::ncclCommDestroy)> comm_destroy_{"ncclCommDestroy"};
  Found<decltype(&::ncclCommAbort)> comm_abort_{"ncclCommAbort"};
  Found<decltype(&::ncclRedOpCreatePreMulSum)> red_op_create_{"ncclRedOpCreatePreMulSum"};
  Found<decltype(&::ncclRedOpDestroy)> red_op_destroy_{"ncclRedOpDestroy"};
  Found<decltype(&::ncclGroupStart)> group_start_{"ncclGroupStart"};
  Found<decltype(&::ncclGroupEnd)> group_end_{"ncclGroupEnd"};
  Found<decltype(&::ncclAllReduce)> all_reduce_{"ncclAllReduce"};
  Found<decltype(&::ncclReduce)> reduce_{"ncclReduce"};
  Found<decltype(&::ncclReduceScatter)> reduce_scatter_{"ncclReduceScatter"};
  Found<decltype(&::ncclBroadcast)> broadcast_{"ncclBroadcast"};
  Found<decltype(&::ncclAllGather)> all_gather_{"ncclAllGather"};
  Found<decltype(&::ncclSend)> send_{"ncclSend"};
  Found<decltype(&::ncclRecv)> recv_{"ncclRecv"};
};

Error unsupported(std::string text) {
  return {.code = ErrorCode::kUnsupported, .text = std::move(text)};
}

std::string path_of(void* function, const char* name) {
  Dl_info found{};
  if (::dladdr(function, &found) == 0 || found.dli_fname == nullptr) return name;
  char path[PATH_MAX];
  return ::realpath(found.dli_fname, path) != nullptr ? path : found.dli_fname;
}

std::string named(int code, const std::string& path) {
  return "NCCL " + nccl_version_text(code) + " in " + path;
}

}  // namespace

Result<NcclLibrary> load_nccl(const char* name) {
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is the thread's
    return unsupported("NCCL was not found (" + why +
                       "); install it, for example by `pip install nvidia-nccl-cu13`");
  }
  using GetVersion = decltype(&::ncclGetVersion);
  void* const get_version = ::dlsym(library, "ncclGetVersion");
  int code = 0;
  if (get_version == nullptr || reinterpret_cast<GetVersion>(get_version)(&code) != ncclSuccess) {
    return unsupported(std::string(name) + " is not an NCCL library: it does not tell its version");
  }
  NcclLibrary loaded{.version = nccl_version_text(code), .path = path_of(get_version, name)};
  CIRANDA_TRY(check_nccl_version(code, loaded.path));
  auto api = std::make_shared<LoadedNccl>();
  if (const char* missing = api->find_functions(library); missing != nullptr) {
    return unsupported(named(code, loaded.path) + " lacks " + missing +
                       "; install another build of it");
  }
  loaded.api = std::move(api);
  return loaded;
}

Status check_nccl_version(int code, const std::string& path) {
  if (code >= kVersionMin) return {};
  return unsupported(named(code, path) + " is too old: non-blocking communicators need NCCL " +
                     nccl_version_text(kVersionMin) +
                     "; upgrade it, for example by `pip install --upgrade nvidia-nccl-cu13`");
}

std::string nccl_version_text(int code) {
  const int major = code >= 10'000 ? code / 10'000 : code / 1'000;  // else: before 2.9
  const int rest = code >= 10'000 ? code % 10'000 : code % 1'000;
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." +
         std::to_string(rest % 100);
}

}  // namespace ciranda
