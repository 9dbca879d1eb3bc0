#include "backend/nccl/mock_nccl.h"

#include <cuda_fp8.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "backend/nccl/fake_device.h"
#include "core/kernels/reduce.h"

namespace ciranda::testing {

// The ranks that share a unique id.
struct Clique {
  using Bytes = std::vector<std::byte>;
  struct Round {
    std::map<int, MockNccl::Call> calls;  // by rank
    std::map<int, Bytes> inputs;
    int left = 0;  // ranks that have their result
  };
  int ranks = 0;
  std::set<int> joined;
  std::map<std::uint64_t, Round> rounds;  // by number of the collective
  std::map<std::pair<int, int>, std::deque<Bytes>> mail;
};

namespace {

using State = ncclComm::State;
using Kind = MockNccl::Call::Kind;
constexpr int kPolls = 3;

// Of the calling thread.
struct Group {
  int depth = 0;
  struct Member {
    ncclComm_t comm;
    FakeStream* stream;
    std::vector<MockNccl::Call> calls;
  };
  std::vector<Member> members;
};
thread_local Group group;

std::optional<DType> dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return DType::kUInt8;
    case ncclInt8:
      return DType::kInt8;
    case ncclInt32:
      return DType::kInt32;
    case ncclInt64:
      return DType::kInt64;
    case ncclFloat16:
      return DType::kFloat16;
    case ncclBfloat16:
      return DType::kBFloat16;
    case ncclFloat32:
      return DType::kFloat32;
    case ncclFloat64:
      return DType::kFloat64;
    default:
      return std::nullopt;
  }
}

std::size_t bytes_of(ncclDataType_t type) {
  const auto dtype = dtype_of(type);
  return dtype ? dtype_bytes(*dtype) : 1;
}

template <typename Float8>
void reduce_float8(const MockNccl::Call& call, const std::vector<const std::byte*>& inputs,
                   std::byte* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    float result = 0;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      Float8 element;
      std::memcpy(&element, inputs[rank] + i, 1);
      const auto value = static_cast<float>(element);
      result = rank == 0             ? value
               : call.op == ncclMax  ? std::max(result, value)
               : call.op == ncclMin  ? std::min(result, value)
               : call.op == ncclProd ? result * value
                                     : result + value;
    }
    if (call.op == ncclAvg) result /= static_cast<float>(inputs.size());
    const Float8 rounded(result);
    std::memcpy(out + i, &rounded, 1);
  }
}

void reduce(const MockNccl::Call& call, const std::vector<const std::byte*>& inputs, std::byte* out,
            std::size_t count) {
  if (call.type == ncclFloat8e4m3) return reduce_float8<__nv_fp8_e4m3>(call, inputs, out, count);
  if (call.type == ncclFloat8e5m2) return reduce_float8<__nv_fp8_e5m2>(call, inputs, out, count);
  kernels::ReduceArgs args{.dtype = *dtype_of(call.type), .op = ReduceOp::kSum};
  if (call.op == ncclMin) args.op = ReduceOp::kMin;
  if (call.op == ncclMax) args.op = ReduceOp::kMax;
  if (call.op == ncclProd) args.op = ReduceOp::kProduct;
  if (call.op == ncclAvg) args.postscale = 1.0 / static_cast<double>(inputs.size());
  if (call.op >= ncclNumOps) args.prescale = call.factor;
  kernels::reduce(args, inputs, {&out, 1}, count);
}

std::size_t input_bytes(const MockNccl::Call& call, int rank, int ranks) {
  const std::size_t bytes = call.count * bytes_of(call.type);
  if (call.kind == Kind::kReduceScatter) return bytes * static_cast<std::size_t>(ranks);
  return call.kind == Kind::kBroadcast && call.peer != rank ? 0 : bytes;
}

}  // namespace

// ---------------------------------------------------------------------------------------------
// For tests

void MockNccl::set_version_of(int device, int code) {
  const std::lock_guard lock(mutex_);
  versions_[device] = code;
}

void MockNccl::block_aborts(bool block) {
  const std::lock_guard lock(mutex_);
  aborts_block_ = block;
  news_.notify_all();
}

