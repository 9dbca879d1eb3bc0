#include "ciranda/torch/step/shared_step.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_memory.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::uint64_t kPageBytes = 4096;

std::size_t whole_lines(std::size_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

std::size_t position(const std::vector<Rank>& ranks, Rank rank) {
  return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

std::string rule_text(const kernels::UpdateRule& rule, const char* addition) {
  std::string text = kernels::facts_of(rule.kind).name;
  for (const auto& [name, member] : kernels::kRuleValues) {
    const bool matters = member != &kernels::UpdateRule::initial_accumulator_value;
    if (rule.*member == 0.0 || !matters) continue;  // the initial value is in the state by now
    std::array<char, 64> field;
    std::snprintf(field.data(), field.size(), " %s=%.9g", name, rule.*member);
    text += field.data();
  }
  for (const auto& [name, member] : kernels::kRuleFlags) {
    if (rule.*member) text += std::string(" ") + name + "=1";
  }
  return (text + addition).substr(0, kRuleBytesMax);
}

SharedStep::SharedStep(std::shared_ptr<const Communicator> among, std::string name,
                       c10::ScalarType dtype, std::int64_t elements, std::vector<StepSlot> slots,
                       bool share_parameters)
    : among_(std::move(among)),
      name_(std::move(name)),
      here_(among_->engine->members_here(*among_->group)),
      self_(position(here_, among_->engine->rank())),
      dtype_(dtype),
      element_bytes_(dtype_bytes(dtype_of(dtype, name_))),
      slots_(std::move(slots)),
      array_bytes_(whole_lines(static_cast<std::size_t>(elements) * element_bytes_)),
      share_parameters_(share_parameters),
      seen_(slots_.size()) {
  CIRANDA_ASSERT(self_ < here_.size());  // only members share a step
  const std::size_t bytes = parameters_offset() + (owns_parameters() ? array_bytes_ : 0);
  own_ = unwrap(among_->engine->allocate_arena(bytes));
  std::memset(own_.data, 0, own_.bytes);  // the memory may have been another bucket's
  if (owns_parameters()) {
    for (const StepSlot& slot : slots_) move_in(slot, /*copy=*/true);
  }
  if (!share_parameters_) return;
  memory_ = exchange(own_, "parameters");  // rank 0 has filled own_ before this
  if (owns_parameters()) return;
  for (const StepSlot& slot : slots_) move_in(slot, /*copy=*/false);
}

namespace {

std::atomic<bool (*)(const c10::StorageImpl&)> only_kept_by_python{nullptr};

}  // namespace

void SharedStep::set_kept_by_python(bool (*only_kept)(const c10::StorageImpl& storage)) {
  only_kept_by_python.store(only_kept);
}

namespace {

bool has_other_users(const at::Tensor& parameter) {
  const c10::StorageImpl& storage = *parameter.storage().unsafeGetStorageImpl();
  std::size_t users = parameter.storage().use_count();
  const auto only_kept = only_kept_by_python.load();
  if (users == 2 && only_kept != nullptr && only_kept(storage)) users = 1;
  return users != 1;
}

}  // namespace

bool SharedStep::can_move(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() && !has_other_users(parameter) &&
         seen_by_tensors_alone(parameter);
}

std::string SharedStep::why_immovable(const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) return "has gaps or overlaps in its memory";
  if (has_other_users(parameter)) {
    return "shares its memory with another tensor (a state_dict that is still held, a view)";
  }
  if (!Mappings().shared_place(parameter.storage().data()).empty()) {
    return "lies in memory that other processes may see (share_memory(), a shared file)";
  }
  return "lies in memory that torch has not allocated (torch.from_numpy(), torch.load(mmap=True)) "
         "and that others may see";
}

std::size_t SharedStep::squares_offset() const {
  return whole_lines(slots_.size() * sizeof(float));
}

std::size_t SharedStep::parameters_offset() const {
  return squares_offset() + whole_lines((array_bytes_ / kPageBytes + 1) * sizeof(double));
}

std::byte* SharedStep::parameters(std::size_t rank) const {
  return memory_[share_parameters_ ? 0 : rank].data + parameters_offset();
}

// Returns where this rank's parameter lies.
std::byte* SharedStep::place(const StepSlot& slot) const {
  const ArenaBuffer& memory = owns_parameters() ? own_ : memory_[0];
  return memory.data + parameters_offset() + static_cast<std::size_t>(slot.begin) * element_bytes_;
}

void SharedStep::prepare(const kernels::UpdateRule& rule) {
  const auto wanted = kernels::state_arrays(rule);
  arrays_.assign(wanted.begin(), wanted.end());
  has_step_ = kernels::facts_of(rule.kind).has_step;
  initial_ = kernels::initial_state(rule);
  allocate_states();
  if (memory_.empty()) memory_ = exchange(own_, "memory");
  // Exchanged even if this rank needs no state: the rule of another rank may differ, which only the
  // step notices.
  states_ = exchange(states_, "state")[0];
  CIRANDA_ASSERT(memory_.size() == here_.size());
  prepared_ = true;
}

bool SharedStep::needs_other_state(const kernels::UpdateRule& rule) const {
  const auto wanted = kernels::state_arrays(rule);
  return !std::equal(wanted.begin(), wanted.end(), arrays_.begin(), arrays_.end());
}

bool SharedStep::begun() const {
  if (!prepared_) return false;
  const float* own = steps(self_);
  return std::any_of(own, own + slots_.size(), [](float step) { return step > 0.0F; });
}

std::optional<std::string> SharedStep::obstacle(const kernels::UpdateRule& rule) const {
  if (needs_other_state(rule)) {
    return "momentum, amsgrad or centered changed, which needs other state";
  }
  for (const StepSlot& slot : slots_) {
    if (in_place(slot)) continue;
    return "parameter '" + slot.name +
           "' shares its memory with other tensors, or was moved or converted";
  }
  return std::nullopt;
}

bool SharedStep::in_place(const StepSlot& slot) const {
  const at::Tensor& parameter = slot.parameter;
  if (parameter.scalar_type() != dtype_ || parameter.sizes() != slot.sizes) return false;
  if (parameter.numel() == 0) return true;  // has no memory
  return parameter.const_data_ptr() == place(slot) && parameter.strides() == slot.strides;
}

// Moves a parameter to its place, with its values if `copy` is true.
void SharedStep::move_in(const StepSlot& slot, bool copy) {
  at::Tensor parameter = slot.parameter;
  if (parameter.numel() == 0 || !has_memory(parameter) || !can_move(parameter)) return;
  const at::Tensor placed = tensor_over(place(slot), slot.sizes, slot.strides, dtype_,
                                        (owns_parameters() ? own_ : memory_[0]).lease);
  if (copy) placed.copy_(parameter.detach());
  parameter.set_data(placed);
}

void SharedStep::allocate_states() {
  states_ = {};
  if (self_ != 0 || arrays_.empty()) return;
  states_ = unwrap(among_->engine->allocate_arena(arrays_.size() * array_bytes_));
  std::memset(states_.data, 0, states_.bytes);
}

// Passes this rank's memory to the other ranks and returns theirs, by rank. The buffer of a rank
// that has none is empty. Collective; blocks.
std::vector<ArenaBuffer> SharedStep::exchange(const ArenaBuffer& mine, const char* what) const {
  const std::vector<std::int64_t> row = {mine.ref.segment,
                                         static_cast<std::int64_t>(mine.ref.offset),
                                         static_cast<std::int64_t>(mine.bytes)};
  const at::Tensor own = at::tensor(row).reshape({1, 3});
  const at::Tensor rows = allgather_async(*among_, {own}, name_ + "/" + what)->wait().tensors.at(0);
  std::vector<ArenaBuffer> all;
  for (const Rank rank : here_) {
    const std::int64_t* values =
        rows.const_data_ptr<std::int64_t>() + 3 * among_->group->index_of(rank);
    const ArenaRef ref{.segment = static_cast<std::uint32_t>(values[0]),
                       .offset = static_cast<std::uint64_t>(values[1])};
    const auto bytes = static_cast<std::size_t>(values[2]);
    if (rank == among_->engine->rank()) {
      all.push_back(mine);
    } else {
      const auto local = static_cast<int>(position(among_->engine->local_ranks(), rank));
      all.push_back(bytes == 0 ? ArenaBuffer{}
                               : unwrap(among_->engine->map_arena(local, ref, bytes)));
    }
  }
  // An owner may free its memory only after every rank holds a lease.
  (void)barrier_async(*among_, name_ + "/" + what + "/mapped")->wait();
  return all;
}

float* SharedStep::steps(std::size_t rank) const {
  CIRANDA_ASSERT(rank < memory_.size());
  return reinterpret_cast<float*>(memory_[rank].data);
}

std::byte* SharedStep::state_array(std::size_t index) const {
  CIRANDA_ASSERT(index < arrays_.size());
  return states_.data + index * array_bytes_;
}

// ------------------------------------------------------------------------------------------------
// State

OptimizerState SharedStep::state(std::size_t slot) const {
  OptimizerState state;
  if (!prepared_) return state;
  float* step = steps(self_) + slot;
  if (*step == 0.0F) {
    if (!initial_) return state;
    const at::Tensor sum = at::empty_strided(slots_[slot].sizes, slots_[slot].strides,
                                             at::TensorOptions().dtype(dtype_));
    return {{"step", at::scalar_tensor(0.0)}, {"sum", sum.fill_(*initial_)}};
  }
  if (has_step_) {
    state.emplace_back("step", at::from_blob(
                                   step, {}, [lease = own_.lease](void*) {},
                                   at::TensorOptions().dtype(c10::ScalarType::Float)));
  }
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    std::byte* data =
        state_array(i) + static_cast<std::size_t>(slots_[slot].begin) * element_bytes_;
    state.emplace_back(std::string(kernels::torch_name(arrays_[i])),
                       at::from_blob(
                           data, slots_[slot].sizes, slots_[slot].strides,
                           [lease = states_.lease](void*) {}, at::TensorOptions().dtype(dtype_)));
  }
  return state;
}

