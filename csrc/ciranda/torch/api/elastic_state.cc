#include "ciranda/torch/api/elastic_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Type.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <exception>
#include <string>
#include <unordered_set>
#include <utility>

#include "ciranda/torch/api/elastic_membership.h"
#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/process/rank_optimizer.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"

namespace ciranda::elastic {
namespace {

constexpr std::uint64_t kSeedEnd = std::uint64_t{1} << 62;  // it travels as a signed number

// Returns a tensor in the memory of `bytes`.
at::Tensor tensor_of(std::vector<char> bytes) {
  const auto kept = std::make_shared<std::vector<char>>(std::move(bytes));
  return at::from_blob(
      kept->data(), {static_cast<std::int64_t>(kept->size())}, [kept](void*) {},
      at::TensorOptions().dtype(at::kByte));
}

at::Tensor archived(const std::function<void(torch::serialize::OutputArchive&)>& save) {
  torch::serialize::OutputArchive archive;
  save(archive);
  std::vector<char> bytes;
  archive.save_to([&bytes](const void* data, std::size_t size) {
    const auto* const begin = static_cast<const char*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
    return size;
  });
  return tensor_of(std::move(bytes));
}

torch::serialize::InputArchive archive_of(const at::Tensor& bytes,
                                          std::optional<at::Device> device = {}) {
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.const_data_ptr()),
                    static_cast<std::size_t>(bytes.numel()), device);
  return archive;
}

at::Tensor archived_options(const torch::optim::OptimizerOptions& options) {
  return archived([&](torch::serialize::OutputArchive& archive) { options.serialize(archive); });
}

void load_options(torch::optim::OptimizerOptions& options, const at::Tensor& bytes) {
  torch::serialize::InputArchive archive = archive_of(bytes);
  options.serialize(archive);
}

c10::IValue tuple_of(std::vector<c10::IValue> values) {
  return c10::ivalue::Tuple::create(std::move(values));
}

std::vector<c10::IValue> elements_of(const c10::IValue& tuple) {
  return tuple.toTupleRef().elements().vec();
}

c10::IValue packed_progress(const Progress& progress) {
  return tuple_of(
      {static_cast<std::int64_t>(progress.moment), static_cast<std::int64_t>(progress.passes),
       progress.blocks, static_cast<std::int64_t>(progress.samples),
       static_cast<std::int64_t>(progress.seed), progress.size, tuple_of(progress.agreements)});
}

Progress unpacked_progress(const c10::IValue& value) {
  const std::vector<c10::IValue> fields = elements_of(value);
  Progress progress;
  progress.moment = static_cast<std::uint64_t>(fields.at(0).toInt());
  progress.passes = static_cast<std::size_t>(fields.at(1).toInt());
  progress.blocks = fields.at(2).toInt();
  progress.samples = static_cast<std::size_t>(fields.at(3).toInt());
  progress.seed = static_cast<std::uint64_t>(fields.at(4).toInt());
  progress.size = static_cast<int>(fields.at(5).toInt());
  progress.agreements = elements_of(fields.at(6));
  return progress;
}

void copy_all(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  CIRANDA_ASSERT(from.size() == to.size());
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

std::vector<at::Tensor> empty_like_all(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& each : tensors) copies.push_back(at::empty_like(each));
  return copies;
}

bool contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

}  // namespace

// -------------------------------------------------------------------------------------------
// What is registered

State::State(Made) : impl_(std::make_unique<Impl>()) {}

State::~State() noexcept(false) {
  if (std::uncaught_exceptions() == 0) finish(*impl_);
}

State& State::add_module(torch::nn::Module& module) {
  impl_->add_module(module);
  return *this;
}

State& State::add_optimizer(torch::optim::Optimizer& optimizer) {
  impl_->add_optimizer(optimizer);
  return *this;
}

State& State::add(Save save, Load load) {
  impl_->add_value(std::move(save), std::move(load));
  return *this;
}

State& State::on_resize(OnResize callback) {
  impl_->add_callback(std::move(callback));
  return *this;
}

std::int64_t State::step() const {
  return impl_->progress.blocks;
}

bool State::skipping() const {
  return impl_->skipping();
}

State::Impl::Impl() {
  progress.seed = at::detail::getDefaultCPUGenerator().current_seed() % kSeedEnd;
  progress.size = ciranda::size();
}

void State::Impl::check_registered() const {
  for (const RankOptimizer* each : RankOptimizer::all()) {
    if (std::ranges::find(optimizers_, &each->optimizer()) != optimizers_.end()) continue;
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = "elastic: a " + c10::demangle(typeid(each->optimizer()).name()) +
                 " is not registered, so ranks that join would not get its state; pass it: "
                 "State state(model, optimizer)"});
  }
}

