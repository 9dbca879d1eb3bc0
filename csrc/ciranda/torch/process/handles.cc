#include "ciranda/torch/process/handles.h"

#include <memory>
#include <unordered_map>
#include <utility>

#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"
#include "core/base/mutex.h"

namespace ciranda {
namespace {

// The collectives of the default World that users hold numbers of.
class HandleTable {
 public:
  HandleId insert(std::shared_ptr<TensorCollective> collective) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    CIRANDA_ASSERT(collective != nullptr);
    const HandleId id = next_++;
    const bool is_new = collectives_.emplace(id, std::move(collective)).second;
    CIRANDA_ASSERT(is_new);
    return id;
  }
  std::shared_ptr<TensorCollective> find(HandleId id) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = collectives_.find(id);
    return found == collectives_.end() ? nullptr : found->second;
  }
  std::shared_ptr<TensorCollective> take(HandleId id) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    auto node = collectives_.extract(id);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

 private:
  Mutex mutex_;
  HandleId next_ GUARDED_BY(mutex_) = 0;
  // Kept even if nobody seems to have the number: it may be in an array or in a file.
  std::unordered_map<HandleId, std::shared_ptr<TensorCollective>> collectives_ GUARDED_BY(mutex_);
};

HandleTable& handles() {
  // Never destroyed: GPU memory cannot be freed after CUDA has unloaded.
  static auto* const table = new HandleTable;
  return *table;
}

}  // namespace

HandleId hold(Started collective) {
  return handles().insert(std::move(collective));
}

bool poll(HandleId id) {
  refuse_in_forked_child();
  const Started collective = handles().find(id);
  if (collective == nullptr) {
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = "poll: there is no unfinished operation with handle " + std::to_string(id)});
  }
  return collective->poll();
}

std::optional<CollectiveResult> synchronize(HandleId id, const Engine::Look& look) {
  refuse_in_forked_child();
  const Started collective = handles().take(id);
  if (collective == nullptr) return std::nullopt;
  return collective->wait(look);
}

}  // namespace ciranda