void MockNccl::hold_groups(bool hold) {
  const std::lock_guard lock(mutex_);
  groups_wait_ = hold;
}

void MockNccl::fail_later(int rank, ncclResult_t result) {
  const std::lock_guard lock(mutex_);
  for (auto& comm : comms_) {
    const bool ended = comm->state == State::kDestroyed || comm->state == State::kAborted;
    if (comm->rank == rank && !ended) comm->async_error = result;
  }
}

std::vector<std::string> MockNccl::breaches() {
  const std::lock_guard lock(mutex_);
  return breaches_;
}

int MockNccl::alive() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(comms_.begin(), comms_.end(), [](const auto& comm) {
    return comm->state != State::kDestroyed && comm->state != State::kAborted;
  }));
}

int MockNccl::aborts() {
  const std::lock_guard lock(mutex_);
  return aborts_;
}

// ---------------------------------------------------------------------------------------------
// Communicators

int MockNccl::version() {
  const std::lock_guard lock(mutex_);
  const auto found = versions_.find(FakeStream::current_device());
  return found == versions_.end() ? NCCL_VERSION(2, 30, 7) : found->second;
}

const char* MockNccl::error_string(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "unhandled system error";
}

ncclResult_t MockNccl::get_unique_id(ncclUniqueId* id) {
  const std::lock_guard lock(mutex_);
  std::memset(id, 0, sizeof *id);
  const std::string text = "clique " + std::to_string(++ids_);
  std::memcpy(id->internal, text.data(), text.size());
  cliques_[text] = std::make_shared<Clique>();
  return ncclSuccess;
}

ncclResult_t MockNccl::comm_init_rank_config(ncclComm_t* comm, int ranks, const ncclUniqueId& id,
                                             int rank, ncclConfig_t* config) {
  const std::lock_guard lock(mutex_);
  if (config->blocking != 0) breach("a communicator that blocks");
  const auto clique = cliques_.find(id.internal);
  if (clique == cliques_.end()) {
    breach("a communicator with an id that nobody made");
    return ncclInvalidArgument;
  }
  if (failing_init_ == rank) return ncclSystemError;
  clique->second->ranks = ranks;
  if (!clique->second->joined.insert(rank).second) breach("two ranks with one number");
  auto& made = comms_.emplace_back(std::make_unique<ncclComm>());
  made->clique = clique->second;
  made->rank = rank;
  made->device = FakeStream::current_device();
  made->polls_left = kPolls;
  *comm = made.get();
  return ncclInProgress;
}

ncclResult_t MockNccl::comm_get_async_error(ncclComm_t comm, ncclResult_t* error) {
  std::vector<std::function<void()>> launches;
  {
    const std::lock_guard lock(mutex_);
    if (comm->state == State::kDestroyed || comm->state == State::kAborted) {
      breach("a look at a communicator that is no more");
      return ncclInvalidArgument;
    }
    *error = comm->async_error;
    if (*error != ncclSuccess) return ncclSuccess;
    *error = ncclInProgress;
    if (comm->polls_left > 0 && --comm->polls_left > 0) return ncclSuccess;
    switch (comm->state) {
      case State::kMaking:
        if (never_connects_ || static_cast<int>(comm->clique->joined.size()) < comm->clique->ranks)
          return ncclSuccess;
        comm->state = State::kReady;
        break;
      case State::kBusy:
        if (groups_wait_) return ncclSuccess;
        launches.swap(comm->launches);
        comm->state = State::kReady;
        break;
      case State::kFinalizing:
        if (never_finalizes_ || comm->running > 0) return ncclSuccess;
        comm->state = State::kFinalized;
        news_.notify_all();
        break;
      default:
        break;
    }
    *error = ncclSuccess;
  }
  for (const auto& launch : launches) launch();
  return ncclSuccess;
}

ncclResult_t MockNccl::comm_finalize(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  if (!usable(comm, "finalize")) return ncclInvalidUsage;
  comm->state = State::kFinalizing;
  comm->polls_left = kPolls;
  return ncclInProgress;
}

