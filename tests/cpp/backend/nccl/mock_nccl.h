#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/backend/nccl/nccl_api.h"

namespace ciranda::testing {

struct Clique;

}  // namespace ciranda::testing

// NCCL leaves it to the library what this is.
struct ncclComm {
  // A rank that has come to kFinalized, or further, holds up no other one's end.
  enum class State { kMaking, kReady, kBusy, kFinalizing, kFinalized, kDestroyed, kAborted };
  State state = State::kMaking;
  std::shared_ptr<ciranda::testing::Clique> clique;
  int rank = 0;
  int device = 0;
  int polls_left = 0;  // until what is in progress is done
  std::uint64_t collectives = 0;
  int running = 0;                                   // kernels that are queued and have not ended
  std::vector<std::function<void()>> launches = {};  // of a group in progress
  std::map<int, double> factors = {};                // of operators
  int operators = 0;                                 // so far
  ncclResult_t async_error = ncclSuccess;
};

namespace ciranda::testing {

// NCCL over FakeStreams, for ranks that are threads, or driven by one. It computes what NCCL would,
// and writes down each breach of NCCL's rules: calls on a communicator that is not ready, ended or
// aborted; groups that are not ended; ranks that call different things; operators that are left
// over. What is queued runs on the streams; a group gets there only after some polls, as each one
// of NCCL's does that has several ranks. ncclCommDestroy waits for the other ranks, as NCCL's does
// for those of a host.
class MockNccl final : public NcclApi {
 public:
  // For tests. Any time.
  void set_version_of(int device, int code);
  void fail_init_of(int rank) { failing_init_ = rank; }
  void never_connect() { never_connects_ = true; }
  void never_finalize() { never_finalizes_ = true; }
  void block_aborts(bool block);
  void hold_groups(bool hold);  // groups stay in progress
  // Of the communicator of a rank that lives.
  void fail_later(int rank, ncclResult_t result);
  std::vector<std::string> breaches();
  int alive();   // communicators that are neither destroyed nor aborted
  int aborts();  // that are through

  int version() override;  // of the rank on the calling thread's device
  const char* error_string(ncclResult_t result) override;
  const char* last_error(ncclComm_t) override { return "the mock says so"; }
  ncclResult_t get_unique_id(ncclUniqueId* id) override;
  ncclResult_t comm_init_rank_config(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                                     ncclConfig_t* config) override;
  ncclResult_t comm_get_async_error(ncclComm_t comm, ncclResult_t* error) override;
  ncclResult_t comm_finalize(ncclComm_t comm) override;
  ncclResult_t comm_destroy(ncclComm_t comm) override;
  ncclResult_t comm_abort(ncclComm_t comm) override;
  ncclResult_t red_op_create_pre_mul_sum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                         ncclScalarResidence_t residence, ncclComm_t comm) override;
  ncclResult_t red_op_destroy(ncclRedOp_t op, ncclComm_t comm) override;
  ncclResult_t group_start() override;
  ncclResult_t group_end() override;
  ncclResult_t all_reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) override;
  ncclResult_t reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                      ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) override;
  ncclResult_t reduce_scatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                              ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) override;
  ncclResult_t broadcast(const void* in, void* out, std::size_t count, ncclDataType_t type,
                         int root, ncclComm_t comm, cudaStream_t stream) override;
  ncclResult_t all_gather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) override;
  ncclResult_t send(const void* in, std::size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                    cudaStream_t stream) override;
  ncclResult_t recv(void* out, std::size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                    cudaStream_t stream) override;

  struct Call {
    enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kRecv };
    Kind kind;
    const void* in = nullptr;
    void* out = nullptr;
    std::size_t count = 0;
    ncclDataType_t type = ncclUint8;
    ncclRedOp_t op = ncclSum;
    int peer = 0;  // or root
    double factor = 1.0;
    // What all ranks have to say alike.
    bool fits(const Call& other) const {
      return kind == other.kind && count == other.count && type == other.type && op == other.op &&
             peer == other.peer && factor == other.factor;
    }
  };

 private:
  ncclResult_t add(Call call, ncclComm_t comm, cudaStream_t stream);
  void run(ncclComm_t comm, const std::vector<Call>& calls, std::uint64_t first);
  void run_collective(std::unique_lock<std::mutex>& lock, ncclComm_t comm, const Call& call,
                      std::uint64_t number);
  void breach(const std::string& what) { breaches_.push_back(what); }
  void check_device(ncclComm_t comm);
  bool usable(ncclComm_t comm, const std::string& call);

  std::mutex mutex_;
  std::condition_variable news_;
  std::map<std::string, std::shared_ptr<Clique>> cliques_;
  std::vector<std::unique_ptr<ncclComm>> comms_;  // for good, so that later calls are noticed
  std::vector<std::string> breaches_;
  std::map<int, int> versions_;  // by device
  int ids_ = 0;
  int aborts_ = 0;
  std::optional<int> failing_init_;
  bool never_connects_ = false;
  bool never_finalizes_ = false;
  bool aborts_block_ = false;
  bool groups_wait_ = false;
};

}  // namespace ciranda::testing
