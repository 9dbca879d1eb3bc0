#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "core/backend/nccl/nccl_communicator.h"
#include "core/backend/nccl/nccl_reduction.h"
#include "core/backend/registry.h"

namespace ciranda {

struct NcclOptions {
  std::uint64_t connect_ns_max = 300'000'000'000;  // to make a communicator
  // For NCCL to queue a group: it starts a thread for each, which needs some 30 to 100 us.
  std::uint64_t queue_ns = 300'000;
  std::uint64_t look_ns = 100'000'000;          // at the errors of what a device still works on
  std::uint64_t rest_ns_max = 300'000'000'000;  // for the device to end what it works on
  std::uint64_t farewell_ns = 5'000'000'000;    // for the ranks' goodbye to each other
};

// Collectives of memory of NVIDIA GPUs by NCCL: one communicator of all ranks, on the device of
// this rank's first execution. (A process set of its own would be one more communicator.)
//
// The host never waits for the device. An execution is put on the stream behind the events that
// make its inputs ready, an event is recorded behind it, and it is done. A thread of NCCL's own
// puts it there, which advance() waits for, if it is soon; it takes longer where the ranks have to
// be connected, or NCCL makes what it makes on first use.
// What fails on the device after that breaks the backend, and with it the World.
//
// The device is not to be changed: an execution on another one breaks the backend too.
class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<NcclApi> api, BackendContext context, NcclOptions options = {});
  // Waits for what the device still works on, unless something has failed, and says goodbye; at
  // most for rest_ns_max and some farewells.
  ~NcclBackend() override;

  bool supports(const FusedOp& op) const override {
    return op.kind != OpKind::kBarrier && !op.in_arena;
  }
  void start(Execution&& execution) override;
  bool advance() override;
  bool idle() const override { return executions_.empty(); }
  void blocked_on(std::vector<Rank>&) const override {}  // NCCL has its own threads
  // Memory of the device may still be written until the stream has come to rest.
  void abort(const Error& why) override;
  const Error* broken() const override { return broken_ ? &*broken_ : nullptr; }
  std::uint64_t look_again_ns() const override;

 private:
  struct Pending {
    Execution execution;
    bool queued = false;                      // NCCL knows it all
    std::optional<ncclRedOp_t> made_op = {};  // to be destroyed
  };

  Status check_device(const Execution& execution);
  std::vector<std::byte> hello();
  Status connect();
  // True when it is done, as `status` says; an error breaks the backend.
  Result<bool> advance_front(Status& status);
  Status queue(Pending& pending, const NcclReduction& reduction);
  Status queue_calls(const Execution& execution, ncclRedOp_t op);
  ncclResult_t queue_member(const FusedOp& op, const Buffer& buffer, ncclRedOp_t reduce_op);
  ncclResult_t queue_allgather(const Execution& execution);
  ncclResult_t queue_alltoall(const Execution& execution);
  ncclResult_t queue_reducescatter(const Execution& execution, ncclRedOp_t reduce_op);
  cudaStream_t stream() const;
  Status look_at_device();
  void break_off(Error why);

  const std::shared_ptr<NcclApi> api_;
  const BackendContext context_;
  const NcclOptions options_;
  std::deque<Pending> executions_;
  std::shared_ptr<DeviceStream> stream_;  // of the first execution
  std::unique_ptr<Exchange> exchange_;
  NcclOldest oldest_;
  std::unique_ptr<NcclCommunicator> communicator_;
  std::uint64_t connect_by_ns_ = 0;
  std::shared_ptr<DeviceEvent> last_;  // the device may not have got there
  std::uint64_t next_look_ns_ = 0;
  std::optional<Error> broken_;
};

}  // namespace ciranda
