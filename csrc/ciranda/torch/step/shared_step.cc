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
#include "ciranda/torch/process/default_world.h"
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

// In a rank's own memory: the latest step that it has entered, and where its gradients lie. A rank
// that is already in the step after this one has entered this one, too, whose chunks are then done.
struct SharedStep::Entry {
  std::atomic<std::uint64_t> step;
  ArenaRef gradients;
  RevocableLock lock;  // held by who writes to the memory of all ranks
};

SharedStep::SharedStep(std::shared_ptr<const Communicator> among, std::string name,
                       c10::ScalarType dtype, std::int64_t elements, std::vector<StepSlot> slots,
                       bool share_parameters, bool journaled)
    : among_(std::move(among)),
      name_(std::move(name)),
      here_(among_->engine->members_here(*among_->group)),
      self_(position(here_, among_->engine->rank())),
      dtype_(dtype),
      element_bytes_(dtype_bytes(dtype_of(dtype, name_))),
      slots_(std::move(slots)),
      array_bytes_(whole_lines(static_cast<std::size_t>(elements) * element_bytes_)),
      share_parameters_(share_parameters),
      journaled_(journaled),
      epoch_(journaled ? own_epoch() : 0),
      seen_(slots_.size()) {
  CIRANDA_ASSERT(self_ < here_.size());  // only members share a step
  const std::size_t bytes = parameters_offset() + (owns_parameters() ? array_bytes_ : 0);
  own_ = unwrap(among_->engine->allocate_arena(bytes));
  std::memset(own_.data, 0, own_.bytes);  // the memory may have been another bucket's
  if (journaled_) own_entry().lock.make();
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

bool SharedStep::can_move_along(const at::Tensor& parameter) {
  return can_move(parameter) || can_relocate(parameter);
}

std::string SharedStep::why_immovable(const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) return "has gaps or overlaps in its memory";
  if (has_other_users(parameter)) {
    return "shares its memory with another tensor or an array (a state_dict that is still held, a "
           "view, Tensor.numpy())";
  }
  if (!Mappings().shared_place(parameter.storage().data()).empty()) {
    return "lies in memory that other processes may see (share_memory(), a shared file)";
  }
  return "lies in memory that torch has not allocated (torch.from_numpy(), torch.load(mmap=True)) "
         "and that others may see";
}

std::size_t SharedStep::entry_offset() const {
  return whole_lines(slots_.size() * sizeof(float));
}

std::size_t SharedStep::squares_offset() const {
  return entry_offset() + (journaled_ ? whole_lines(sizeof(Entry)) : 0);
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
  if (journaled_) prepare_journal();
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
  if (parameter.numel() == 0 || !has_memory(parameter)) return;
  const std::shared_ptr<void>& keeper = (owns_parameters() ? own_ : memory_[0]).lease;
  if (can_move(parameter)) {
    const at::Tensor placed = tensor_over(place(slot), slot.sizes, slot.strides, dtype_, keeper);
    if (copy) placed.copy_(parameter.detach());
    parameter.set_data(placed);
  } else if (can_relocate(parameter)) {
    relocate(parameter, place(slot), keeper, copy);
    relocated_ = true;
  }
}

void SharedStep::allocate_states() {
  states_ = {};
  if (self_ != 0 || arrays_.empty()) return;
  states_ = unwrap(among_->engine->allocate_arena(arrays_.size() * array_bytes_));
  std::memset(states_.data, 0, states_.bytes);
}

// Collective; blocks.
void SharedStep::prepare_journal() {
  const kernels::StepJournal::Shape shape{.bytes = array_bytes_,
                                          .ranks = static_cast<int>(here_.size()),
                                          .states = static_cast<int>(arrays_.size())};
  journal_memory_ = {};
  if (self_ == 0) {
    journal_memory_ =
        unwrap(among_->engine->allocate_arena(kernels::StepJournal::memory_bytes(shape)));
    std::memset(journal_memory_.data, 0, journal_memory_.bytes);
  }
  journal_memory_ = exchange(journal_memory_, "journal")[0];
  journal_.emplace(journal_memory_.data, shape);
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
  const at::Tensor& parameter = slots_[slot].parameter;
  if (relocated_ && step != seen) settle(parameter, has_other_users(parameter));
  return {.written = step != seen, .fresh = step != 0.0F && seen == 0.0F};
}

// ------------------------------------------------------------------------------------------------
// The step