void SharedStep::adopt(std::size_t slot, const OptimizerState& state) {
  CIRANDA_ASSERT(prepared_ && slot < slots_.size());
  float step = state.empty() ? 0.0F : 1.0F;
  for (const auto& [name, value] : state) {
    if (name == "step") step = value.item().toFloat();
  }
  // Sets only this rank's count: a rank that is still in the latest step will add to its own.
  steps(self_)[slot] = seen_[slot] = step;
  if (step == 0.0F) return;
  for (const auto& [place_name, place] : this->state(slot)) {
    for (const auto& [name, value] : state) {
      if (name != place_name || name == "step") continue;
      if (value.const_data_ptr() == place.const_data_ptr()) continue;
      if (!value.sizes().equals(place.sizes())) {
        throw Exception({.code = ErrorCode::kInvalidArgument,
                         .text = "DistributedOptimizer: the loaded state '" + name +
                                 "' has another shape than its parameter"});
      }
      at::Tensor target = place;
      target.copy_(value.detach());
    }
  }
}

void SharedStep::count(std::size_t slot) {
  steps(self_)[slot] += 1.0F;
}

// Every rank that writes here writes the same counts, before it joins itself. The owner reads them
// only after every rank has joined.
void SharedStep::count_for(const std::vector<Rank>& joined) {
  const float* own = steps(self_);
  for (std::size_t rank = 0; rank < here_.size(); ++rank) {
    if (!std::binary_search(joined.begin(), joined.end(), here_[rank])) continue;
    std::copy_n(own, slots_.size(), steps(rank));
  }
}

