#include "core/backend/nccl/nccl_backend.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/wire/codec.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kPollNs = 1'000'000;  // NCCL rings no bell

bool failed(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

// A rank's message to its peers before they connect: its versions and, from rank 0, where to
// connect.
struct Greeting {
  NcclOldest has = {};
  std::string why_not = {};  // the reason if the rank cannot take part
  ncclUniqueId id = {};
};

std::vector<std::byte> encoded(const Greeting& greeting) {
  std::vector<std::byte> bytes;
  Writer out(bytes);
  out.varint(static_cast<std::uint64_t>(greeting.has.version));
  out.varint(static_cast<std::uint64_t>(greeting.has.compute_capability));
  out.varint(greeting.why_not.size());
  out.text(greeting.why_not);
  out.bytes(std::as_bytes(std::span(greeting.id.internal)));
  return bytes;
}

Result<Greeting> decoded(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Greeting greeting;
  greeting.has.version = static_cast<int>(in.varint("nccl.version", INT32_MAX));
  greeting.has.compute_capability = static_cast<int>(in.varint("nccl.capability", INT32_MAX));
  greeting.why_not = in.text("nccl.why_not", in.count("nccl.why_not", kErrorTextBytesMax, 1));
  in.bytes("nccl.id", std::as_writable_bytes(std::span(greeting.id.internal)));
  if (!in.ok()) return in.error();
  return greeting;
}

// Returns the bytes of the rank that has this index in an Execution's offsets.
std::uint64_t part_bytes(const std::vector<std::uint64_t>& offsets, std::size_t index) {
  CIRANDA_ASSERT(index + 1 < offsets.size() && offsets[index] <= offsets[index + 1]);
  return offsets[index + 1] - offsets[index];
}

bool parts_are_equal(const std::vector<std::uint64_t>& offsets) {
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (part_bytes(offsets, i) != part_bytes(offsets, 0)) return false;
  }
  return true;
}

}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<NcclApi> api, BackendContext context, NcclOptions options)
    : api_(std::move(api)), context_(std::move(context)), options_(options) {}

NcclBackend::~NcclBackend() {
  if (!communicator_ || !last_) return;
  const auto at_rest = [this] {
    if (!communicator_->ready()) return true;
    const auto passed = last_->passed();
    return !passed || passed.value();
  };
  if (!wait_for(options_.rest_ns_max, at_rest)) communicator_->abort();
}

void NcclBackend::start(Execution&& execution) {
  if (const Status status = check_device(execution); !status.ok()) break_off(status.error());
  executions_.push_back({.execution = std::move(execution)});
  if (broken_ || communicator_ || exchange_) return;
  CIRANDA_ASSERT(stream_ != nullptr);  // by check_device()
  const OnDevice on_device(*stream_);
  exchange_ = context_.exchange("nccl", hello());
}

// An error breaks the backend. The other ranks run the same execution: if only this rank refused
// it, they would wait for ever.
Status NcclBackend::check_device(const Execution& execution) {
  const auto& device = execution.device;
  const auto refused = [this](const std::string& why) {
    return Error{.code = ErrorCode::kInvalidArgument, .text = why, .rank = context_.rank};
  };
  if (device.empty() || device.size() != execution.buffers.size() || !device.front().stream) {
    return refused("the tensor is in CPU memory; move it to a GPU, or use another backend");
  }
  if (!stream_) stream_ = device.front().stream;
  for (const DeviceWork& work : device) {
    CIRANDA_ASSERT(work.stream != nullptr);  // only work with a stream is listed
    if (work.stream->device() != stream_->device()) {
      return refused("the tensor is on GPU " + std::to_string(work.stream->device()) +
                     ", but the first tensor of this rank was on GPU " +
                     std::to_string(stream_->device()) +
                     "; use one GPU per rank, for example by torch.cuda.set_device(local_rank)");
    }
  }
  return {};
}

