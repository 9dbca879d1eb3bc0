// The outermost API of C++ programs: the one place of core that throws.
#include <ciranda/ciranda.h>

#include <stdexcept>
#include <utility>

#include "core/runtime/world.h"

namespace ciranda {
namespace {

template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().text);
  return std::move(result).value();
}

// Of the process: a Job may follow another one.
Handover& handover() {
  static Handover kept;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  return kept;
}

ReduceOp reduce_op(Job::Op op) {
  switch (op) {
    case Job::Op::kSum:
      return ReduceOp::kSum;
    case Job::Op::kAverage:
      return ReduceOp::kAverage;
    case Job::Op::kMin:
      return ReduceOp::kMin;
    case Job::Op::kMax:
      return ReduceOp::kMax;
    case Job::Op::kProduct:
      return ReduceOp::kProduct;
  }
  throw std::runtime_error("allreduce: op is none of Job::Op");
}

}  // namespace

class Job::Impl {
 public:
  Impl() : world_(unwrap(World::start(unwrap(read_process_config()), handover()))) {}
  ~Impl() { world_->engine()->shutdown(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Place& place() const { return world_->place(); }

  // One tensor of `count` elements at `data`, in place; none for a barrier.
  void run(RequestSpec spec, DType dtype, void* data, std::size_t count) {
    if (spec.name.empty()) spec.name = unnamed(spec.kind);
    Submission submission;
    if (spec.kind != OpKind::kBarrier) {
      spec.backend = world_->engine()->operations().cpu;
      spec.tensors.push_back({dtype, {static_cast<std::int64_t>(count)}});
      submission.inputs = {static_cast<const std::byte*>(data)};
      submission.outputs = {static_cast<std::byte*>(data)};
    }
    submission.spec = std::make_shared<const RequestSpec>(std::move(spec));
    Engine& engine = *world_->engine();
    const Handle handle = unwrap(engine.submit(std::move(submission)));
    const Status status = engine.wait(handle);
    if (!status) throw std::runtime_error(status.error().text);
  }

  void allreduce(DType dtype, void* data, std::size_t count, Op op, const std::string& name) {
    RequestSpec spec;
    spec.name = name;
    spec.op = reduce_op(op);
    run(std::move(spec), dtype, data, count);
  }

 private:
  std::unique_ptr<World> world_;
};

Job::Job() : impl_(std::make_unique<Impl>()) {}
Job::~Job() = default;
Job::Job(Job&&) noexcept = default;
Job& Job::operator=(Job&&) noexcept = default;

int Job::rank() const {
  return impl_->place().rank;
}
int Job::size() const {
  return impl_->place().size;
}
int Job::local_rank() const {
  return impl_->place().local_rank;
}
int Job::local_size() const {
  return impl_->place().local_size;
}

void Job::allreduce(float* data, std::size_t count, Op op, const std::string& name) {
  impl_->allreduce(DType::kFloat32, data, count, op, name);
}
void Job::allreduce(double* data, std::size_t count, Op op, const std::string& name) {
  impl_->allreduce(DType::kFloat64, data, count, op, name);
}
void Job::allreduce(std::int32_t* data, std::size_t count, Op op, const std::string& name) {
  impl_->allreduce(DType::kInt32, data, count, op, name);
}
void Job::allreduce(std::int64_t* data, std::size_t count, Op op, const std::string& name) {
  impl_->allreduce(DType::kInt64, data, count, op, name);
}

void Job::broadcast(void* data, std::size_t bytes, int root, const std::string& name) {
  if (root < 0 || root >= size()) {
    throw std::runtime_error("broadcast: root " + std::to_string(root) +
                             " is not a rank; ranks are 0 to " + std::to_string(size() - 1));
  }
  RequestSpec spec;
  spec.name = name;
  spec.kind = OpKind::kBroadcast;
  spec.root = root;
  impl_->run(std::move(spec), DType::kUInt8, data, bytes);
}

void Job::barrier() {
  RequestSpec spec;
  spec.kind = OpKind::kBarrier;
  impl_->run(std::move(spec), DType::kUInt8, nullptr, 0);
}

}  // namespace ciranda
