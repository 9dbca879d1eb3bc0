#include "core/kernels/update_rule.h"

#include <cmath>

#include "core/base/assert.h"
#include "core/kernels/variants.h"
#include "core/wire/types.h"

namespace ciranda::kernels {
namespace {

double step_size(const UpdateRule& rule, double step) {
  if (rule.kind == RuleKind::kAdam || rule.kind == RuleKind::kAdamW) {
    return rule.lr / (1.0 - std::pow(rule.beta1, step));
  }
  if (rule.kind == RuleKind::kAdagrad) return rule.lr / (1.0 + (step - 1.0) * rule.lr_decay);
  return rule.lr;
}

}  // namespace

Updating updating(const UpdateRule& rule, const UpdateArgs& args) {
  const auto step = static_cast<double>(args.step);
  const bool decouples = facts_of(rule.kind).decouples_decay;
  return {.rule = rule,
          .dtype = args.dtype,
          .fresh_state = args.fresh_state,
          .gradient_scale = args.gradient_scale,
          .step_size = step_size(rule, step),
          .bias_correction2_sqrt = std::sqrt(1.0 - std::pow(rule.beta2, step)),
          .coupled_decay = decouples ? 0.0 : rule.weight_decay,
          .kept = decouples ? 1.0 - rule.lr * rule.weight_decay : 1.0,
          .initial_state = initial_state(rule),
          .gradients = args.gradients.data(),
          .gradient_count = args.gradients.size(),
          .parameters = args.parameters.data(),
          .parameter_count = args.parameters.size(),
          .states = args.states.data(),
          .gradient_outputs = args.gradient_outputs.data(),
          .gradient_output_count = args.gradient_outputs.size(),
          .count = args.count};
}

void update(const UpdateRule& rule, const UpdateArgs& args) {
  CIRANDA_ASSERT(is_floating(args.dtype));
  CIRANDA_ASSERT(args.step >= 1);
  CIRANDA_ASSERT(!args.gradients.empty());
  CIRANDA_ASSERT(args.gradients.size() <= static_cast<std::size_t>(kLocalRanksMax));
  CIRANDA_ASSERT(!args.parameters.empty());
  CIRANDA_ASSERT(args.states.size() == state_arrays(rule).size());
  chosen_variant().loops->update(updating(rule, args));
}

double sum_of_squares(DType dtype, std::span<const std::byte* const> inputs, double scale,
                      std::size_t count) {
  CIRANDA_ASSERT(is_floating(dtype));
  CIRANDA_ASSERT(!inputs.empty() && inputs.size() <= static_cast<std::size_t>(kLocalRanksMax));
  const double sum = chosen_variant().loops->sum_of_squares(
      {.dtype = dtype, .inputs = inputs.data(), .input_count = inputs.size(), .count = count});
  return scale * scale * sum;
}

}  // namespace ciranda::kernels
