#include <pthread.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/backend/gloo/gloo.h"
#include "core/backend/gloo/gloo_group.h"
#include "core/base/assert.h"
#include "core/base/mutex.h"
#include "core/kernels/reduce.h"

namespace ciranda {
namespace {

// ------------------------------------------------------------------------------------------------
// One operation, as blocking calls of Gloo

// Returns the lengths of `count` parts that begin at `offsets` and follow one another.
std::vector<std::uint64_t> lengths(const std::uint64_t* offsets, std::size_t count) {
  std::vector<std::uint64_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    CIRANDA_ASSERT(offsets[i] <= offsets[i + 1]);
    bytes[i] = offsets[i + 1] - offsets[i];
  }
  return bytes;
}

// Holds several members side by side.
class StagingMemory {
 public:
  explicit StagingMemory(std::uint64_t bytes)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(bytes)), bytes_(bytes) {}
  std::byte* data() const { return memory_.get(); }
  std::uint64_t size() const { return bytes_; }

 private:
  const std::unique_ptr<std::byte[]> memory_;
  const std::uint64_t bytes_;
};

class Run {
 public:
  Run(GlooGroup& group, const BackendContext& context, const Execution& execution)
      : group_(group),
        self_(static_cast<std::size_t>(context.rank)),
        ranks_(static_cast<std::size_t>(context.size)),
        local_rank_(static_cast<std::size_t>(context.local_rank)),
        execution_(execution),
        op_(execution.op) {
    CIRANDA_ASSERT(self_ < ranks_);
    CIRANDA_ASSERT(!op_.in_arena || local_rank_ < execution_.arena.size());  // see leaves_arena()
    CIRANDA_ASSERT(op_.in_arena || !execution_.buffers.empty());
  }

  Status collective() {
    switch (op_.kind) {
      case OpKind::kAllreduce:
        return allreduce();
      case OpKind::kBroadcast:
        return broadcast();
      case OpKind::kAllgather:
        return allgather();
      case OpKind::kAlltoall:
        return alltoall();
      case OpKind::kReducescatter:
        return reducescatter();
      default:
        break;  // moves no data: the engine handles it
    }
    CIRANDA_UNREACHABLE();
  }

 private:
  Status allreduce() {
    if (op_.dtype == DType::kFloat16 && op_.op == ReduceOp::kAverage)
      return average_of_halves(execution_.buffers);
    if (op_.in_arena) {
      std::byte* const bucket = execution_.arena[local_rank_];
      return allreduce_in_place(bucket, bucket, execution_.arena_bytes);
    }
    const Buffers& buffers = execution_.buffers;
    if (buffers.size() == 1) {
      return allreduce_in_place(buffers[0].in, buffers[0].out, buffers[0].in_bytes);
    }
    const StagingMemory stage(bytes_of(buffers));
    copy_in(stage, op_.prescale);
    CIRANDA_TRY(group_.allreduce(op_.dtype, op_.op, stage.data(), stage.data(), stage.size()));
    copy_out(stage, postscale());
    return {};
  }

  Status average_of_halves(Buffers buffers) {
    constexpr DType kWide = DType::kFloat32;  // their sum may exceed 65,504
    if (op_.in_arena) {
      std::byte* const bucket = execution_.arena[local_rank_];
      buffers.push_back({bucket, bucket, execution_.arena_bytes, execution_.arena_bytes});
    }
    const StagingMemory stage(2 * bytes_of(buffers));
    for (std::byte* wide = stage.data(); const Buffer& buffer : buffers) {
      kernels::cast(op_.dtype, buffer.in, kWide, wide, buffer.in_bytes / 2, op_.prescale);
      wide += 2 * buffer.in_bytes;
    }
    CIRANDA_TRY(group_.allreduce(kWide, op_.op, stage.data(), stage.data(), stage.size()));
    for (std::byte* wide = stage.data(); const Buffer& buffer : buffers) {
      kernels::cast(kWide, wide, op_.dtype, buffer.out, buffer.out_bytes / 2, postscale());
      wide += 2 * buffer.out_bytes;
    }
    return {};
  }

  Status allreduce_in_place(const std::byte* in, std::byte* out, std::uint64_t bytes) {
    if (op_.prescale != 1.0) {
      copy_scaled(out, in, bytes, op_.prescale);
      in = out;
    }
    CIRANDA_TRY(group_.allreduce(op_.dtype, op_.op, in, out, bytes));
    copy_scaled(out, out, bytes, postscale());
    return {};
  }

  Status broadcast() {
    const Buffers& buffers = execution_.buffers;
    if (buffers.size() == 1) {
      return group_.broadcast(op_.root, buffers[0].in, buffers[0].out, buffers[0].in_bytes);
    }
    const StagingMemory stage(bytes_of(buffers));
    copy_in(stage, 1.0);
    CIRANDA_TRY(group_.broadcast(op_.root, stage.data(), stage.data(), stage.size()));
    copy_out(stage, 1.0);
    return {};
  }

