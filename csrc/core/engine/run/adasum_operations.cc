#include "core/engine/run/adasum_operations.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/kernels/combine.h"
#include "core/plan/adasum.h"

namespace ciranda {
namespace {

constexpr const char* kName = "ciranda.adasum";

std::unique_ptr<std::byte[]> bytes_without_value(std::uint64_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

}  // namespace

// Shared with the submissions: the engine may still write into it after the operation has failed.
struct AdasumOperations::Work {
  enum class Stage : std::uint8_t { kQueued, kSlices, kProducts, kCollect };

  explicit Work(Execution&& it)
      : execution(std::move(it)),
        ranks(execution.op.group->ranks.size()),
        element_bytes(dtype_bytes(execution.op.dtype)),
        elements(bytes_of(execution.buffers) / element_bytes),
        handle(std::make_shared<Operation>()) {
    CIRANDA_ASSERT(bytes_of(execution.buffers) % element_bytes == 0 && ranks > 0);
  }

  // The payload is the buffers of the operation's members side by side, as one rank has them. Each
  // rank gets one slice of every rank's payload.
  std::uint64_t slice_begin(std::size_t rank) const { return elements * rank / ranks; }
  std::uint64_t slice_elements(std::size_t rank) const {
    return slice_begin(rank + 1) - slice_begin(rank);
  }
  bool is_packed() const { return execution.buffers.size() > 1; }

  // Calls fn(index of the member, first element within the slice, elements) for each part of this
  // rank's slice that belongs to one member of the operation.
  template <typename Fn>
  void each_part(std::size_t self, Fn fn) const {
    const std::uint64_t begin = slice_begin(self), end = slice_begin(self + 1);
    std::uint64_t first = 0;
    for (std::size_t i = 0; i < execution.buffers.size(); ++i) {
      const std::uint64_t last = first + execution.buffers[i].in_bytes / element_bytes;
      const std::uint64_t from = std::max(begin, first), to = std::min(end, last);
      if (from < to) fn(i, from - begin, to - from);
      first = last;
    }
    CIRANDA_ASSERT(first == elements);  // each element belongs to one member
  }
  // Returns, for each rank, its elements in this rank's slice, starting at element `from`.
  std::vector<const std::byte*> rows(std::size_t self, std::uint64_t from) const {
    std::vector<const std::byte*> rows;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rows.push_back(slices.get() + (rank * slice_elements(self) + from) * element_bytes);
    }
    return rows;
  }

