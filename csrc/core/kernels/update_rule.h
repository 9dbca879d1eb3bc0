#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/assert.h"
#include "core/base/dtype.h"

// The optimizer's step as one pass over memory: adds up the ranks' gradients, updates the state and
// writes the new parameter into every copy of it. It knows slices, not tensors: the owner of a
// slice of a bucket calls it for that slice.
//
// The rules are those of torch.optim, by the formulas of its documentation: SGD with momentum as in
// Sutskever et al. 2013 (momentum applied to the gradient, not to lr times it), Adam of Kingma and
// Ba 2015, amsgrad of Reddi et al. 2018, AdamW of Loshchilov and Hutter 2019, Adagrad of Duchi et
// al. 2011, RMSprop of Hinton's lecture 6 (eps added to the root), centered as in Graves 2013. Lion
// is algorithm 2 of Chen et al. 2023; torch has no class for it, ciranda.torch.optim has.
namespace ciranda::kernels {

enum class RuleKind : std::uint8_t { kSgd, kAdam, kAdamW, kAdagrad, kRmsprop, kLion };

// The hyper-parameters under torch.optim's names; a rule ignores those that it does not have.
// Values are not checked here. These defaults are Adam's and SGD's: torch's AdamW decays weights by
// 0.01, its Adagrad and RMSprop have lr 0.01, Adagrad eps 1e-10.
struct UpdateRule {
  RuleKind kind = RuleKind::kSgd;
  double lr = 1e-3;
  double weight_decay = 0.0;  // added to the gradient; AdamW's and Lion's shrink the parameter
  bool maximize = false;

  double momentum = 0.0;   // SGD, RMSprop
  double dampening = 0.0;  // SGD
  bool nesterov = false;   // SGD

  double beta1 = 0.9;    // Adam, AdamW, Lion
  double beta2 = 0.999;  // Adam, AdamW, Lion
  bool amsgrad = false;  // Adam, AdamW
  double eps = 1e-8;     // all but SGD and Lion

  double lr_decay = 0.0;                   // Adagrad
  double initial_accumulator_value = 0.0;  // Adagrad; read only where the state is fresh

  double alpha = 0.99;    // RMSprop
  bool centered = false;  // RMSprop

