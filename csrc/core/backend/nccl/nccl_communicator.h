#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/backend/nccl/nccl_api.h"
#include "core/base/assert.h"
#include "core/base/device.h"

namespace ciranda {

// Returns an Error with the text "WHAT: unhandled system error (last message of NCCL's own log)".
// `comm` is null if none is made. kRankLost if NCCL says that another rank has ended.
Error nccl_error(NcclApi& api, ncclComm_t comm, const std::string& what, ncclResult_t result);

// This rank's end of a communicator that does not block. Only the destructor blocks, for at most
// three farewells. One thread at a time.
class NcclCommunicator {
 public:
  // Starts to make the communicator, on the device of `stream`, which is the calling thread's
  // current one. Every rank must call this.
  static Result<std::unique_ptr<NcclCommunicator>> start(std::shared_ptr<NcclApi> api,
                                                         std::shared_ptr<DeviceStream> stream,
                                                         const ncclUniqueId& id, int rank, int size,
                                                         std::uint64_t farewell_ns);
  // Waits until all ranks have done the requested work, and lets a thread free the communicator.
  // The thread aborts it if the wait fails or takes too long. If even that takes too long, the
  // thread is left alone: it may be waiting for a rank of this host that has not said goodbye.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // For calls of NCCL. Only while ready() is true.
  ncclComm_t get() const {
    CIRANDA_ASSERT(made_ && !ended_);
    return comm_;
  }
  // Returns true if all calls so far are complete: the communicator is made, and queued work is on
  // the stream. An error may come from any earlier call, and it is permanent.
  Result<bool> ready();
  bool made() const { return made_; }

  // Ends all running work, in another thread. No other call may follow.
  void abort();

 private:
  NcclCommunicator(std::shared_ptr<NcclApi> api, std::shared_ptr<DeviceStream> stream,
                   std::uint64_t farewell_ns)
      : api_(std::move(api)), stream_(std::move(stream)), farewell_ns_(farewell_ns) {}
  // Returns true if the ranks have done everything that was requested.
  bool finalize();
  // Calls ncclCommDestroy or ncclCommAbort in another thread, because they may block.
  void end(ncclResult_t (NcclApi::*how)(ncclComm_t));

  const std::shared_ptr<NcclApi> api_;
  const std::shared_ptr<DeviceStream> stream_;
  const std::uint64_t farewell_ns_;
  ncclComm_t comm_ = nullptr;
  bool made_ = false;
  bool failed_ = false;
  std::thread ending_;
  std::shared_ptr<std::atomic<bool>> ended_;  // set by the thread, which may outlive this object
};

// Polls `done` until it returns true or the time is over. Returns true if it did.
bool wait_for(std::uint64_t timeout_ns, const std::function<bool()>& done);

}  // namespace ciranda