std::vector<std::byte> NcclBackend::hello() {
  Greeting greeting{
      .has = {.version = api_->version(), .compute_capability = stream_->compute_capability()}};
  if (context_.rank == 0) {
    if (const ncclResult_t result = api_->get_unique_id(&greeting.id); failed(result)) {
      greeting.why_not = nccl_error(*api_, nullptr, "beginning to connect", result).text;
      greeting.why_not.resize(std::min(greeting.why_not.size(), kErrorTextBytesMax));
    }
  }
  return encoded(greeting);
}

Status NcclBackend::connect() {
  CIRANDA_ASSERT(exchange_ && !communicator_);
  const auto parts = exchange_->result();
  exchange_.reset();
  if (!parts) return parts.error();
  ncclUniqueId id = {};
  for (std::size_t rank = 0; rank < parts.value().size(); ++rank) {
    const auto greeting = decoded(parts.value()[rank]);
    if (!greeting) return greeting.error();
    const auto& [has, why_not, its_id] = greeting.value();
    if (!why_not.empty()) {
      return Error{.code = ErrorCode::kSystem,
                   .text = "rank " + std::to_string(rank) + ": " + why_not,
                   .rank = static_cast<Rank>(rank)};
    }
    if (rank == 0) id = its_id, oldest_ = has;
    oldest_.version = std::min(oldest_.version, has.version);
    oldest_.compute_capability = std::min(oldest_.compute_capability, has.compute_capability);
  }
  auto communicator = NcclCommunicator::start(api_, stream_, id, context_.rank, context_.size,
                                              options_.farewell_ns);
  if (!communicator) return communicator.error();
  communicator_ = std::move(communicator).value();
  connect_by_ns_ = monotonic_ns() + options_.connect_ns_max;
  return {};
}

bool NcclBackend::advance() {
  if (broken_) return false;
  if (const Status status = look_at_device(); !status.ok()) break_off(status.error());
  bool moved = false;
  while (!broken_ && !executions_.empty()) {
    Status status;
    const Result<bool> through = advance_front(status);
    if (!through) break_off(through.error());
    if (!through || !through.value()) break;
    const Done done = std::move(executions_.front().execution.done);
    executions_.pop_front();
    moved = true;
    done(status, status.ok() ? last_ : nullptr);
  }
  return moved || broken_;
}

