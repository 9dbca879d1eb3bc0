#include "ciranda/torch/collective/arena_tensors.h"

#include <ATen/ops/from_blob.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "ciranda/torch/tensor/transport_dtype.h"
#include "core/base/mutex.h"

namespace ciranda {
namespace {

// The arena memory of a tensor. It has a meaning only in the World that allocated it.
struct ArenaPlace {
  std::weak_ptr<Engine> engine;
  ArenaRef ref;
};

// The arena tensors of the process by their memory, in which allreduce looks up the segment.
class ArenaTensors {
 public:
  void insert(const std::byte* data, ArenaPlace place) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    places_[data] = std::move(place);
  }
  void erase(const std::byte* data) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    places_.erase(data);
  }
  std::optional<ArenaPlace> find(const std::byte* data) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = places_.find(data);
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  Mutex mutex_;
  std::unordered_map<const std::byte*, ArenaPlace> places_ GUARDED_BY(mutex_);
};

ArenaTensors& arena_tensors() {
  static auto* const tensors = new ArenaTensors;  // tensors may outlive static destruction
  return *tensors;
}

}  // namespace

at::Tensor arena_empty(const std::shared_ptr<Engine>& engine,
                       const std::vector<std::int64_t>& shape, c10::ScalarType dtype) {
  const auto elements = static_cast<std::size_t>(element_count(shape));
  const std::size_t bytes = elements * dtype_bytes(dtype_of(dtype, "arena_empty"));
  auto buffer = unwrap(engine->allocate_arena(bytes));
  auto forget = [lease = buffer.lease, data = buffer.data](void*) mutable {
    arena_tensors().erase(data);
    lease.reset();
  };
  at::Tensor tensor =
      at::from_blob(buffer.data, shape, std::move(forget), at::TensorOptions().dtype(dtype));
  arena_tensors().insert(buffer.data, {.engine = engine, .ref = buffer.ref});  // now it will end
  return tensor;
}

Started arena_allreduce_async(const Communicator& among, const at::Tensor& tensor,
                              const ReduceOptions& options) {
  const std::string what = describe(OpKind::kAllreduce, options.name);
  RequestSpec spec = make_reduce_spec(among, OpKind::kAllreduce, options);
  spec.in_arena = true;
  spec.arena_bytes = tensor.nbytes();
  spec.tensors.push_back(spec_of(tensor, what));
  if (needs_transport_dtype(tensor, spec.op)) {
    refuse(what,
           "an average of integers needs a sum of a wider dtype, for which the arena has no room; "
           "use op=Sum, or allreduce_() of a tensor outside the arena");
  }
  check_average(tensor, tensor.scalar_type(), spec, among.group->size(), what);
  const auto place = arena_tensors().find(data_of(tensor));
  if (!place) refuse(what, "the tensor was not made by arena_empty");
  if (place->engine.lock() != among.engine) {
    refuse(what,
           "the tensor was made by arena_empty before shutdown(); make a new tensor after init()");
  }
  auto collective = std::make_shared<TensorCollective>();
  collective->inputs = collective->outputs = {tensor};
  Submission submission;
  submission.arena = place->ref;
  start(among, collective, what, std::move(spec), std::move(submission));
  mark_written(tensor);
  return collective;
}

}  // namespace ciranda