  Execution execution;
  std::size_t ranks;
  std::uint64_t element_bytes;
  std::uint64_t elements;               // of the payload
  std::unique_ptr<std::byte[]> packed;  // several members: their payload, later the result
  std::unique_ptr<std::byte[]> slices;  // by rank; in the end this rank's slice of the result
  std::vector<double> products;         // by member
  Handle handle;                        // of the operation that runs for it
  Status refused;
  Stage stage = Stage::kQueued;
};

void AdasumOperations::start(Execution&& execution) {
  waiting_.push_back(std::make_shared<Work>(std::move(execution)));
}

bool AdasumOperations::works_for(GroupId group) const {
  return std::ranges::any_of(
      waiting_, [&](const auto& work) { return work->execution.op.group->id == group; });
}

void AdasumOperations::blocked_on(std::vector<Rank>& out) const {
  if (waiting_.empty()) return;
  for (const Rank member : rank_.members_here(*waiting_.front()->execution.op.group)) {
    if (member != rank_.rank()) out.push_back(rank_.local_of(member));
  }
}

void AdasumOperations::abort(const Error& why) {
  while (!waiting_.empty()) finish(why);
}

void AdasumOperations::finish(const Status& status) {
  CIRANDA_ASSERT(!waiting_.empty());
  const std::shared_ptr<Work> work = std::move(waiting_.front());
  waiting_.pop_front();
  work->execution.done(status, nullptr);
}

bool AdasumOperations::advance() {
  if (waiting_.empty()) return false;
  Work& work = *waiting_.front();
  if (work.stage == Work::Stage::kQueued) {
    begin(work);
  } else {
    if (work.refused.ok() && !work.handle->done()) return false;
    const Status& status = work.refused.ok() ? work.handle->status() : work.refused;
    if (!status.ok()) {
      finish(Status(status));
    } else if (work.stage == Work::Stage::kSlices) {
      add_up_products(work);
    } else if (work.stage == Work::Stage::kProducts) {
      collect(work);
    } else {
      if (work.is_packed()) {
        CIRANDA_ASSERT(work.packed != nullptr);  // by begin()
        const std::byte* from = work.packed.get();
        for (const Buffer& buffer : work.execution.buffers) {
          std::memcpy(buffer.out, from, buffer.out_bytes);
          from += buffer.out_bytes;
        }
      }
      finish({});
    }
  }
  return true;
}

Status AdasumOperations::submit(const std::shared_ptr<Work>& work, Submission&& submission,
                                OpKind kind, TensorSpec tensor) {
  CIRANDA_ASSERT(work == waiting_.front());  // one at a time has the name
  const FusedOp& op = work->execution.op;
  submission.spec =
      std::make_shared<const RequestSpec>(RequestSpec{.name = kName,
                                                      .kind = kind,
                                                      .group = op.group->id,
                                                      .backend = op.backend,
                                                      .tensors = {std::move(tensor)}});
  submission.is_part = true;
  submission.handle = work->handle = std::make_shared<Operation>();
  return rank_.queue.push(std::move(submission));
}

void AdasumOperations::begin(Work& work) {
  if (work.elements == 0) return finish({});
  if (work.ranks > kAdasumRanksMax) {
    return finish(Error{.code = ErrorCode::kLimit,
                        .text = "Adasum among " + std::to_string(work.ranks) +
                                " ranks exceeds the limit of " + std::to_string(kAdasumRanksMax) +
                                "; use Average, or a process set"});
  }
  const std::byte* payload = work.execution.buffers.front().in;
  if (work.is_packed()) {
    work.packed = bytes_without_value(work.elements * work.element_bytes);
    std::byte* to = work.packed.get();
    for (const Buffer& buffer : work.execution.buffers) {
      std::memcpy(to, buffer.in, buffer.in_bytes);
      to += buffer.in_bytes;
    }
    payload = work.packed.get();
  }
  Submission submission;
  submission.inputs = {payload};
  for (std::size_t rank = 0; rank < work.ranks; ++rank) {
    submission.rows.push_back(static_cast<std::int64_t>(work.slice_elements(rank)));
  }
  submission.allocate = [shared = waiting_.front()](std::size_t,
                                                    std::int64_t rows) -> Result<std::byte*> {
    shared->slices = bytes_without_value(static_cast<std::uint64_t>(rows) * shared->element_bytes);
    return shared->slices.get();
  };
  work.stage = Work::Stage::kSlices;
  work.refused = submit(waiting_.front(), std::move(submission), OpKind::kAlltoall,
                        {.dtype = work.execution.op.dtype, .shape = {kAnyRows}});
}

void AdasumOperations::add_up_products(Work& work) {
  const auto self = static_cast<std::size_t>(work.execution.op.group->index_of(rank_.rank()));
  const std::size_t pairs = adasum_products(work.ranks);
  work.products.assign(work.execution.buffers.size() * pairs, 0.0);
  work.each_part(self, [&](std::size_t member, std::uint64_t from, std::uint64_t count) {
    kernels::add_products(work.execution.op.dtype, work.rows(self, from), count,
                          std::span(work.products).subspan(member * pairs, pairs));
  });
  Submission submission;
  auto* const memory = reinterpret_cast<std::byte*>(work.products.data());
  submission.inputs = {memory};
  submission.outputs = {memory};
  submission.lease = waiting_.front();
  work.stage = Work::Stage::kProducts;
  work.refused = submit(
      waiting_.front(), std::move(submission), OpKind::kAllreduce,
      {.dtype = DType::kFloat64, .shape = {static_cast<std::int64_t>(work.products.size())}});
}

void AdasumOperations::collect(Work& work) {
  const FusedOp& op = work.execution.op;
  const auto self = static_cast<std::size_t>(op.group->index_of(rank_.rank()));
  const std::size_t pairs = adasum_products(work.ranks);
  CIRANDA_ASSERT(work.products.size() == work.execution.buffers.size() * pairs);
  work.each_part(self, [&](std::size_t member, std::uint64_t from, std::uint64_t count) {
    std::vector<double> factors = adasum_factors(
        std::span<const double>(work.products).subspan(member * pairs, pairs), work.ranks);
    for (double& factor : factors) factor *= op.prescale * op.postscale;
    kernels::weighted_sum(op.dtype, work.rows(self, from), factors,
                          work.slices.get() + from * work.element_bytes, count);
  });
  Submission submission;
  submission.inputs = {work.slices.get()};
  submission.rows = {static_cast<std::int64_t>(work.slice_elements(self))};
  submission.allocate = [shared = waiting_.front()](std::size_t,
                                                    std::int64_t) -> Result<std::byte*> {
    return shared->is_packed() ? shared->packed.get() : shared->execution.buffers.front().out;
  };
  work.stage = Work::Stage::kCollect;
  work.refused = submit(waiting_.front(), std::move(submission), OpKind::kAllgather,
                        {.dtype = op.dtype, .shape = {kAnyRows}});
}

}  // namespace ciranda