std::vector<torch::Tensor> State::Impl::parameters() const {
  std::vector<torch::Tensor> found;
  std::unordered_set<const at::TensorImpl*> known;
  const auto add_new = [&](const std::vector<torch::Tensor>& tensors) {
    for (const torch::Tensor& each : tensors) {
      if (known.insert(each.unsafeGetTensorImpl()).second) found.push_back(each);
    }
  };
  for (const torch::nn::Module* each : modules_) add_new(each->parameters());
  for (const torch::optim::Optimizer* each : optimizers_) {
    for (const torch::optim::OptimizerParamGroup& group : each->param_groups()) {
      add_new(group.params());
    }
  }
  return found;
}

std::vector<torch::Tensor> State::Impl::buffers() const {
  std::vector<torch::Tensor> found;
  for (const torch::nn::Module* each : modules_) {
    for (const torch::Tensor& buffer : each->buffers()) found.push_back(buffer);
  }
  return found;
}

std::vector<torch::optim::OptimizerOptions*> State::Impl::all_options() const {
  std::vector<torch::optim::OptimizerOptions*> found;
  for (torch::optim::Optimizer* each : optimizers_) {
    for (torch::optim::OptimizerParamGroup& group : each->param_groups()) {
      found.push_back(&group.options());
    }
  }
  return found;
}

void State::Impl::forget_gradients() {
  for (torch::optim::Optimizer* each : optimizers_) each->zero_grad();
  for (torch::Tensor& each : parameters()) each.mutable_grad().reset();
}

// -------------------------------------------------------------------------------------------
// Settings

State::Impl::Settings State::Impl::take_settings() const {
  Settings settings;
  for (const torch::optim::OptimizerOptions* each : all_options()) {
    settings.options.push_back(each->clone());
  }
  for (const auto& [save, load] : values_) settings.values.push_back(save());
  return settings;
}

// Changes options where they are, since a program may hold references to them.
void State::Impl::put_settings(const Settings& settings) {
  const std::vector<torch::optim::OptimizerOptions*> options = all_options();
  CIRANDA_ASSERT(options.size() == settings.options.size());
  for (std::size_t i = 0; i < options.size(); ++i) {
    load_options(*options[i], archived_options(*settings.options[i]));
  }
  CIRANDA_ASSERT(values_.size() == settings.values.size());
  for (std::size_t i = 0; i < values_.size(); ++i) {
    values_[i].second(settings.values[i].deepcopy());
  }
}

c10::IValue State::Impl::packed(const Settings& settings) const {
  std::vector<c10::IValue> options;
  for (const auto& each : settings.options) options.emplace_back(archived_options(*each));
  return tuple_of({tuple_of(std::move(options)), tuple_of(settings.values)});
}

State::Impl::Settings State::Impl::unpacked(const c10::IValue& value) const {
  const std::vector<c10::IValue> parts = elements_of(value);
  const std::vector<c10::IValue> options = elements_of(parts.at(0));
  Settings settings{.options = {}, .values = elements_of(parts.at(1))};
  const std::vector<torch::optim::OptimizerOptions*> own = all_options();
  if (options.size() != own.size() || settings.values.size() != values_.size()) {
    throw Exception({.code = ErrorCode::kMismatch,
                     .text = "elastic: the processes have not registered the same things; every "
                             "process passes State the same modules, optimizers and values"});
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::shared_ptr<torch::optim::OptimizerOptions> copy = own[i]->clone();
    load_options(*copy, options[i].toTensor());
    settings.options.push_back(std::move(copy));
  }
  return settings;
}

void State::Impl::skip_call(bool is_last) {
  if (is_last && at_arrival_) put_settings(after_call_);
}

void State::Impl::arrive() {
  if (!at_arrival_) return;
  put_settings(*std::exchange(at_arrival_, std::nullopt));
  joined_ = false;
}

void State::Impl::resize(int size) {
  const int old = std::exchange(progress.size, size);
  if (old == size) return;
  for (const OnResize& callback : callbacks_) callback(old, size);
}

void State::Impl::begin_block() {
  before_block_ = BeforeBlock{.number = progress.blocks, .settings = take_settings()};
  for (const torch::Tensor& each : buffers()) {
    before_block_->buffers.push_back(each.detach().clone());
  }
}

void State::Impl::keep_steps() {
  if (!before_block_ || !before_block_->parameters.empty()) return;
  for (const torch::Tensor& each : parameters()) {
    before_block_->parameters.push_back(each.detach().clone());
  }
  before_block_->optimizers = save_optimizers();
}

