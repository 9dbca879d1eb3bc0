#include "ciranda/torch/optimizer/tuner.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr int kSettlingSteps = 2;  // after each change: memory is laid out, operations become known
constexpr std::int64_t kMib = 1 << 20;
constexpr std::int64_t kSpinsUs[] = {3, 100, 1000};

using Number = std::optional<std::int64_t>;

std::string begin_log(const std::string& path, const Communicator& world) {
  if (path.empty() || world.engine->rank() != 0) return "";
  if (!std::ofstream(path)) {
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = "CIRANDA_AUTOTUNE_LOG=" + path + ": cannot write it: " + std::strerror(errno)});
  }
  return path;
}

}  // namespace

Tuner::Tuner(std::shared_ptr<const Communicator> world, const AutotuneConfig& config,
             std::uint8_t streams, OptimizerOptions options, const Subject& subject, Clock clock)
    : world_(std::move(world)),
      first_(std::move(options)),
      clock_(std::move(clock)),
      joins_(world_->engine->joins()),
      own_pace_(world_->engine->pace()),
      gpu_(subject.gpu),
      log_(begin_log(config.log, *world_)),
      steps_per_sample_(config.steps_per_sample),
      search_(make_knobs(config, streams, subject),
              [this](const std::string& line) { write_log(line); }),
      holds_(search_.settings()),
      left_(1 + config.warmup_samples * steps_per_sample_) {
  const auto most =
      static_cast<std::size_t>(left_) +
      search_.samples_at_most() * static_cast<std::size_t>(steps_per_sample_ + kSettlingSteps);
  write_log(subject.class_name + ", " + std::to_string(subject.parameters) + " parameters, " +
            std::to_string(world_->engine->size()) + " ranks; at most " + std::to_string(most) +
            " steps; times are of a step: median (fastest-slowest) of samples of " +
            std::to_string(steps_per_sample_) + " steps each");
}

// Returns the knobs, equal on all ranks. A setting that the user has chosen is no knob.
std::vector<SettingSearch::Knob> Tuner::make_knobs(const AutotuneConfig& config,
                                                   std::uint8_t streams, const Subject& subject) {
  const Engine& engine = *world_->engine;
  const ReducerOptions& reduction = first_.reduction;
  const bool one_host = engine.one_host();
  std::vector<SettingSearch::Knob> knobs;
  if (first_.shared_step == SharedStepMode::kAuto && subject.shares_step &&
      !reduction.share_parameters) {
    add_knob(knobs, kSharedStep, "shared_step", {std::nullopt, 0}, {"auto", "False"});
  }
  if (first_.reduces && !reduction.bucket_bytes && reduction.groups.empty() &&
      !reduction.share_parameters) {
    const std::int64_t by_itself = (subject.gpu ? 25 : 4) * kMib;
    // Sizes above that of all gradients make the same single bucket.
    std::map<std::int64_t, std::int64_t> apart;
    for (const std::int64_t size : {64 * kMib, 16 * kMib, 1 * kMib, by_itself}) {
      apart[std::min(size, subject.gradient_bytes)] = size;
    }
    apart.erase(std::min(by_itself, subject.gradient_bytes));
    std::vector<Number> sizes = {std::nullopt};
    std::vector<std::string> words = {std::to_string(by_itself)};
    for (const auto& [bytes, size] : apart) {
      sizes.emplace_back(size);
      words.push_back(std::to_string(size));
    }
    add_knob(knobs, kBucketBytes, "bucket_bytes", std::move(sizes), std::move(words));
  }
  if (config.wire_dtype && first_.reduces && !reduction.wire_dtype && !one_host) {
    add_knob(knobs, kWireDtype, "CIRANDA_WIRE_DTYPE", {std::nullopt, 1}, {"float32", "bfloat16"});
  }
  if (first_.reduces && !one_host && !subject.gpu &&
      engine.backend_choice().cpu == BackendId::kNative) {
    std::vector<Number> numbers = {std::nullopt};
    std::vector<std::string> words = {std::to_string(streams)};
    for (const std::int64_t other : {1, 2, 4, 8}) {
      if (other == streams) continue;
      numbers.emplace_back(other);
      words.push_back(std::to_string(other));
    }
    add_knob(knobs, kStreams, "CIRANDA_STREAMS", std::move(numbers), std::move(words));
  }
  // The first value is each rank's own, which may differ between hosts: rank 0's decides which
  // others there are.
  const at::Tensor pace = at::tensor(
      {std::int64_t{own_pace_.overlap}, static_cast<std::int64_t>(own_pace_.spin_ns / 1000)},
      at::kLong);
  broadcast_tensors(*world_, {pace}, 0, "autotune");
  const bool overlap = pace[0].item<std::int64_t>() != 0;
  const auto spin_us = pace[1].item<std::int64_t>();
  add_knob(knobs, kOverlap, "CIRANDA_OVERLAP", {std::nullopt, overlap ? 0 : 1},
           overlap ? std::vector<std::string>{"on", "off"} : std::vector<std::string>{"off", "on"});
  std::vector<Number> spins = {std::nullopt};
  std::vector<std::string> words = {std::to_string(spin_us)};
  for (const std::int64_t other : kSpinsUs) {
    if (other == spin_us) continue;
    spins.emplace_back(other);
    words.push_back(std::to_string(other));
  }
  add_knob(knobs, kSpin, "CIRANDA_SPIN_MICROSECONDS", std::move(spins), std::move(words));
  return knobs;
}