SharedStep::Work SharedStep::work(Update update, Used used) {
  if (journaled_) return journaled_work(std::move(update), std::move(used));
  return on_runs(std::move(used), [this, update = std::move(update)](
                                      const StepRun& run, std::int64_t begin, std::int64_t end,
                                      std::span<std::byte* const> arena) {
    apply(update, run, begin, end, arena,
          [&](const kernels::UpdateArgs& args) { kernels::update(update.rule, args); });
  });
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

template <typename Fn>
void SharedStep::apply(const Update& update, const StepRun& run, std::int64_t begin,
                       std::int64_t end, std::span<std::byte* const> arena, Fn fn) const {
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
  fn(kernels::UpdateArgs{.dtype = dtype_of(dtype_, name_),
                         .step = run.step,
                         .gradient_scale = update.gradient_scale,
                         .fresh_state = run.step == 1,
                         .gradients = gradients_at(update, offset, arena, gradients),
                         .parameters = {parameters.data(), copies},
                         .states = {states.data(), arrays_.size()},
                         .gradient_outputs = {},
                         .count = static_cast<std::size_t>(end - begin)});
}

// ------------------------------------------------------------------------------------------------
// A step in which ranks may die

SharedStep::Work SharedStep::journaled_work(Update update, Used used) {
  return [this, update = std::move(update), used = std::move(used), step = step_,
          runs = std::vector<StepRun>(), known = false](std::uint64_t begin, std::uint64_t bytes,
                                                        std::span<std::byte* const> arena) mutable {
    CIRANDA_ASSERT(begin + bytes <= array_bytes_);
    if (!std::exchange(known, true)) runs = this->runs(arena, used);
    constexpr std::uint64_t kChunk = kernels::StepJournal::kChunkBytes;
    for (std::uint64_t chunk = begin; chunk < begin + bytes; chunk += kChunk) {
      journaled_chunk(journal_->begin(static_cast<int>(self_), step, chunk), update, runs, chunk,
                      std::min(chunk + kChunk, begin + bytes), arena);
    }
  };
}

void SharedStep::journaled_chunk(kernels::StepJournal::Work chunk, const Update& update,
                                 const std::vector<StepRun>& runs, std::uint64_t begin,
                                 std::uint64_t end, std::span<std::byte* const> arena) const {
  const auto first = static_cast<std::int64_t>(begin / element_bytes_);
  const auto last = static_cast<std::int64_t>(end / element_bytes_);
  for (const StepRun& run : runs) {
    const std::int64_t from = std::max(first, run.begin);
    const std::int64_t to = std::min(last, run.end);
    if (from >= to) continue;
    apply(update, run, from, to, arena, [&](const kernels::UpdateArgs& args) {
      chunk.update(update.rule, args, static_cast<std::uint64_t>(from) * element_bytes_);
    });
  }
  chunk.end();
}

SharedStep::Entry& SharedStep::entry(std::size_t rank) const {
  return *reinterpret_cast<Entry*>(memory_[rank].data + entry_offset());
}

SharedStep::Entry& SharedStep::own_entry() const {
  return *reinterpret_cast<Entry*>(own_.data + entry_offset());
}

SharedStep::Writing::Writing(const SharedStep& step, std::uint64_t epoch)
    : lock_(step.journaled_ ? &step.own_entry().lock : nullptr),
      may_write_(lock_ == nullptr || lock_->acquire(epoch)) {}

SharedStep::Writing SharedStep::writing() const {
  return {*this, epoch_};
}

SharedStep::Writing::~Writing() {
  if (lock_ != nullptr && may_write_) lock_->release();
}

void SharedStep::revoke() const {
  if (!journal_) return;
  const std::uint64_t epoch = own_epoch();
  bool revoked = true;
  for (std::size_t rank = 0; rank < here_.size(); ++rank) {
    revoked = entry(rank).lock.revoke(epoch) && revoked;
  }
  if (!revoked) await_lost_ranks();
}

// All chunks are done up to the step before: a step begins when all ranks have entered it.
void SharedStep::enter(const ArenaBuffer& memory) {
  CIRANDA_ASSERT(journal_);
  step_ = journal_->next_step();
  gradients_.clear();
  own_entry().gradients = memory.ref;
  own_entry().step.store(step_, std::memory_order_release);
}

void SharedStep::withdraw() {
  own_entry().step.store(0, std::memory_order_release);
}

bool SharedStep::has_entered(std::size_t rank) const {
  return entry(rank).step.load(std::memory_order_acquire) >= step_;
}

void SharedStep::hold_gradients() {
  if (!gradients_.empty()) return;  // the World may have ended
  const std::vector<Rank>& local_ranks = among_->engine->local_ranks();
  gradients_.resize(here_.size());
  for (std::size_t rank = 0; rank < here_.size(); ++rank) {
    if (!has_entered(rank)) continue;
    const auto local = static_cast<int>(position(local_ranks, here_[rank]));
    auto mapped = among_->engine->map_arena(local, entry(rank).gradients, array_bytes_);
    if (mapped) gradients_[rank] = std::move(mapped).value();
  }
}

bool SharedStep::step_begun() const {
  return journal_ && journal_->begun(step_);
}

bool SharedStep::can_complete() const {
  if (journal_->done(step_)) return true;
  if (gradients_.empty()) return false;
  for (std::size_t rank = 0; rank < here_.size(); ++rank) {
    if (has_entered(rank) && gradients_[rank].data == nullptr) return false;
  }
  return true;
}

void SharedStep::complete(const Update& update, const Used& used, const OnChunk& fn) {
  CIRANDA_ASSERT(can_complete());
  if (journal_->done(step_)) return;
  const Writing writing(*this, own_epoch());
  CIRANDA_ASSERT(writing);  // the lock is revoked for earlier epochs alone
  std::vector<std::byte*> arena;
  for (const ArenaBuffer& gradients : gradients_) {
    if (gradients.data != nullptr) arena.push_back(gradients.data);
  }
  const std::vector<StepRun> runs = this->runs(arena, used);
  constexpr std::uint64_t kChunk = kernels::StepJournal::kChunkBytes;
  for (std::uint64_t chunk = 0; chunk < array_bytes_; chunk += kChunk) {
    if (journal_->chunk_done(step_, chunk)) continue;
    const std::uint64_t end = std::min(chunk + kChunk, array_bytes_);
    fn(chunk, end - chunk, arena);
    journaled_chunk(journal_->resume(static_cast<int>(self_), step_, chunk), update, runs, chunk,
                    end, arena);
  }
}

std::vector<Rank> SharedStep::absent() const {
  std::vector<Rank> ranks;
  for (std::size_t rank = 0; rank < here_.size(); ++rank) {
    if (!has_entered(rank)) ranks.push_back(here_[rank]);
  }
  return ranks;
}

}  // namespace ciranda
