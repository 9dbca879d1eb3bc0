#include "core/backend/nccl/nccl_communicator.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"

namespace ciranda {
namespace {

constexpr std::chrono::microseconds kPause{200};

bool begun(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

}  // namespace

Error nccl_error(NcclApi& api, ncclComm_t comm, const std::string& what, ncclResult_t result) {
  Error error{.code = result == ncclRemoteError ? ErrorCode::kRankLost : ErrorCode::kSystem,
              .text = what + ": " + api.error_string(result)};
  const char* const said = api.last_error(comm);
  if (said != nullptr && *said != '\0') error.text += std::string(" (") + said + ")";
  return error;
}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::start(
    std::shared_ptr<NcclApi> api, std::shared_ptr<DeviceStream> stream, const ncclUniqueId& id,
    int rank, int size, std::uint64_t farewell_ns) {
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(std::move(api), std::move(stream), farewell_ns));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result =
      made->api_->comm_init_rank_config(&made->comm_, size, id, rank, &config);
  if (begun(result)) return made;
  made->failed_ = true;
  return nccl_error(*made->api_, made->comm_, "connecting the ranks", result);
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  if (!ended_) end(finalize() ? &NcclApi::comm_destroy : &NcclApi::comm_abort);
  if (wait_for(farewell_ns_, [this] { return ended_->load(); })) {
    ending_.join();
  } else {
    ending_.detach();
  }
}

bool NcclCommunicator::finalize() {
  const auto idle = [this] {
    const auto now = ready();
    return !now || now.value();
  };
  if (!made_ || failed_ || !wait_for(farewell_ns_, idle) || failed_) return false;
  return begun(api_->comm_finalize(comm_)) && wait_for(farewell_ns_, idle) && !failed_;
}

Result<bool> NcclCommunicator::ready() {
  CIRANDA_ASSERT(!ended_);  // no call follows abort()
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_->comm_get_async_error(comm_, &state);
  const ncclResult_t result = asked != ncclSuccess ? asked : state;
  failed_ = !begun(result);
  if (failed_) {
    return nccl_error(*api_, comm_, made_ ? "moving data" : "connecting the ranks", result);
  }
  made_ = made_ || result == ncclSuccess;
  return result == ncclSuccess;
}

void NcclCommunicator::abort() {
  if (!ended_ && comm_ != nullptr) end(&NcclApi::comm_abort);
}

void NcclCommunicator::end(ncclResult_t (NcclApi::*how)(ncclComm_t)) {
  CIRANDA_ASSERT(!ended_ && comm_ != nullptr);
  ended_ = std::make_shared<std::atomic<bool>>(false);
  ending_ = std::thread([api = api_, stream = stream_, comm = comm_, how, ended = ended_] {
    {
      // Otherwise NCCL would return to device 0, and make a context there.
      const OnDevice on_device(*stream);
      (void)((*api).*how)(comm);
    }
    ended->store(true);
  });
}

bool wait_for(std::uint64_t timeout_ns, const std::function<bool()>& done) {
  const std::uint64_t give_up_ns = monotonic_ns() + timeout_ns;
  for (;;) {
    if (done()) return true;
    if (monotonic_ns() >= give_up_ns) return false;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace ciranda