void Tuner::add_knob(std::vector<SettingSearch::Knob>& knobs, KnobId id, std::string name,
                     std::vector<Number> numbers, std::vector<std::string> words) {
  CIRANDA_ASSERT(numbers.size() == words.size());
  if (numbers.size() < 2) return;
  values_.push_back({.id = id, .numbers = std::move(numbers)});
  knobs.push_back({.name = std::move(name), .values = std::move(words)});
}

std::optional<OptimizerOptions> Tuner::stepped(bool objects) {
  CIRANDA_ASSERT(!ended_);
  if (world_->engine->joins() != joins_) {  // all ranks are at the same step again after a join
    return end(SettingSearch::Settings(values_.size(), 0),
               "stopped, and the settings are as before: a rank has joined, so the ranks' steps "
               "were not alike");
  }
  --left_;
  if (left_ > 0 || waits_for_join_) return std::nullopt;
  if (gpu_) c10::impl::VirtualGuardImpl(gpu_->type()).synchronizeDevice(gpu_->index());
  const double now = clock_();
  if (!began_) {
    began_ = now;
    left_ = steps_per_sample_;
    return std::nullopt;
  }
  const double seconds = (now - *began_) / steps_per_sample_;
  began_.reset();
  left_ = kSettlingSteps;
  // A sum, to which ranks that have joined add zeros.
  const at::Tensor sums =
      at::tensor({seconds, 1.0, objects ? 1.0 : 0.0}, at::TensorOptions(at::kDouble));
  allreduce(*world_, sums, sums, {.name = "autotune", .op = ReduceOp::kSum});
  const auto ranks = sums[1].item<double>();
  if (ranks < world_->engine->size()) {
    waits_for_join_ = true;
    return std::nullopt;
  }
  // The next step ends sharing where a rank objects, and another sample follows.
  if (sums[2].item<double>() > 0.0) return std::nullopt;
  search_.took(sums[0].item<double>() / ranks);
  if (const auto& found = search_.found()) return end(found->settings, found->conclusion);
  return apply(search_.settings());
}

// Sets this rank's pace, and returns the optimizer's options.
OptimizerOptions Tuner::apply(const SettingSearch::Settings& settings) {
  OptimizerOptions options = first_;
  Pace pace = own_pace_;
  for (std::size_t knob = 0; knob < values_.size(); ++knob) {
    const Number number = values_[knob].numbers.at(settings[knob]);
    if (!number) continue;
    switch (values_[knob].id) {
      case kSharedStep:
        options.shared_step = SharedStepMode::kOff;
        break;
      case kBucketBytes:
        options.reduction.bucket_bytes = *number;
        break;
      case kWireDtype:
        options.reduction.wire_dtype = DType::kBFloat16;
        break;
      case kStreams:
        options.reduction.streams = static_cast<std::uint8_t>(*number);
        break;
      case kOverlap:
        pace.overlap = *number != 0;
        break;
      case kSpin:
        pace.spin_ns = static_cast<std::uint32_t>(*number) * 1000;
        break;
    }
  }
  world_->engine->set_pace(pace);
  holds_ = settings;
  return options;
}

OptimizerOptions Tuner::end(const SettingSearch::Settings& settings,
                            const std::string& conclusion) {
  ended_ = true;
  write_log(conclusion);
  if (world_->engine->rank() == 0) {
    std::fprintf(stderr, "ciranda: autotune: %s\n", conclusion.c_str());
    std::fflush(stderr);
  }
  return apply(settings);
}

bool Tuner::chose_own_steps() const {
  for (std::size_t knob = 0; knob < values_.size(); ++knob) {
    if (values_[knob].id == kSharedStep) return ended_ && holds_[knob] != 0;
  }
  return false;
}

void Tuner::write_log(const std::string& line) const {
  if (!log_.empty()) std::ofstream(log_, std::ios::app) << line << '\n';
}

}  // namespace ciranda
