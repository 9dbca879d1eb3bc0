#include "ciranda/torch/gradient/gradient_place.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "core/base/assert.h"
#include "core/base/mutex.h"

namespace ciranda {

namespace {

using torch::autograd::Node;

constexpr int kUnknown = -1;
constexpr int kUnlearnable = -2;
constexpr int kWrongGuessesMax = 3;
constexpr std::size_t kSeenMax = 64;
// At most this many nodes, which only change the view, lie between the node that computes a
// gradient and the gradient's accumulator.
constexpr int kViewNodesMax = 4;

}  // namespace

// The places of the process, as torch's CPU allocator. Never destroyed, because tensors may outlive
// static objects.
class GradientPlaces final : public c10::Allocator {
 public:
  static GradientPlaces& instance() {
    static GradientPlaces& places = *new GradientPlaces;
    return places;
  }

  void add(GradientPlace& place) EXCLUDES(mutex_);
  void remove(GradientPlace& place) EXCLUDES(mutex_);
  void attach(GradientPlace& place, const Node* accumulator) EXCLUDES(mutex_);
  bool occupied(const GradientPlace& place) EXCLUDES(mutex_);
  at::Tensor lend(const GradientPlace& place) EXCLUDES(mutex_);
  void learn(GradientPlace& place, const void* data) EXCLUDES(mutex_);
  void move(GradientPlace& place, at::Tensor memory) EXCLUDES(mutex_);
  void give_up(GradientPlace& place) EXCLUDES(mutex_);