  Status allgather() {
    CIRANDA_ASSERT(execution_.offsets.size() == ranks_ + 1);
    const Buffer& buffer = execution_.buffers[0];
    return group_.allgather(buffer.in, buffer.out, lengths(execution_.offsets.data(), ranks_));
  }

  Status alltoall() {
    CIRANDA_ASSERT(execution_.offsets.size() == ranks_ * (ranks_ + 1));
    const Buffer& buffer = execution_.buffers[0];
    const auto sent_by = [&](std::size_t rank) {
      return lengths(&execution_.offsets[rank * (ranks_ + 1)], ranks_);
    };
    std::vector<std::uint64_t> received;
    for (std::size_t rank = 0; rank < ranks_; ++rank) received.push_back(sent_by(rank)[self_]);
    return group_.alltoall(buffer.in, sent_by(self_), buffer.out, received);
  }

  // Gloo has no reducescatter for any size and any function. So each rank receives the other ranks'
  // inputs to its part and reduces them together. No algorithm sends less.
  Status reducescatter() {
    CIRANDA_ASSERT(execution_.offsets.size() == ranks_ + 1);
    const Buffer& buffer = execution_.buffers[0];
    const std::uint64_t bytes = buffer.out_bytes;
    const StagingMemory parts(ranks_ * bytes);
    CIRANDA_TRY(group_.alltoall(buffer.in, lengths(execution_.offsets.data(), ranks_), parts.data(),
                                std::vector<std::uint64_t>(ranks_, bytes)));
    copy_scaled(parts.data(), parts.data(), ranks_ * bytes, op_.prescale);
    for (std::size_t rank = 0; rank < ranks_;) {
      std::vector<const std::byte*> inputs;
      if (rank > 0) inputs.push_back(buffer.out);
      while (rank < ranks_ && inputs.size() < kLocalRanksMax) {
        inputs.push_back(parts.data() + rank++ * bytes);
      }
      const double scale = rank == ranks_ ? postscale() : 1.0;
      kernels::reduce({.dtype = op_.dtype, .op = op_.op, .postscale = scale}, inputs,
                      {&buffer.out, 1}, bytes / dtype_bytes(op_.dtype));
    }
    return {};
  }

  double postscale() const {
    return op_.op == ReduceOp::kAverage ? op_.postscale / static_cast<double>(ranks_)
                                        : op_.postscale;
  }

  void copy_scaled(std::byte* to, const std::byte* from, std::uint64_t bytes, double factor) const {
    if (factor != 1.0) {
      kernels::reduce({.dtype = op_.dtype, .op = ReduceOp::kSum, .prescale = factor}, {&from, 1},
                      {&to, 1}, bytes / dtype_bytes(op_.dtype));
    } else if (to != from) {
      kernels::copy(to, from, bytes);
    }
  }

  void copy_in(const StagingMemory& stage, double factor) const {
    std::byte* to = stage.data();
    for (const Buffer& buffer : execution_.buffers) {
      copy_scaled(to, buffer.in, buffer.in_bytes, factor);
      to += buffer.in_bytes;
    }
    CIRANDA_ASSERT(to == stage.data() + stage.size());
  }

  void copy_out(const StagingMemory& stage, double factor) const {
    const std::byte* from = stage.data();
    for (const Buffer& buffer : execution_.buffers) {
      copy_scaled(buffer.out, from, buffer.out_bytes, factor);
      from += buffer.out_bytes;
    }
    CIRANDA_ASSERT(from == stage.data() + stage.size());
  }

  GlooGroup& group_;
  const std::size_t self_;
  const std::size_t ranks_;
  const std::size_t local_rank_;
  const Execution& execution_;
  const FusedOp& op_;
};

// ------------------------------------------------------------------------------------------------
// The thread

struct Queued {
  explicit Queued(Execution what) : execution(std::move(what)) {}
  Execution execution;
  Status status = {};              // written by the thread, until `done`
  std::atomic<bool> done = false;  // the thread no longer touches the memory
};

// A thread that connects the ranks and runs operations in the order in which they were pushed.
class GlooThread {
 public:
  GlooThread(GlooGroup& group, const BackendContext& context,
             std::vector<std::vector<std::byte>> addresses)
      : group_(group),
        context_(context),
        addresses_(std::move(addresses)),
        thread_([this] { loop(); }) {}
  ~GlooThread() { stop(); }