SharedStep::Changes SharedStep::take_changes(std::size_t slot) {
  if (!prepared_) return {};
  const float step = steps(self_)[slot];
  const float seen = std::exchange(seen_[slot], step);
  return {.written = step != seen, .fresh = step != 0.0F && seen == 0.0F};
}

// ------------------------------------------------------------------------------------------------
// The step

SharedStep::Work SharedStep::work(Update update, Used used) {
  return on_runs(std::move(used),
                 [this, update = std::move(update)](
                     const StepRun& run, std::int64_t begin, std::int64_t end,
                     std::span<std::byte* const> arena) { apply(update, run, begin, end, arena); });
}

SharedStep::Work SharedStep::squares_work(Update update, Used used) {
  auto sum = std::make_shared<double>();
  auto add_up = on_runs(std::move(used), [this, update = std::move(update), sum](
                                             const StepRun&, std::int64_t begin, std::int64_t end,
                                             std::span<std::byte* const> arena) {
    *sum += squares(update, begin, end, arena);
  });
  return [this, sum, add_up = std::move(add_up)](std::uint64_t begin, std::uint64_t bytes,
                                                 std::span<std::byte* const> arena) mutable {
    *sum = 0.0;
    add_up(begin, bytes, arena);
    chunk_squares(begin) = *sum;
  };
}