  c10::DataPtr allocate(std::size_t bytes) override {
    const bool wanted = sizes_[hash(bytes)].load(std::memory_order_relaxed) > 0 &&
                        torch::autograd::get_current_graph_task_id() >= 0 &&
                        !c10::GradMode::is_enabled();  // else the graph of backward keeps it
    return wanted ? allocate_in_backward(bytes) : plain_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  // The places that the current node of a thread leads to. Valid for one version of the places.
  struct Reached {
    const Node* node = nullptr;
    int graph_task = -1;
    std::uint64_t version = 0;
    std::vector<GradientPlace*> places;
  };

  GradientPlaces() : plain_(*c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }

  static std::size_t hash(std::size_t bytes) { return (bytes / 64) % kHashes; }
  static void release(void* data);
  c10::DataPtr allocate_in_backward(std::size_t bytes) EXCLUDES(mutex_);
  void answered(std::size_t bytes, const void* data) REQUIRES(mutex_);
  const std::vector<GradientPlace*>& reached() REQUIRES(mutex_);
  static bool watches(const GradientPlace& place, std::size_t bytes);

  static constexpr std::size_t kHashes = 1024;
  c10::Allocator& plain_;
  std::array<std::atomic<int>, kHashes> sizes_ = {};  // number of places by the hash of their size

  Mutex mutex_;
  std::uint64_t version_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<const Node*, GradientPlace*> by_accumulator_ GUARDED_BY(mutex_);
  // The memory of each place in which a tensor lies, by address.
  std::unordered_map<const void*, at::Tensor> occupied_ GUARDED_BY(mutex_);
};

c10::DataPtr GradientPlaces::allocate_in_backward(std::size_t bytes) {
  bool watched = false;
  {
    const MutexLock lock(mutex_);
    for (GradientPlace* place : reached()) {
      if (!watches(*place, bytes)) continue;
      watched = true;
      if (place->awaited_ != static_cast<int>(place->seen_.size()) ||
          !place->open_.load(std::memory_order_acquire)) {
        continue;
      }
      void* const data = place->memory_.mutable_data_ptr();
      if (!occupied_.emplace(data, place->memory_).second) continue;
      answered(bytes, data);
      return {data, data, release, c10::Device(c10::DeviceType::CPU)};
    }
  }
  c10::DataPtr answer = plain_.allocate(bytes);
  if (watched) {
    const MutexLock lock(mutex_);
    answered(bytes, answer.get());
  }
  return answer;
}

void GradientPlaces::answered(std::size_t bytes, const void* data) {
  for (GradientPlace* place : reached()) {
    if (watches(*place, bytes)) place->seen_.push_back(data);
  }
}

// Returns true if a request of `bytes` may become the place's gradient. A gradient that is added to
// p.grad is freed, not taken over.
bool GradientPlaces::watches(const GradientPlace& place, std::size_t bytes) {
  return place.bytes_ == bytes && !place.given_up_ && place.awaited_ != kUnlearnable &&
         place.seen_.size() < kSeenMax && !place.parameter_.grad().defined();
}

void GradientPlaces::release(void* data) {
  GradientPlaces& places = instance();
  at::Tensor last_user;  // destroyed without the lock: its memory may itself be a place's
  {
    const MutexLock lock(places.mutex_);
    const auto place = places.occupied_.find(data);
    if (place != places.occupied_.end()) {
      last_user = std::move(place->second);
      places.occupied_.erase(place);
      return;
    }
  }
  places.plain_.raw_deleter()(data);
}

const std::vector<GradientPlace*>& GradientPlaces::reached() {
  thread_local Reached reached;
  const auto node = torch::autograd::get_current_node();
  const int graph_task = torch::autograd::get_current_graph_task_id();
  // A node's address is not reused within one graph task.
  if (reached.node == node.get() && reached.graph_task == graph_task &&
      reached.version == version_) {
    return reached.places;
  }
  reached.node = node.get();
  reached.graph_task = graph_task;
  reached.version = version_;
  reached.places.clear();
  if (!node) return reached.places;
  for (const torch::autograd::Edge& edge : node->next_edges()) {
    const Node* next = edge.function.get();
    for (int views = 0; next != nullptr && views < kViewNodesMax && next->num_outputs() == 1;
         ++views) {
      next = next->next_edge(0).function.get();
    }
    // An accumulator has no outputs.
    if (next == nullptr || next->num_outputs() != 0) continue;
    const auto place = by_accumulator_.find(next);
    if (place != by_accumulator_.end()) reached.places.push_back(place->second);
  }
  return reached.places;
}

void GradientPlaces::add(GradientPlace& place) {
  const MutexLock lock(mutex_);
  if (place.accumulator_ == nullptr) return;
  ++version_;
  by_accumulator_[place.accumulator_] = &place;
  ++sizes_[hash(place.bytes_)];
}

void GradientPlaces::remove(GradientPlace& place) {
  const MutexLock lock(mutex_);
  if (place.accumulator_ == nullptr) return;
  ++version_;
  const auto known = by_accumulator_.find(place.accumulator_);
  if (known != by_accumulator_.end() && known->second == &place) by_accumulator_.erase(known);
  const int places = --sizes_[hash(place.bytes_)];
  CIRANDA_ASSERT(places >= 0);  // by add()
}

void GradientPlaces::attach(GradientPlace& place, const Node* accumulator) {
  if (place.accumulator_ == accumulator) return;
  remove(place);
  place.accumulator_ = accumulator;
  add(place);
}

at::Tensor GradientPlaces::lend(const GradientPlace& place) {
  const at::Tensor& memory = place.memory_;
  void* data = memory.mutable_data_ptr();
  {
    const MutexLock lock(mutex_);
    if (place.given_up_ || !occupied_.emplace(data, memory).second) return {};
  }
  // Makes the tensor as torch would, so that the user can treat it like any other.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), memory.nbytes(),
                             c10::DataPtr(data, data, release, memory.device()),
                             c10::GetAllocator(memory.device().type()), /*resizable=*/true);
  return at::empty({0}, memory.options()).set_(storage, 0, memory.sizes(), memory.strides());
}

bool GradientPlaces::occupied(const GradientPlace& place) {
  const MutexLock lock(mutex_);
  return occupied_.contains(place.memory_.const_data_ptr());
}

void GradientPlaces::learn(GradientPlace& place, const void* data) {
  const MutexLock lock(mutex_);
  if (place.seen_.empty()) return;
  // The allocator reuses freed memory, so the last request with this answer counts.
  const auto answer = std::find(place.seen_.rbegin(), place.seen_.rend(), data);
  const int request = static_cast<int>(place.seen_.rend() - answer) - 1;  // kUnknown if none
  place.seen_.clear();
  if (place.awaited_ == request || place.awaited_ == kUnlearnable) return;
  if (place.awaited_ != kUnknown) ++place.wrong_guesses_;
  place.awaited_ = place.wrong_guesses_ > kWrongGuessesMax ? kUnlearnable : request;
}

void GradientPlaces::move(GradientPlace& place, at::Tensor memory) {
  const MutexLock lock(mutex_);
  CIRANDA_ASSERT(memory.nbytes() == place.bytes());
  std::swap(place.memory_, memory);  // the old memory dies without the lock, as in release()
  CIRANDA_ASSERT(!occupied_.contains(place.memory_.const_data_ptr()));  // I14: it is fresh
}

void GradientPlaces::give_up(GradientPlace& place) {
  const MutexLock lock(mutex_);
  place.given_up_ = true;
}

GradientPlace::GradientPlace(at::Tensor memory, at::Tensor parameter, const Node* accumulator)
    : parameter_(std::move(parameter)),
      accumulator_(accumulator),
      bytes_(memory.nbytes()),
      memory_(std::move(memory)),
      awaited_(kUnknown) {
  GradientPlaces::instance().add(*this);
}

GradientPlace::~GradientPlace() {
  GradientPlaces::instance().remove(*this);
}

void GradientPlace::attach(const Node* accumulator) {
  GradientPlaces::instance().attach(*this, accumulator);
}

at::Tensor GradientPlace::lend() {
  return GradientPlaces::instance().lend(*this);
}

bool GradientPlace::occupied() const {
  return GradientPlaces::instance().occupied(*this);
}

void GradientPlace::learn(const void* data) {
  GradientPlaces::instance().learn(*this, data);
}

void GradientPlace::move_to(at::Tensor memory) {
  GradientPlaces::instance().move(*this, std::move(memory));
}

void GradientPlace::give_up() {
  GradientPlaces::instance().give_up(*this);
}

}  // namespace ciranda
