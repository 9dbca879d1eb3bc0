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
  // For NCCL to queue a group. NCCL starts a thread for each group, which takes some 30 to 100 us.
  std::uint64_t queue_ns = 300'000;
  std::uint64_t look_ns = 100'000'000;          // between looks at the errors of work on a device
  std::uint64_t rest_ns_max = 300'000'000'000;  // for the device to end its work
  std::uint64_t farewell_ns = 5'000'000'000;    // for the ranks' goodbye to each other
};

// Runs collectives on memory of NVIDIA GPUs by NCCL, with one communicator for the group, on the
// device of this rank's first execution. (A process set has its own backend, and so its own
// communicator.)
//
// The host never waits for the device. An execution is put on the stream behind the events that
// make its inputs ready, and an event is recorded behind it. The execution is then done. NCCL
// queues it in another thread, and advance() waits for that thread for a short time. Queuing takes
// longer if the ranks must be connected, or if NCCL prepares something on first use. A later
// failure on the device breaks the backend, and with it the World.
//
// A rank must not change its device: an execution on another device breaks the backend too.
class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<NcclApi> api, BackendContext context, NcclOptions options = {});
  // Waits for the work that is still on the device, unless something has failed, and says goodbye
  // to the other ranks. Blocks for at most rest_ns_max and some farewells.
  ~NcclBackend() override;

  bool supports(const FusedOp& op) const override {
    return op.kind != OpKind::kBarrier && !op.in_arena;
  }
  void start(Execution&& execution) override;
  bool advance() override;
  bool idle() const override { return executions_.empty(); }
  void blocked_on(std::vector<Rank>&) const override {}  // NCCL's own threads do the work
  // The device may still write to its memory until the stream has come to rest.
  void abort(const Error& why) override;
  const Error* broken() const override { return broken_ ? &*broken_ : nullptr; }
  std::uint64_t look_again_ns() const override;

 private:
  struct Pending {
    Execution execution;
    bool queued = false;                      // NCCL has all its calls
    std::optional<ncclRedOp_t> made_op = {};  // to be destroyed
  };

  Status check_device(const Execution& execution);
  std::vector<std::byte> hello();
  Status connect();
  // Returns true if the front execution is done, with `status` as its result. An error breaks the
  // backend.
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
  std::shared_ptr<DeviceEvent> last_;  // behind the latest execution; null once passed
  std::uint64_t next_look_ns_ = 0;
  std::optional<Error> broken_;
};

}  // namespace ciranda