ncclResult_t MockNccl::comm_destroy(ncclComm_t comm) {
  std::unique_lock lock(mutex_);
  check_device(comm);
  if (comm->state != State::kFinalized) breach("destroy of what is not finalized");
  if (!comm->factors.empty()) breach("operators are left over");
  news_.wait(lock, [&] {
    return std::all_of(comms_.begin(), comms_.end(), [comm](const auto& peer) {
      return peer->clique != comm->clique || peer->state >= State::kFinalized;
    });
  });
  comm->state = State::kDestroyed;
  return ncclSuccess;
}

ncclResult_t MockNccl::comm_abort(ncclComm_t comm) {
  std::unique_lock lock(mutex_);
  check_device(comm);
  if (comm->state == State::kDestroyed || comm->state == State::kAborted) {
    breach("abort of what is no more");
    return ncclInvalidArgument;
  }
  comm->state = State::kAborted;
  news_.notify_all();
  news_.wait(lock, [&] { return comm->running == 0 && !aborts_block_; });
  ++aborts_;
  return ncclSuccess;
}

void MockNccl::check_device(ncclComm_t comm) {
  if (FakeStream::current_device() != comm->device) breach("an end on another device");
}

bool MockNccl::usable(ncclComm_t comm, const std::string& call) {
  if (comm->state == State::kReady) return true;
  breach(call + " on a communicator that is not ready");
  return false;
}

// ---------------------------------------------------------------------------------------------
// Calls

ncclResult_t MockNccl::red_op_create_pre_mul_sum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                                 ncclScalarResidence_t residence, ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  if (!usable(comm, "an operator")) return ncclInvalidUsage;
  if (residence != ncclScalarHostImmediate) breach("a factor in memory of the device");
  double factor = 0;
  kernels::cast(*dtype_of(type), static_cast<const std::byte*>(scalar), DType::kFloat64,
                reinterpret_cast<std::byte*>(&factor), 1);
  *op = static_cast<ncclRedOp_t>(ncclNumOps + comm->operators++);
  comm->factors[*op] = factor;
  return ncclSuccess;
}

ncclResult_t MockNccl::red_op_destroy(ncclRedOp_t op, ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  if (!usable(comm, "the end of an operator")) return ncclInvalidUsage;
  if (comm->factors.erase(op) == 0) breach("the end of an operator that is none");
  return ncclSuccess;
}

ncclResult_t MockNccl::group_start() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t MockNccl::add(Call call, ncclComm_t comm, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (!usable(comm, "a call")) return ncclInvalidUsage;
  if (group.depth == 0) breach("a call outside a group");
  if (call.count == 0) breach("a call for nothing");
  auto* const to = reinterpret_cast<FakeStream*>(stream);
  if (to->device() != comm->device) breach("a stream of another device");
  if (call.op >= ncclNumOps) {
    if (!comm->factors.contains(call.op)) breach("an operator that is none");
    call.factor = comm->factors[call.op];
  }
  auto member = std::find_if(group.members.begin(), group.members.end(),
                             [comm](const auto& known) { return known.comm == comm; });
  if (member == group.members.end()) {
    member = group.members.insert(member, {.comm = comm, .stream = to, .calls = {}});
  }
  member->calls.push_back(call);
  return ncclSuccess;
}

ncclResult_t MockNccl::group_end() {
  if (group.depth == 0 || --group.depth > 0) {
    const std::lock_guard lock(mutex_);
    breach("groups that do not end once for each beginning");
    return ncclInvalidUsage;
  }
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, stream, calls] : std::exchange(group.members, {})) {
    std::function<void()> launch;
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t first = comm->collectives;
      for (const Call& call : calls) {
        if (call.kind != Kind::kSend && call.kind != Kind::kRecv) ++comm->collectives;
      }
      ++comm->running;
      launch = [this, comm = comm, stream = stream, calls = calls, first] {
        stream->run([this, comm, calls, first] { run(comm, calls, first); });
      };
      if (comm->clique->ranks > 1) {
        comm->state = State::kBusy;
        comm->polls_left = kPolls;
        comm->launches.push_back(std::move(launch));
        result = ncclInProgress;
        continue;
      }
    }
    launch();
  }
  return result;
}