  // `operation` stays where it is until it is done or the thread is stopped.
  void push(Queued& operation) EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      CIRANDA_ASSERT(!stopped_);  // nothing starts after abort()
      queue_.push_back(&operation);
    }
    tell();
  }

  // Waits until the thread no longer uses any memory; never for another rank.
  void stop() EXCLUDES(mutex_) {
    if (!thread_.joinable()) return;
    {
      const MutexLock lock(mutex_);
      stopped_ = true;
    }
    tell();
    group_.cancel();
    thread_.join();
  }

 private:
  void loop() {
    ::pthread_setname_np(::pthread_self(), "ciranda-gloo");
    Status usable = group_.connect(addresses_);
    while (Queued* const operation = next()) {
      if (usable) usable = Run(group_, context_, operation->execution).collective();
      operation->status = usable;
      operation->done.store(true, std::memory_order_release);
      context_.wake();
    }
  }

  // Blocks until an operation is queued. Returns null if the thread must stop.
  Queued* next() EXCLUDES(mutex_) {
    for (;;) {
      const std::uint32_t ticket = news_.load(std::memory_order_acquire);
      {
        const MutexLock lock(mutex_);
        if (stopped_) return nullptr;
        if (!queue_.empty()) {
          Queued* const first = queue_.front();
          queue_.pop_front();
          return first;
        }
      }
      news_.wait(ticket, std::memory_order_acquire);
    }
  }

  void tell() {
    news_.fetch_add(1, std::memory_order_release);
    news_.notify_one();
  }

  // Constant after construction.
  GlooGroup& group_;
  const BackendContext& context_;
  const std::vector<std::vector<std::byte>> addresses_;

  Mutex mutex_;
  std::deque<Queued*> queue_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::atomic<std::uint32_t> news_ = 0;  // the thread sleeps on it
  std::thread thread_;
};

// ------------------------------------------------------------------------------------------------
// The backend

// The ranks exchange their addresses when the first operation starts. Operations that are started
// meanwhile wait for the exchange.
class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(BackendContext context) : context_(std::move(context)) {}

  bool supports(const FusedOp& op) const override { return op.kind != OpKind::kBarrier; }

  void start(Execution&& execution) override {
    CIRANDA_ASSERT(execution.device.empty() && !execution.work);
    Queued& operation = operations_.emplace_back(std::move(execution));
    if (thread_) return thread_->push(operation);
    if (!group_ && !broken_) listen();
  }

  bool advance() override {
    bool moved = exchange_ && exchange_->done() && !broken_;
    if (moved) begin();
    while (!operations_.empty() && !broken_ &&
           operations_.front().done.load(std::memory_order_acquire)) {
      finish_front();
      moved = true;
    }
    return moved;
  }

  bool idle() const override { return operations_.empty(); }

  // This rank cannot know which peers have not begun, so it names all.
  void blocked_on(std::vector<Rank>& out) const override {
    if (idle()) return;
    const Rank self = context_.locals[static_cast<std::size_t>(context_.local_rank)];
    for (const Rank local : context_.locals) {
      if (local != self) out.push_back(local);
    }
  }

  void abort(const Error& why) override {
    if (thread_) thread_->stop();
    for (Queued& operation : std::exchange(operations_, {})) {
      operation.execution.done(why, nullptr);
    }
  }

  // The thread needs the core on which a waiting thread would poll.
  bool will_wake() const override { return thread_.has_value(); }

  const Error* broken() const override { return broken_ ? &*broken_ : nullptr; }

 private:
  void listen() {
    CIRANDA_ASSERT(!group_ && !exchange_ && !thread_);
    auto group = GlooGroup::listen(context_.rank, context_.size, context_.address);
    if (!group) {
      broken_ = group.error();
      return;
    }
    group_ = std::move(group).value();
    exchange_ = context_.exchange("gloo", group_->addresses());
  }

  void begin() {
    CIRANDA_ASSERT(group_ && !thread_);  // by listen(), and once
    auto addresses = exchange_->result();
    exchange_.reset();
    if (!addresses) {
      broken_ = addresses.error();
      return;
    }
    thread_.emplace(*group_, context_, std::move(addresses).value());
    for (Queued& operation : operations_) thread_->push(operation);
  }

  // An error of one operation ends all: the ranks' connections are in the middle of that operation.
  void finish_front() {
    Queued& operation = operations_.front();
    if (!operation.status) {
      broken_ = operation.status.error();
      return;
    }
    const Done done = std::move(operation.execution.done);
    operations_.pop_front();
    done({}, nullptr);
  }

  const BackendContext context_;
  std::unique_ptr<GlooGroup> group_;
  std::unique_ptr<Exchange> exchange_;
  std::deque<Queued> operations_;
  std::optional<GlooThread> thread_;
  std::optional<Error> broken_;
};

}  // namespace

std::unique_ptr<Backend> make_gloo(BackendContext context) {
  return std::make_unique<GlooBackend>(std::move(context));
}

BackendFacts gloo_facts() {
  static const BackendFacts kFacts{.id = BackendId::kGloo,
                                   .available = true,
                                   .version = GlooGroup::version(),
                                   .path = GlooGroup::path()};
  return kFacts;
}

}  // namespace ciranda
