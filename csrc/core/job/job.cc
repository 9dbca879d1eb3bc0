// The API of C++ programs without torch. No other file of core throws.
#include "core/job/job.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/base/assert.h"
#include "core/job/world.h"
#include "core/wire/operation_name.h"

namespace ciranda {
namespace {

template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().text);
  return std::move(result).value();
}

void check(const Status& status) {
  if (!status) throw std::runtime_error(status.error().text);
}

// Returns the Handover of this process, which serves one Job after the other.
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
    case Job::Op::kAdasum:
      return ReduceOp::kAdasum;
  }
  throw std::runtime_error("allreduce: op is not a value of Job::Op");
}

const Group& listed(const std::shared_ptr<const Group>& group) {
  if (group != nullptr) return *group;
  throw std::runtime_error(
      "ProcessSet() stands for all ranks and has no list of them; use global_process_set()");
}

}  // namespace

// -------------------------------------------------------------------------------------------
// Process sets

ProcessSet::ProcessSet(std::shared_ptr<const Group> group, int rank)
    : group_(std::move(group)), rank_(group_->index_of(rank)) {}

std::uint32_t ProcessSet::id() const {
  return group_ == nullptr ? kWorldGroup : group_->id;
}
const std::vector<int>& ProcessSet::ranks() const {
  return listed(group_).ranks;
}
int ProcessSet::size() const {
  return listed(group_).size();
}
int ProcessSet::rank() const {
  static_cast<void>(listed(group_));
  return rank_;
}

Result<ProcessSet> make_process_set(Engine& engine, std::vector<Rank> ranks) {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty() || std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    std::string text;
    for (const Rank rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return Error{
        .code = ErrorCode::kInvalidArgument,
        .text = "add_process_set: name at least one rank, and each rank once, not [" + text + "]"};
  }
  auto group = engine.add_group(std::move(ranks));
  if (!group) return group.error();
  CIRANDA_ASSERT(group.value() != nullptr && group.value()->id != kWorldGroup);
  return ProcessSet(std::move(group).value(), engine.rank());
}

ProcessSet whole_process_set(const Engine& engine) {
  return ProcessSet(engine.group(kWorldGroup), engine.rank());
}

Result<GroupId> number_of(const ProcessSet& process_set, const Engine& engine) {
  const GroupId id = process_set.id();
  if (id == kWorldGroup) return id;
  const auto found = engine.group(id);
  // The engine reports a removed set itself, with the operation's name.
  if (found == nullptr || found == process_set.group()) return id;
  return Error{.code = ErrorCode::kInvalidArgument,
               .text = "process set " + std::to_string(id) +
                       " belongs to an earlier job; call add_process_set() again on every rank"};
}

// -------------------------------------------------------------------------------------------

class Job::Impl {
 public:
  Impl() : world_(unwrap(World::start(unwrap(read_process_config()), handover()))) {}
  ~Impl() { world_->shutdown(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const RankInfo& rank_info() const { return world_->rank_info(); }
  Engine& engine() const { return *world_->engine(); }

  // Runs the operation in place on one tensor of `count` elements at `data`; a barrier has no
  // tensor. Blocks.
  void run(RequestSpec spec, const ProcessSet& process_set, DType dtype, void* data,
           std::size_t count) {
    spec.group = unwrap(number_of(process_set, engine()));
    if (spec.name.empty()) spec.name = unnamed(spec.kind);
    Submission submission;
    if (spec.kind != OpKind::kBarrier) {
      spec.backend = engine().backend_choice().cpu;
      spec.tensors.push_back({dtype, {static_cast<std::int64_t>(count)}});
      submission.inputs = {static_cast<const std::byte*>(data)};
      submission.outputs = {static_cast<std::byte*>(data)};
    }
    submission.spec = std::make_shared<const RequestSpec>(std::move(spec));
    const Handle handle = unwrap(engine().submit(std::move(submission)));
    check(engine().wait(handle));
  }

  void allreduce(DType dtype, void* data, std::size_t count, Op op, const std::string& name,
                 const ProcessSet& process_set) {
    RequestSpec spec;
    spec.name = name;
    spec.op = reduce_op(op);
    run(std::move(spec), process_set, dtype, data, count);
  }

 private:
  std::unique_ptr<World> world_;
};

Job::Job() : impl_(std::make_unique<Impl>()) {}
Job::~Job() = default;
Job::Job(Job&&) noexcept = default;
Job& Job::operator=(Job&&) noexcept = default;

int Job::rank() const {
  return impl_->rank_info().rank;
}
int Job::size() const {
  return impl_->rank_info().size;
}
int Job::local_rank() const {
  return impl_->rank_info().local_rank;
}
int Job::local_size() const {
  return impl_->rank_info().local_size;
}

void Job::allreduce(float* data, std::size_t count, Op op, const std::string& name,
                    const ProcessSet& process_set) {
  impl_->allreduce(DType::kFloat32, data, count, op, name, process_set);
}
void Job::allreduce(double* data, std::size_t count, Op op, const std::string& name,
                    const ProcessSet& process_set) {
  impl_->allreduce(DType::kFloat64, data, count, op, name, process_set);
}
void Job::allreduce(std::int32_t* data, std::size_t count, Op op, const std::string& name,
                    const ProcessSet& process_set) {
  impl_->allreduce(DType::kInt32, data, count, op, name, process_set);
}
void Job::allreduce(std::int64_t* data, std::size_t count, Op op, const std::string& name,
                    const ProcessSet& process_set) {
  impl_->allreduce(DType::kInt64, data, count, op, name, process_set);
}

void Job::broadcast(void* data, std::size_t bytes, int root, const std::string& name,
                    const ProcessSet& process_set) {
  if (root < 0 || root >= size()) {
    throw std::runtime_error("broadcast: root " + std::to_string(root) +
                             " is not a rank; ranks are 0 to " + std::to_string(size() - 1));
  }
  RequestSpec spec;
  spec.name = name;
  spec.kind = OpKind::kBroadcast;
  spec.root = root;
  impl_->run(std::move(spec), process_set, DType::kUInt8, data, bytes);
}

void Job::barrier(const ProcessSet& process_set) {
  RequestSpec spec;
  spec.kind = OpKind::kBarrier;
  impl_->run(std::move(spec), process_set, DType::kUInt8, nullptr, 0);
}

ProcessSet Job::add_process_set(std::vector<int> ranks) {
  return unwrap(make_process_set(impl_->engine(), std::move(ranks)));
}

void Job::remove_process_set(const ProcessSet& process_set) {
  Engine& engine = impl_->engine();
  check(engine.remove_group(unwrap(number_of(process_set, engine))));
}

ProcessSet Job::global_process_set() const {
  return whole_process_set(impl_->engine());
}

int Job::join() {
  return unwrap(impl_->engine().join());
}

}  // namespace ciranda