ncclResult_t MockNccl::all_reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::kAllReduce, in, out, count, type, op}, comm, stream);
}
ncclResult_t MockNccl::reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::kReduce, in, out, count, type, op, root}, comm, stream);
}
ncclResult_t MockNccl::reduce_scatter(const void* in, void* out, std::size_t count,
                                      ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream) {
  return add({Kind::kReduceScatter, in, out, count, type, op}, comm, stream);
}
ncclResult_t MockNccl::broadcast(const void* in, void* out, std::size_t count, ncclDataType_t type,
                                 int root, ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::kBroadcast, in, out, count, type, ncclSum, root}, comm, stream);
}
ncclResult_t MockNccl::all_gather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::kAllGather, in, out, count, type}, comm, stream);
}
ncclResult_t MockNccl::send(const void* in, std::size_t count, ncclDataType_t type, int to,
                            ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::kSend, in, nullptr, count, type, ncclSum, to}, comm, stream);
}
ncclResult_t MockNccl::recv(void* out, std::size_t count, ncclDataType_t type, int from,
                            ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::kRecv, nullptr, out, count, type, ncclSum, from}, comm, stream);
}

// ---------------------------------------------------------------------------------------------
// On the device

void MockNccl::run(ncclComm_t comm, const std::vector<Call>& calls, std::uint64_t first) {
  std::unique_lock lock(mutex_);
  auto& mail = comm->clique->mail;
  for (const Call& call : calls) {
    if (call.kind != Kind::kSend) continue;
    const auto* in = static_cast<const std::byte*>(call.in);
    mail[{comm->rank, call.peer}].emplace_back(in, in + call.count * bytes_of(call.type));
    news_.notify_all();
  }
  for (const Call& call : calls) {
    if (call.kind == Kind::kSend) continue;
    if (call.kind != Kind::kRecv) {
      run_collective(lock, comm, call, first++);
      continue;
    }
    auto& box = mail[{call.peer, comm->rank}];
    news_.wait(lock, [&] { return !box.empty() || comm->state == State::kAborted; });
    if (comm->state == State::kAborted) break;
    if (box.front().size() != call.count * bytes_of(call.type)) breach("a receive of another size");
    std::memcpy(call.out, box.front().data(), box.front().size());
    box.pop_front();
  }
  --comm->running;
  news_.notify_all();
}

void MockNccl::run_collective(std::unique_lock<std::mutex>& lock, ncclComm_t comm, const Call& call,
                              std::uint64_t number) {
  Clique& clique = *comm->clique;
  Clique::Round& round = clique.rounds[number];
  const auto* in = static_cast<const std::byte*>(call.in);
  round.inputs[comm->rank] = Clique::Bytes(in, in + input_bytes(call, comm->rank, clique.ranks));
  round.calls.emplace(comm->rank, call);
  if (!round.calls.begin()->second.fits(call)) breach("ranks that call different things");
  news_.notify_all();
  const auto all = static_cast<std::size_t>(clique.ranks);
  news_.wait(lock, [&] { return round.calls.size() == all || comm->state == State::kAborted; });
  if (comm->state == State::kAborted) return;

  auto* const out = static_cast<std::byte*>(call.out);
  const std::size_t bytes = call.count * bytes_of(call.type);
  std::vector<const std::byte*> inputs;
  const bool scatters = call.kind == Kind::kReduceScatter;
  for (const auto& [rank, input] : round.inputs) {
    inputs.push_back(input.data() + (scatters ? bytes * static_cast<std::size_t>(comm->rank) : 0));
  }
  switch (call.kind) {
    case Kind::kReduce:
      if (comm->rank != call.peer) break;
      [[fallthrough]];
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
      testing::reduce(call, inputs, out, call.count);
      break;
    case Kind::kBroadcast:
      std::memcpy(out, round.inputs[call.peer].data(), bytes);
      break;
    case Kind::kAllGather:
      for (std::size_t rank = 0; rank < all; ++rank)
        std::memcpy(out + rank * bytes, inputs[rank], bytes);
      break;
    default:
      break;
  }
  if (++round.left == clique.ranks) clique.rounds.erase(number);
}

}  // namespace ciranda::testing