  bool operator==(const UpdateRule&) const = default;
};

// The hyper-parameters by name, in the order in which servers send them.
struct RuleValue {
  const char* name;
  double UpdateRule::*member;
};
struct RuleFlag {
  const char* name;
  bool UpdateRule::*member;
};
inline constexpr RuleValue kRuleValues[] = {
    {"lr", &UpdateRule::lr},
    {"weight_decay", &UpdateRule::weight_decay},
    {"momentum", &UpdateRule::momentum},
    {"dampening", &UpdateRule::dampening},
    {"beta1", &UpdateRule::beta1},
    {"beta2", &UpdateRule::beta2},
    {"eps", &UpdateRule::eps},
    {"lr_decay", &UpdateRule::lr_decay},
    {"initial_accumulator_value", &UpdateRule::initial_accumulator_value},
    {"alpha", &UpdateRule::alpha},
};
inline constexpr RuleFlag kRuleFlags[] = {
    {"maximize", &UpdateRule::maximize},
    {"nesterov", &UpdateRule::nesterov},
    {"amsgrad", &UpdateRule::amsgrad},
    {"centered", &UpdateRule::centered},
};

// What distinguishes the rules, beside their formulas (update_steps.h).
struct RuleFacts {
  RuleKind kind;
  const char* name;  // of torch's class
  bool has_momentum = false;
  bool has_step = true;                 // torch keeps "step" in its state
  bool decouples_decay = false;         // weight_decay shrinks the parameter
  bool has_initial_state = false;       // torch's class makes its state before the first step
  bool rests_without_gradient = false;  // gradient 0 changes nothing, without momentum and decays
};
// By kind.
inline constexpr RuleFacts kRules[] = {
    {.kind = RuleKind::kSgd,
     .name = "SGD",
     .has_momentum = true,
     .has_step = false,
     .rests_without_gradient = true},
    {.kind = RuleKind::kAdam, .name = "Adam"},
    {.kind = RuleKind::kAdamW, .name = "AdamW", .decouples_decay = true},
    {.kind = RuleKind::kAdagrad,
     .name = "Adagrad",
     .has_initial_state = true,
     .rests_without_gradient = true},
    {.kind = RuleKind::kRmsprop, .name = "RMSprop", .has_momentum = true},
    {.kind = RuleKind::kLion, .name = "Lion", .has_step = false, .decouples_decay = true},
};
constexpr const RuleFacts& facts_of(RuleKind kind) {
  return kRules[static_cast<std::size_t>(kind)];
}

// Returns true if an element whose gradient is 0 keeps its value and state.
constexpr bool rests_without_gradient(const UpdateRule& rule) {
  const RuleFacts& facts = facts_of(rule.kind);
  return facts.rests_without_gradient && rule.weight_decay == 0.0 && rule.lr_decay == 0.0 &&
         !(facts.has_momentum && rule.momentum != 0.0);
}

// Returns what a new state array holds: Adagrad's initial_accumulator_value, else 0.
constexpr double initial_state(const UpdateRule& rule) {
  return facts_of(rule.kind).has_initial_state ? rule.initial_accumulator_value : 0.0;
}

// --- State: arrays of the parameter's dtype and size. ---

enum class StateArray : std::uint8_t {
  kMomentumBuffer,
  kExpAvg,
  kExpAvgSq,
  kMaxExpAvgSq,
  kSum,
  kSquareAvg,
  kGradAvg,
};

// Key of the state in the state_dict of torch's optimizer. The caller keeps torch's "step", which
// SGD does not have.
constexpr std::string_view torch_name(StateArray array) {
  constexpr std::string_view kNames[] = {"momentum_buffer", "exp_avg", "exp_avg_sq",
                                         "max_exp_avg_sq",  "sum",     "square_avg",
                                         "grad_avg"};
  return kNames[static_cast<std::size_t>(array)];
}

// Each rule keeps a contiguous part of a table: SGD keeps the momentum buffer of RMSprop's.
inline constexpr StateArray kAdamStates[] = {StateArray::kExpAvg, StateArray::kExpAvgSq,
                                             StateArray::kMaxExpAvgSq};
inline constexpr StateArray kAdagradStates[] = {StateArray::kSum};
inline constexpr StateArray kRmspropStates[] = {StateArray::kMomentumBuffer, StateArray::kSquareAvg,
                                                StateArray::kGradAvg};

// Returns the state arrays that `rule` keeps, in the order of UpdateArgs::states.
constexpr std::span<const StateArray> state_arrays(const UpdateRule& rule) {
  const std::size_t momentum = rule.momentum != 0.0 ? 1 : 0;
  switch (rule.kind) {
    case RuleKind::kSgd:
      return std::span(kRmspropStates).first(momentum);
    case RuleKind::kAdam:
    case RuleKind::kAdamW:
      return std::span(kAdamStates).first(rule.amsgrad ? 3 : 2);
    case RuleKind::kAdagrad:
      return kAdagradStates;
    case RuleKind::kLion:
      return std::span(kAdamStates).first(1);
    case RuleKind::kRmsprop:
      return std::span(kRmspropStates).subspan(1 - momentum, momentum + (rule.centered ? 2 : 1));
  }
  CIRANDA_UNREACHABLE();
}

constexpr int state_count(const UpdateRule& rule) {
  return static_cast<int>(state_arrays(rule).size());
}

// --- The update. ---

struct UpdateArgs {
  // float32, float64, float16 or bfloat16, the dtype of gradients, parameters and state. Halves are
  // computed in float32, from the sum of the gradients on, and rounded (to nearest even) when they
  // are stored, as by torch's fused kernels.
  DType dtype;
  std::int64_t step = 1;        // the number of this step; the first is 1
  double gradient_scale = 1.0;  // average, loss scale and clip coefficient, multiplied together
  // The state arrays hold nothing yet. They are not read; the state starts from torch's initial
  // values: zeros, Adagrad's initial_accumulator_value, and for SGD's momentum buffer the gradient,
  // which is not dampened then.
  bool fresh_state = false;
  std::span<const std::byte* const> gradients;   // one for each rank
  std::span<std::byte* const> parameters;        // equal copies: the first is read, all are written
  std::span<std::byte* const> states;            // as state_arrays(rule) lists them
  std::span<std::byte* const> gradient_outputs;  // get gradient_scale * sum; may be empty
  std::size_t count = 0;                         // elements, of each array
};

// Gradients are added in the order of their span and scaled as reduce() does it with `postscale`.
// For float32 and float64 the bits are those of reduce() followed by an update with its output. A
// gradient output may be the same memory as any gradient (exactly the same pointer); otherwise
// nothing overlaps. Pointers are aligned to one element at least. 1 <= gradients.size() <=
// kLocalRanksMax, 1 <= parameters.size(), 1 <= step.
//
// NaN and infinities spread as in torch. State below the normal numbers (2^-126 for float32 and the
// halves) becomes zero: a moving average that is fed zeros ends as a subnormal number and stays one
// for ever, and arithmetic on subnormal numbers may be ten times slower.
//
// The function has no state, allocates nothing and is thread-safe. Every instruction set gives the
// same bits.
void update(const UpdateRule& rule, const UpdateArgs& args);

// Returns scale^2 * the sum over all elements of (the sum over ranks of inputs)^2: the ranks' part
// of a global norm. The inner sum is that of update(). Squares are added in float64, in an order
// that depends on `count` alone, with a relative error below 1e-8 for up to 2^30 elements. The
// result is finite exactly if every inner sum is (float64 beyond 1e150 aside), so it also serves as
// a loss scaler's check. Floating-point dtypes, 1 <= inputs.size() <= kLocalRanksMax.
double sum_of_squares(DType dtype, std::span<const std::byte* const> inputs, double scale,
                      std::size_t count);

}  // namespace ciranda::kernels