Result<bool> NcclBackend::advance_front(Status& status) {
  CIRANDA_ASSERT(!executions_.empty() && (communicator_ || exchange_));  // by start()
  if (!communicator_ && !exchange_->done()) return false;
  const OnDevice on_device(*stream_);
  CIRANDA_TRY(on_device.status());
  if (!communicator_) CIRANDA_TRY(connect());
  Pending& front = executions_.front();
  for (std::uint64_t stay_until_ns = 0;;) {
    const Result<bool> ready = communicator_->ready();
    if (!ready) return ready.error();
    if (!ready.value()) {
      if (monotonic_ns() < stay_until_ns) {
        std::this_thread::yield();
        continue;
      }
      if (communicator_->made() || monotonic_ns() < connect_by_ns_) return false;
      return Error{.code = ErrorCode::kTimeout,
                   .text = "NCCL did not connect the ranks within " +
                           std::to_string(options_.connect_ns_max / 1'000'000'000) +
                           " s; set NCCL_DEBUG=INFO to see what NCCL tries, or set "
                           "NCCL_SOCKET_IFNAME to the network interface that joins the hosts"};
    }
    if (front.queued) break;
    const FusedOp& op = front.execution.op;
    const Result<NcclReduction> reduction =
        reduces(op.kind) ? nccl_reduction(op, context_.size, oldest_) : NcclReduction{};
    if (!reduction) {
      status = reduction.error();
      return true;
    }
    CIRANDA_TRY(queue(front, reduction.value()));
    front.queued = true;
    stay_until_ns = monotonic_ns() + options_.queue_ns;
  }
  if (front.made_op) (void)api_->red_op_destroy(*front.made_op, communicator_->get());
  auto finished = stream_->record();
  if (!finished) return finished.error();
  if (!last_) next_look_ns_ = monotonic_ns() + options_.look_ns;
  last_ = std::move(finished).value();
  return true;
}

Status NcclBackend::queue(Pending& pending, const NcclReduction& reduction) {
  const DeviceEvent* waited_for = nullptr;
  for (const DeviceWork& work : pending.execution.device) {
    if (!work.ready || work.ready.get() == waited_for) continue;
    CIRANDA_TRY(stream_->wait(*work.ready));
    waited_for = work.ready.get();
  }
  ncclRedOp_t op = reduction.op;
  if (reduction.factor) {
    auto factor = *reduction.factor;
    const ncclResult_t result =
        api_->red_op_create_pre_mul_sum(&op, factor.data(), nccl_type(pending.execution.op.dtype),
                                        ncclScalarHostImmediate, communicator_->get());
    if (failed(result)) return nccl_error(*api_, communicator_->get(), "scaling", result);
    pending.made_op = op;
  }
  return queue_calls(pending.execution, op);
}

Status NcclBackend::queue_calls(const Execution& execution, ncclRedOp_t op) {
  ncclResult_t result = api_->group_start();
  if (!failed(result)) {
    switch (execution.op.kind) {
      case OpKind::kAllgather:
        result = queue_allgather(execution);
        break;
      case OpKind::kAlltoall:
        result = queue_alltoall(execution);
        break;
      case OpKind::kReducescatter:
        result = queue_reducescatter(execution, op);
        break;
      default:
        for (const Buffer& buffer : execution.buffers) {
          result = queue_member(execution.op, buffer, op);
          if (failed(result)) break;
        }
    }
    // A group must be ended even after an error: NCCL counts the starts.
    const ncclResult_t ended = api_->group_end();
    if (!failed(result)) result = ended;
  }
  if (!failed(result)) return {};
  return nccl_error(*api_, communicator_->get(), std::string(op_kind_name(execution.op.kind)),
                    result);
}

cudaStream_t NcclBackend::stream() const {
  return static_cast<cudaStream_t>(stream_->native());
}

ncclResult_t NcclBackend::queue_member(const FusedOp& op, const Buffer& buffer,
                                       ncclRedOp_t reduce_op) {
  if (buffer.out_bytes == 0) return ncclSuccess;
  CIRANDA_ASSERT(buffer.in_bytes == buffer.out_bytes);
  if (op.kind == OpKind::kBroadcast) {
    CIRANDA_ASSERT(op.root >= 0 && op.root < context_.size);
    return api_->broadcast(buffer.in, buffer.out, buffer.out_bytes, ncclUint8, op.root,
                           communicator_->get(), stream());
  }
  return api_->all_reduce(buffer.in, buffer.out, buffer.out_bytes / dtype_bytes(op.dtype),
                          nccl_type(op.dtype), reduce_op, communicator_->get(), stream());
}

ncclResult_t NcclBackend::queue_allgather(const Execution& execution) {
  const Buffer& buffer = execution.buffers.front();
  const auto& offsets = execution.offsets;
  CIRANDA_ASSERT(offsets.size() == static_cast<std::size_t>(context_.size) + 1);
  if (parts_are_equal(offsets)) {
    if (buffer.in_bytes == 0) return ncclSuccess;
    return api_->all_gather(buffer.in, buffer.out, buffer.in_bytes, ncclUint8, communicator_->get(),
                            stream());
  }
  ncclResult_t result = ncclSuccess;
  for (int root = 0; root < context_.size && !failed(result); ++root) {
    const auto part = static_cast<std::size_t>(root);
    if (part_bytes(offsets, part) == 0) continue;
    std::byte* const to = buffer.out + offsets[part];
    result = api_->broadcast(root == context_.rank ? buffer.in : to, to, part_bytes(offsets, part),
                             ncclUint8, root, communicator_->get(), stream());
  }
  return result;
}

ncclResult_t NcclBackend::queue_alltoall(const Execution& execution) {
  const Buffer& buffer = execution.buffers.front();
  const auto self = static_cast<std::size_t>(context_.rank);
  const auto row = static_cast<std::size_t>(context_.size) + 1;  // a row of offsets for each sender
  const auto& offsets = execution.offsets;
  CIRANDA_ASSERT(offsets.size() == (row - 1) * row);
  ncclResult_t result = ncclSuccess;
  std::uint64_t received = 0;
  for (int peer = 0; peer < context_.size && !failed(result); ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    const std::uint64_t sends = part_bytes(offsets, self * row + at);
    const std::uint64_t receives = part_bytes(offsets, at * row + self);
    if (sends > 0) {
      result = api_->send(buffer.in + offsets[self * row + at], sends, ncclUint8, peer,
                          communicator_->get(), stream());
    }
    if (receives > 0 && !failed(result)) {
      result = api_->recv(buffer.out + received, receives, ncclUint8, peer, communicator_->get(),
                          stream());
    }
    received += receives;
  }
  CIRANDA_ASSERT(failed(result) || received == buffer.out_bytes);
  return result;
}

ncclResult_t NcclBackend::queue_reducescatter(const Execution& execution, ncclRedOp_t reduce_op) {
  const Buffer& buffer = execution.buffers.front();
  const auto& offsets = execution.offsets;
  CIRANDA_ASSERT(offsets.size() == static_cast<std::size_t>(context_.size) + 1);
  const std::size_t element_bytes = dtype_bytes(execution.op.dtype);
  const ncclDataType_t type = nccl_type(execution.op.dtype);
  if (parts_are_equal(offsets)) {
    if (buffer.out_bytes == 0) return ncclSuccess;
    return api_->reduce_scatter(buffer.in, buffer.out, buffer.out_bytes / element_bytes, type,
                                reduce_op, communicator_->get(), stream());
  }
  ncclResult_t result = ncclSuccess;
  for (int root = 0; root < context_.size && !failed(result); ++root) {
    const auto part = static_cast<std::size_t>(root);
    if (part_bytes(offsets, part) == 0) continue;
    result = api_->reduce(buffer.in + offsets[part], root == context_.rank ? buffer.out : nullptr,
                          part_bytes(offsets, part) / element_bytes, type, reduce_op, root,
                          communicator_->get(), stream());
  }
  return result;
}

// Work that was queued may still fail, though nobody waits for it here.
Status NcclBackend::look_at_device() {
  const std::uint64_t now = monotonic_ns();
  if (!last_ || now < next_look_ns_) return {};
  next_look_ns_ = now + options_.look_ns;
  CIRANDA_ASSERT(communicator_ != nullptr);  // it has queued what `last_` stands behind
  if (const auto ready = communicator_->ready(); !ready) return ready.error();
  const auto passed = last_->passed();
  if (!passed) return passed.error();
  if (passed.value()) last_.reset();
  return {};
}

std::uint64_t NcclBackend::look_again_ns() const {
  if (broken_) return 0;
  if (!executions_.empty()) return communicator_ ? kPollNs : 0;
  return last_ ? options_.look_ns : 0;
}

void NcclBackend::break_off(Error why) {
  if (broken_) return;
  why.text = "NCCL on rank " + std::to_string(context_.rank) + ": " + why.text;
  broken_ = std::move(why);
}

void NcclBackend::abort(const Error& why) {
  broken_ = why;
  if (communicator_) communicator_->abort();
  exchange_.reset();
  last_.reset();
  for (Pending& pending : std::exchange(executions_, {})) pending.execution.done(why, nullptr);
}

}  // namespace ciranda
