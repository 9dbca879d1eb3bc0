#pragma once

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <string>

#include "core/base/result.h"

namespace ciranda {

// The calls of NCCL that the backend makes, under their own names and with NCCL's own promises.
// They are virtual so that the backend can be tested without a GPU.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual int version() = 0;  // as NCCL_VERSION_CODE
  virtual const char* error_string(ncclResult_t result) = 0;
  virtual const char* last_error(ncclComm_t comm) = 0;

  virtual ncclResult_t get_unique_id(ncclUniqueId* id) = 0;
  virtual ncclResult_t comm_init_rank_config(ncclComm_t* comm, int ranks, const ncclUniqueId& id,
                                             int rank, ncclConfig_t* config) = 0;
  virtual ncclResult_t comm_get_async_error(ncclComm_t comm, ncclResult_t* error) = 0;
  virtual ncclResult_t comm_finalize(ncclComm_t comm) = 0;
  virtual ncclResult_t comm_destroy(ncclComm_t comm) = 0;
  virtual ncclResult_t comm_abort(ncclComm_t comm) = 0;

  virtual ncclResult_t red_op_create_pre_mul_sum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                                 ncclScalarResidence_t residence,
                                                 ncclComm_t comm) = 0;
  virtual ncclResult_t red_op_destroy(ncclRedOp_t op, ncclComm_t comm) = 0;

  virtual ncclResult_t group_start() = 0;
  virtual ncclResult_t group_end() = 0;
  virtual ncclResult_t all_reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) = 0;
  virtual ncclResult_t reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) = 0;
  virtual ncclResult_t reduce_scatter(const void* in, void* out, std::size_t count,
                                      ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream) = 0;
  virtual ncclResult_t broadcast(const void* in, void* out, std::size_t count, ncclDataType_t type,
                                 int root, ncclComm_t comm, cudaStream_t stream) = 0;
  virtual ncclResult_t all_gather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream) = 0;
  virtual ncclResult_t send(const void* in, std::size_t count, ncclDataType_t type, int to,
                            ncclComm_t comm, cudaStream_t stream) = 0;
  virtual ncclResult_t recv(void* out, std::size_t count, ncclDataType_t type, int from,
                            ncclComm_t comm, cudaStream_t stream) = 0;
};

struct NcclLibrary {
  std::shared_ptr<NcclApi> api;
  std::string version;  // "2.30.7"
  std::string path;
};

inline constexpr const char* kNcclSoname = "libnccl.so.2";

// Loads the library for good. The library that torch has loaded has this soname and is found first.
// Then come the places that the loader knows, such as NCCL's wheel next to ours. kUnsupported if
// there is no NCCL, or if it is older than 2.14 and its communicators block.
Result<NcclLibrary> load_nccl(const char* name = kNcclSoname);

// kUnsupported if the NCCL in `path` is too old.
Status check_nccl_version(int code, const std::string& path);

// "2.30.7"
std::string nccl_version_text(int code);

}  // namespace ciranda
