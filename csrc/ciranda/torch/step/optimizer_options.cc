#include "ciranda/torch/step/optimizer_options.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "ciranda/torch/tensor/error.h"

namespace ciranda {
namespace {

[[noreturn]] void refuse_given(const std::string& why) {
  throw Exception({.code = ErrorCode::kInvalidArgument, .text = "DistributedOptimizer: " + why});
}

// Returns the shortest text that reads back as the same number.
std::string exact(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.begin(), text.end(), value).ptr};
}

}  // namespace

void refuse_options(Training training, const std::vector<std::string>& given) {
  std::string list;
  int count = 0;
  for (const OptionRow& row : kOptionTable) {
    if ((row.means_something_with & static_cast<std::uint8_t>(training)) != 0) continue;
    if (std::ranges::find(given, row.name) == given.end()) continue;
    list += (list.empty() ? "" : ", ") + std::string(row.name);
    ++count;
  }
  if (count == 0) return;
  if (training == Training::kAdasum) {
    refuse_given("with op=Adasum no gradients are reduced, so leave out " + list);
  }
  refuse_given(list + (count == 1 ? " is" : " are") +
               " for ranks that reduce gradients among themselves; leave " +
               (count == 1 ? "it" : "them") + " out with parameter servers");
}

std::vector<std::string> given_options(const DistributedOptions& options) {
  const DistributedOptions usual;
  std::vector<std::string> given;
  const auto note = [&](bool is_usual, const char* name) {
    if (!is_usual) given.emplace_back(name);
  };
  note(!options.bucket_bytes, "bucket_bytes");
  note(options.compression == usual.compression, "compression");
  note(options.gradient_predivide_factor == usual.gradient_predivide_factor,
       "gradient_predivide_factor");
  note(!options.max_grad_norm, "max_grad_norm");
  note(options.op == usual.op, "op");
  note(options.process_set.id() == usual.process_set.id(), "process_set");
  note(!options.share_parameters, "share_parameters");
  const bool is_off_already =
      options.op == Job::Op::kAdasum && options.shared_step == SharedStepMode::kOff;
  note(options.shared_step == usual.shared_step || is_off_already, "shared_step");
  return given;
}

void check_values(const OptimizerOptions& options) {
  const ReducerOptions& reduction = options.reduction;
  if (!options.adasum && reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kSum) {
    refuse_given("op must be Average, Sum or Adasum");
  }
  if (reduction.predivide_factor != 1.0 && reduction.op != ReduceOp::kAverage) {
    refuse_given("gradient_predivide_factor needs op=Average");
  }
  if (reduction.backward_passes_per_step < 1)
    refuse_given("backward_passes_per_step must be at least 1");
  if (reduction.bucket_bytes && *reduction.bucket_bytes < 1) {
    refuse_given("bucket_bytes must be at least 1");
  }
  // As the complement, to refuse NaN.
  if (options.max_grad_norm && !(*options.max_grad_norm > 0.0)) {
    refuse_given("max_grad_norm must be above 0");
  }
  if (reduction.share_parameters && options.shared_step == SharedStepMode::kOff) {
    refuse_given("share_parameters needs a shared step; choose shared_step 'auto' or 'host'");
  }
}

const char* demanded_by(const OptimizerOptions& options) {
  if (options.shared_step == SharedStepMode::kHost) return "shared_step='host'";
  return options.reduction.share_parameters ? "share_parameters" : nullptr;
}

std::string describe(const OptimizerOptions& options) {
  const char* const kModes[] = {"off", "auto", "host"};
  const ReducerOptions& reduction = options.reduction;
  std::string text =
      c10::str("shared_step=", kModes[static_cast<std::size_t>(options.shared_step)], ", op=",
               options.adasum                   ? "Adasum"
               : reduction.op == ReduceOp::kSum ? "Sum"
                                                : "Average",
               ", max_grad_norm=", exact(options.max_grad_norm.value_or(0.0)),
               ", gradient_predivide_factor=", exact(reduction.predivide_factor),
               ", backward_passes_per_step=", reduction.backward_passes_per_step,
               ", compression=", reduction.wire_dtype ? dtype_name(*reduction.wire_dtype) : "none",
               ", sparse_as_dense=", reduction.sparse_as_dense,
               ", bucket_bytes=", reduction.bucket_bytes.value_or(0),
               ", share_parameters=", reduction.share_parameters, ", groups=[");
  for (const auto& group : reduction.groups) {
    text += "[";
    for (const std::size_t position : group) text += std::to_string(position) + " ";
    text += "]";
  }
  text += "]";
  if (reduction.streams != 0) text += c10::str(", streams=", static_cast<int>(reduction.streams));
  return text + (options.others.empty() ? "" : ", " + options.others);
}

}  // namespace ciranda
