#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/backend/nccl/nccl_api.h"
#include "core/base/device.h"

namespace ciranda {

// "WHAT: unhandled system error (the last words of NCCL's own log)". `comm` null: none is
// made. kRankLost, if NCCL says that it is another rank's end.
Error nccl_error(NcclApi& api, ncclComm_t comm, const std::string& what, ncclResult_t result);

// This rank's end of a communicator that does not block. Nothing here does, but the destructor, for
// at most three farewells. One thread at a time.
class NcclCommunicator {
 public:
  // Starts to make it, on the device of `stream` and of the calling thread. Every rank has to.
  static Result<std::unique_ptr<NcclCommunicator>> start(std::shared_ptr<NcclApi> api,
                                                         std::shared_ptr<DeviceStream> stream,
                                                         const ncclUniqueId& id, int rank, int size,
                                                         std::uint64_t farewell_ns);
  // Waits until everybody has done what was asked for, and has a thread free the communicator;
  // abort it, where that fails or takes too long. If even that takes too long it is left to its
  // thread: it may be waiting for a rank of this host that has not said goodbye.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // For calls of NCCL, only while ready().
  ncclComm_t get() const { return comm_; }
  // Whether all calls so far have come through: it is made, and what was queued is on the stream.
  // An error, of whatever was asked for before, is for good.
  Result<bool> ready();
  bool made() const { return made_; }

  // Has a thread end all that runs. No other call follows.
  void abort();

 private:
  NcclCommunicator(std::shared_ptr<NcclApi> api, std::shared_ptr<DeviceStream> stream,
                   std::uint64_t farewell_ns)
      : api_(std::move(api)), stream_(std::move(stream)), farewell_ns_(farewell_ns) {}
  // Whether the ranks have done all that was asked for.
  bool finalize();
  // By ncclCommDestroy or ncclCommAbort, which may block.
  void end(ncclResult_t (NcclApi::*how)(ncclComm_t));

  const std::shared_ptr<NcclApi> api_;
  const std::shared_ptr<DeviceStream> stream_;
  const std::uint64_t farewell_ns_;
  ncclComm_t comm_ = nullptr;
  bool made_ = false;
  bool failed_ = false;
  std::thread ending_;
  std::shared_ptr<std::atomic<bool>> ended_;  // by the thread, which may outlive this object
};

// Asks `done` every now and then, until it is true or the time is over. Whether it was true.
bool wait_for(std::uint64_t timeout_ns, const std::function<bool()>& done);

}  // namespace ciranda