template <typename Fn>
SharedStep::Work SharedStep::on_runs(Used used, Fn fn) {
  // Runs in the thread that drives, so in one thread at a time.
  return [this, used = std::move(used), fn = std::move(fn), runs = std::vector<StepRun>(),
          known = false](std::uint64_t begin, std::uint64_t bytes,
                         std::span<std::byte* const> arena) mutable {
    CIRANDA_ASSERT(begin + bytes <= array_bytes_);
    if (!std::exchange(known, true)) runs = this->runs(arena, used);
    const auto first = static_cast<std::int64_t>(begin / element_bytes_);
    const auto last = static_cast<std::int64_t>((begin + bytes) / element_bytes_);
    for (const StepRun& run : runs) {
      const std::int64_t from = std::max(first, run.begin);
      const std::int64_t to = std::min(last, run.end);
      if (from < to) fn(run, from, to, arena);
    }
  };
}

// Returns the place of a chunk's sum of squares. The bucket has one place for each of its pages,
// since no two chunks begin in one page.
double& SharedStep::chunk_squares(std::uint64_t begin) const {
  return reinterpret_cast<double*>(memory_[0].data + squares_offset())[begin / kPageBytes];
}

double SharedStep::sum_of_squares() const {
  double sum = 0.0;
  for (std::uint64_t begin = 0; begin < array_bytes_; begin += kPageBytes) {
    sum += chunk_squares(begin);
  }
  return sum;
}

double SharedStep::squares(const Update& update, std::int64_t begin, std::int64_t end,
                           std::span<std::byte* const> arena) const {
  const std::size_t offset = static_cast<std::size_t>(begin) * element_bytes_;
  Gradients gradients;
  return kernels::sum_of_squares(dtype_of(dtype_, name_),
                                 gradients_at(update, offset, arena, gradients),
                                 update.gradient_scale, static_cast<std::size_t>(end - begin));
}

std::span<const std::byte* const> SharedStep::gradients_at(const Update& update, std::size_t offset,
                                                           std::span<std::byte* const> arena,
                                                           Gradients& gradients) const {
  if (update.reduced != nullptr) {
    gradients[0] = update.reduced + offset;
    return {gradients.data(), 1};
  }
  for (std::size_t i = 0; i < arena.size(); ++i) gradients[i] = arena[i] + offset;
  return {gradients.data(), arena.size()};
}

std::vector<StepRun> SharedStep::runs(std::span<std::byte* const> arena, const Used& used) const {
  const float* done = steps(self_);
  return step_runs(
      slots_, [&](std::size_t slot) { return used(slot, arena); },
      [&](std::size_t slot) { return done[slot]; });
}

void SharedStep::apply(const Update& update, const StepRun& run, std::int64_t begin,
                       std::int64_t end, std::span<std::byte* const> arena) const {
  const std::size_t offset = static_cast<std::size_t>(begin) * element_bytes_;
  const std::size_t copies = share_parameters_ ? 1 : memory_.size();
  Gradients gradients;
  std::array<std::byte*, kLocalRanksMax> parameters;
  std::array<std::byte*, 3> states;
  CIRANDA_ASSERT(copies <= parameters.size() && arrays_.size() <= states.size());
  for (std::size_t rank = 0; rank < copies; ++rank) {
    parameters[rank] = this->parameters(rank) + offset;
  }
  if (!share_parameters_) {  // update() reads the first one
    std::swap(parameters[0], parameters[self_]);
  }
  for (std::size_t i = 0; i < arrays_.size(); ++i) states[i] = state_array(i) + offset;
  kernels::update(update.rule, {.dtype = dtype_of(dtype_, name_),
                                .step = run.step,
                                .gradient_scale = update.gradient_scale,
                                .fresh_state = run.step == 1,
                                .gradients = gradients_at(update, offset, arena, gradients),
                                .parameters = {parameters.data(), copies},
                                .states = {states.data(), arrays_.size()},
                                .gradient_outputs = {},
                                .count = static_cast<std::size_t>(end - begin)});
}

}  // namespace ciranda