void State::Impl::undo_block() {
  if (!before_block_ || progress.blocks > before_block_->number) return;
  copy_all(before_block_->buffers, buffers());
  if (!before_block_->parameters.empty()) {
    copy_all(before_block_->parameters, parameters());
    load_optimizers(before_block_->optimizers);
  }
  put_settings(before_block_->settings);
}

// -------------------------------------------------------------------------------------------
// From rank to rank

// What the source sends. On the source the tensors are those of the training.
struct State::Impl::Sent {
  c10::IValue head;                    // progress, settings now, settings after the last call
  std::vector<at::Tensor> optimizers;  // as bytes
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
};

State::Impl::Sent State::Impl::broadcast(Rank source, bool is_source) const {
  const auto among = default_communicator();
  const auto from_source = [&](const at::Tensor& bytes) {
    return allgather_bytes(*among, bytes, "elastic/bytes").at(static_cast<std::size_t>(source));
  };
  Sent sent;
  sent.parameters = parameters();
  sent.buffers = buffers();
  std::vector<char> head;
  if (is_source) {
    const Settings now = at_arrival_ ? *at_arrival_ : take_settings();
    head = torch::jit::pickle_save(
        tuple_of({packed_progress(progress), packed(now), packed(after_call_)}));
  } else {
    sent.parameters = empty_like_all(sent.parameters);
    sent.buffers = empty_like_all(sent.buffers);
  }
  const at::Tensor received = from_source(tensor_of(std::move(head)));
  const auto* const begin = static_cast<const char*>(received.const_data_ptr());
  sent.head = torch::jit::pickle_load(std::vector<char>(begin, begin + received.numel()));
  sent.optimizers =
      is_source ? save_optimizers() : std::vector<at::Tensor>(optimizers_.size(), tensor_of({}));
  for (at::Tensor& bytes : sent.optimizers) bytes = from_source(bytes);
  std::vector<at::Tensor> tensors = sent.parameters;
  tensors.insert(tensors.end(), sent.buffers.begin(), sent.buffers.end());
  if (!tensors.empty()) broadcast_tensors(*among, tensors, source, "elastic/tensors");
  return sent;
}

std::vector<at::Tensor> State::Impl::save_optimizers() const {
  std::vector<at::Tensor> saved;
  for (const torch::optim::Optimizer* each : optimizers_) {
    saved.push_back(
        archived([&](torch::serialize::OutputArchive& archive) { each->save(archive); }));
  }
  return saved;
}

// Loads the optimizers' state, and keeps their options: these belong to a point of the program.
void State::Impl::load_optimizers(const std::vector<at::Tensor>& saved) {
  const Settings own = take_settings();
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    const auto& groups = optimizers_[i]->param_groups();
    const bool has_parameters = !groups.empty() && !groups.front().params().empty();
    torch::serialize::InputArchive archive = archive_of(
        saved[i],
        has_parameters ? std::optional(groups.front().params().front().device()) : std::nullopt);
    optimizers_[i]->state().clear();  // load() keeps what it does not replace
    optimizers_[i]->load(archive);
  }
  const std::vector<torch::optim::OptimizerOptions*> options = all_options();
  for (std::size_t i = 0; i < options.size(); ++i) {
    load_options(*options[i], archived_options(*own.options[i]));
  }
}

void State::Impl::transfer(const member::RecoveryPlan& plan, Rank own, Takeover takeover) {
  if (plan.behind.empty() && plan.newcomers.empty()) return;
  const bool is_source = own == plan.source;
  // It comes again, on newcomers too: they begin it as this rank has.
  if (is_source) undo_block();
  const Sent sent = broadcast(plan.source, is_source);
  const bool is_newcomer = contains(plan.newcomers, own);
  if (!is_newcomer && !contains(plan.behind, own)) return;
  const std::vector<c10::IValue> parts = elements_of(sent.head);
  Settings now = unpacked(parts.at(1));
  Settings after_call = unpacked(parts.at(2));
  Progress newest = unpacked_progress(parts.at(0));
  copy_all(sent.parameters, parameters());
  load_optimizers(sent.optimizers);
  after_call_ = std::move(after_call);
  if (is_newcomer || takeover == Takeover::kWhole) {
    copy_all(sent.buffers, buffers());
    at_arrival_ = std::move(now);
    joined_ = joined_ || is_newcomer;
  } else {
    newest.size = progress.size;  // its settings still go with the size before
  }
  progress = std::move(newest);
}

}  // namespace ciranda::elastic
