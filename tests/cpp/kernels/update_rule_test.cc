// What could break: a formula that is not torch's, a variant that rounds differently from the
// others, so that a sharded step trains another model than torch.optim does.
#include "core/kernels/update_rule.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "core/kernels/reduce.h"
#include "kernels/oracle.h"

namespace ciranda::kernels {
namespace {

using oracle::Bytes;
using oracle::bytes_of;
using oracle::values_of;
using Counts = std::initializer_list<std::size_t>;

constexpr std::uint64_t kSeed = 0xada3;
constexpr int kSteps = 100;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::initializer_list<DType> kFloatingTypes = {DType::kFloat16, DType::kBFloat16,
                                                         DType::kFloat32, DType::kFloat64};

// --- Every rule with every set of its options. ---

struct Case {
  std::string name;
  UpdateRule rule;
};

struct Option {
  const char* name;
  void (*set)(UpdateRule& rule);
};

void add_cases(std::vector<Case>& cases, const char* name, const UpdateRule& rule,
               const std::vector<Option>& options) {
  for (std::size_t chosen = 0; chosen < std::size_t{1} << options.size(); ++chosen) {
    Case next = {.name = name, .rule = rule};
    for (std::size_t i = 0; i < options.size(); ++i) {
      if ((chosen >> i & 1) == 0) continue;
      next.name += std::string(" ") + options[i].name;
      options[i].set(next.rule);
    }
    cases.push_back(next);
  }
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    const Option maximize = {"maximize", [](UpdateRule& rule) { rule.maximize = true; }};
    const Option decay = {"weight_decay", [](UpdateRule& rule) { rule.weight_decay = 0.03; }};
    const Option momentum = {"momentum", [](UpdateRule& rule) { rule.momentum = 0.9; }};
    const Option dampening = {"dampening", [](UpdateRule& rule) { rule.dampening = 0.3; }};
    const Option nesterov = {"nesterov", [](UpdateRule& rule) { rule.nesterov = true; }};
    const Option amsgrad = {"amsgrad", [](UpdateRule& rule) { rule.amsgrad = true; }};
    const Option short_memory = {"beta1=0.3", [](UpdateRule& rule) { rule.beta1 = 0.3; }};
    const Option lr_decay = {"lr_decay", [](UpdateRule& rule) { rule.lr_decay = 0.1; }};
    const Option initial = {"initial_accumulator_value",
                            [](UpdateRule& rule) { rule.initial_accumulator_value = 0.5; }};
    const Option centered = {"centered", [](UpdateRule& rule) { rule.centered = true; }};
    std::vector<Case> result;
    add_cases(result, "SGD", {.kind = RuleKind::kSgd, .lr = 0.01},
              {maximize, decay, momentum, dampening, nesterov});
    for (const RuleKind kind : {RuleKind::kAdam, RuleKind::kAdamW}) {
      add_cases(result, kind == RuleKind::kAdam ? "Adam" : "AdamW", {.kind = kind, .lr = 0.01},
                {maximize, decay, amsgrad, short_memory});
    }
    add_cases(result, "Adagrad", {.kind = RuleKind::kAdagrad, .lr = 0.01, .eps = 1e-10},
              {maximize, decay, lr_decay, initial});
    add_cases(result, "RMSprop", {.kind = RuleKind::kRmsprop, .lr = 0.01},
              {maximize, decay, momentum, centered});
    add_cases(result, "Lion", {.kind = RuleKind::kLion, .lr = 0.001, .beta2 = 0.99},
              {maximize, decay, short_memory});
    return result;
  }();
  return cases;
}

// --- The formulas, one element at a time, in `Real`. ---

// Of a gradient already summed and scaled. `state` has a place for every array of every rule.
// Scalars are rounded to `Scalar` first: 1 - lr * weight_decay loses 3e-8 as a float32, each step.
template <class Real, class Scalar = Real>
class Formulas {
 public:
  using State = std::array<Real, 7>;

  Formulas(const UpdateRule& rule, std::int64_t step, bool fresh)
      : rule_(rule), step_(static_cast<double>(step)), fresh_(fresh) {}

  void apply(Real gradient, Real& parameter, State& state) const {
    if (fresh_) {
      state.fill(Real(0));
      at(state, StateArray::kSum) = scalar(rule_.initial_accumulator_value);
    }
    if (rule_.maximize) gradient = -gradient;
    if (rule_.weight_decay != 0 && !facts_of(rule_.kind).decouples_decay) {
      gradient = gradient + scalar(rule_.weight_decay) * parameter;
    }
    apply_rule(gradient, parameter, state);
    for (Real& value : state) {
      if (std::fpclassify(value) == FP_SUBNORMAL) value = 0;
    }
  }

 private:
  void apply_rule(Real gradient, Real& parameter, State& state) const {
    switch (rule_.kind) {
      case RuleKind::kSgd:
        return sgd(gradient, parameter, at(state, StateArray::kMomentumBuffer));
      case RuleKind::kAdam:
      case RuleKind::kAdamW:
        return adam(gradient, parameter, state);
      case RuleKind::kAdagrad:
        return adagrad(gradient, parameter, at(state, StateArray::kSum));
      case RuleKind::kRmsprop:
        return rmsprop(gradient, parameter, state);
      case RuleKind::kLion:
        return lion(gradient, parameter, at(state, StateArray::kExpAvg));
    }
  }

  void sgd(Real gradient, Real& parameter, Real& buffer) const {
    const Real momentum = scalar(rule_.momentum);
    if (rule_.momentum != 0) {
      buffer = fresh_ ? gradient : buffer * momentum + scalar(1 - rule_.dampening) * gradient;
      gradient = rule_.nesterov ? gradient + momentum * buffer : buffer;
    }
    parameter = parameter - scalar(rule_.lr) * gradient;
  }

  void adam(Real gradient, Real& parameter, State& state) const {
    Real& exp_avg = at(state, StateArray::kExpAvg);
    Real& exp_avg_sq = at(state, StateArray::kExpAvgSq);
    Real& max_exp_avg_sq = at(state, StateArray::kMaxExpAvgSq);
    if (rule_.kind == RuleKind::kAdamW) {
      parameter = parameter * scalar(1 - rule_.lr * rule_.weight_decay);
    }
    exp_avg = lerp(exp_avg, gradient, 1 - rule_.beta1);
    exp_avg_sq = square_average(exp_avg_sq, gradient, rule_.beta2);
    max_exp_avg_sq = oracle::combined(ReduceOp::kMax, max_exp_avg_sq, exp_avg_sq);
    const Real step_size = scalar(rule_.lr / (1 - std::pow(rule_.beta1, step_)));
    const Real correction = scalar(1 / std::sqrt(1 - std::pow(rule_.beta2, step_)));
    const Real root = std::sqrt(rule_.amsgrad ? max_exp_avg_sq : exp_avg_sq);
    parameter = parameter - step_size * exp_avg / (root * correction + scalar(rule_.eps));
  }

  void adagrad(Real gradient, Real& parameter, Real& sum) const {
    const Real step_size = scalar(rule_.lr / (1 + (step_ - 1) * rule_.lr_decay));
    sum = sum + gradient * gradient;
    parameter = parameter - step_size * gradient / (std::sqrt(sum) + scalar(rule_.eps));
  }

  void rmsprop(Real gradient, Real& parameter, State& state) const {
    Real& square_avg = at(state, StateArray::kSquareAvg);
    Real& grad_avg = at(state, StateArray::kGradAvg);
    Real& buffer = at(state, StateArray::kMomentumBuffer);
    const Real lr = scalar(rule_.lr);
    square_avg = square_average(square_avg, gradient, rule_.alpha);
    grad_avg = lerp(grad_avg, gradient, 1 - rule_.alpha);
    const Real variance = rule_.centered ? square_avg - grad_avg * grad_avg : square_avg;
    const Real root = std::sqrt(variance) + scalar(rule_.eps);
    buffer = buffer * scalar(rule_.momentum) + gradient / root;
    parameter = rule_.momentum != 0 ? parameter - lr * buffer : parameter - lr * gradient / root;
  }

  void lion(Real gradient, Real& parameter, Real& exp_avg) const {
    const Real direction = lerp(exp_avg, gradient, 1 - rule_.beta1);
    const Real sign = direction > 0 ? Real(1) : direction < 0 ? Real(-1) : direction;
    exp_avg = lerp(exp_avg, gradient, 1 - rule_.beta2);
    parameter = parameter * scalar(1 - rule_.lr * rule_.weight_decay) - scalar(rule_.lr) * sign;
  }

  static Real scalar(double value) { return static_cast<Real>(static_cast<Scalar>(value)); }
  static Real lerp(Real from, Real to, double weight) {
    return weight < 0.5 ? from + scalar(weight) * (to - from)
                        : to - scalar(1 - weight) * (to - from);
  }
  static Real square_average(Real old, Real next, double decay) {
    return old * scalar(decay) + scalar(1 - decay) * next * next;
  }
  static Real& at(State& state, StateArray array) { return state[static_cast<std::size_t>(array)]; }

  UpdateRule rule_;
  double step_;
  bool fresh_;
};

// --- A slice: its arrays, and what should become of them. ---

struct Slice {
  DType dtype;
  std::vector<Bytes> gradients;
  Bytes parameter;
  std::vector<Bytes> states;
};

Slice random_slice(std::mt19937_64& random, DType dtype, const UpdateRule& rule, std::size_t ranks,
                   std::size_t count) {
  Slice slice = {.dtype = dtype};
  for (std::size_t i = 0; i < ranks; ++i) {
    slice.gradients.push_back(oracle::random_elements(random, dtype, count));
  }
  slice.parameter = oracle::random_elements(random, dtype, count);
  slice.states.assign(state_arrays(rule).size(),
                      Bytes(count * dtype_bytes(dtype), std::byte{0xFF}));
  return slice;
}

std::vector<const std::byte*> const_pointers(const std::vector<Bytes>& arrays) {
  std::vector<const std::byte*> result;
  for (const Bytes& array : arrays) result.push_back(array.data());
  return result;
}

std::vector<std::byte*> pointers(std::vector<Bytes>& arrays) {
  std::vector<std::byte*> result;
  for (Bytes& array : arrays) result.push_back(array.data());
  return result;
}

struct Moment {
  std::int64_t step = 1;
  double scale = 1.0;
  bool fresh = false;
};
constexpr Moment kFirst = {.fresh = true};

void update_with(const Variant& variant, const UpdateRule& rule, Moment moment, Slice& slice) {
  const auto gradients = const_pointers(slice.gradients);
  const auto states = pointers(slice.states);
  std::byte* const parameters[] = {slice.parameter.data()};
  variant.loops->update(
      updating(rule, {.dtype = slice.dtype,
                      .step = moment.step,
                      .gradient_scale = moment.scale,
                      .fresh_state = moment.fresh,
                      .gradients = gradients,
                      .parameters = parameters,
                      .states = states,
                      .count = slice.parameter.size() / dtype_bytes(slice.dtype)}));
}

// Element by element; halves are computed in float32 and rounded at the end of the step.
void update_by_formulas(const UpdateRule& rule, Moment moment, Slice& slice) {
  oracle::visit_element(slice.dtype, [&](auto element) {
    using Element = decltype(element);
    using Stored = typename Element::Stored;
    using Computed = decltype(Element::decode(Stored{}));
    if constexpr (std::is_floating_point_v<Computed>) {
      const Formulas<Computed> formulas(rule, moment.step, moment.fresh);
      const std::span<const StateArray> arrays = state_arrays(rule);
      for (std::size_t i = 0; i < slice.parameter.size() / sizeof(Stored); ++i) {
        const auto load = [i](const Bytes& bytes) {
          return Element::decode(oracle::element_at<Stored>(bytes, i));
        };
        const auto store = [i](Bytes& bytes, Computed value) {
          oracle::set_element<Stored>(bytes, i, Element::encode(value));
        };
        Computed gradient = load(slice.gradients[0]);
        for (std::size_t rank = 1; rank < slice.gradients.size(); ++rank) {
          gradient = gradient + load(slice.gradients[rank]);
        }
        gradient = gradient * static_cast<Computed>(moment.scale);
        Computed parameter = load(slice.parameter);
        typename Formulas<Computed>::State state = {};
        for (std::size_t s = 0; s < arrays.size(); ++s) {
          state[static_cast<std::size_t>(arrays[s])] = load(slice.states[s]);
        }
        formulas.apply(gradient, parameter, state);
        store(slice.parameter, parameter);
        for (std::size_t s = 0; s < arrays.size(); ++s) {
          store(slice.states[s], state[static_cast<std::size_t>(arrays[s])]);
        }
      }
    }
  });
}

testing::AssertionResult same(const Slice& got, const Slice& want) {
  const auto parameters = oracle::same(got.dtype, got.parameter, want.parameter);
  if (!parameters) return testing::AssertionFailure() << "parameter: " << parameters.message();
  for (std::size_t s = 0; s < got.states.size(); ++s) {
    const auto states = oracle::same(got.dtype, got.states[s], want.states[s]);
    if (!states) return testing::AssertionFailure() << "state " << s << ": " << states.message();
  }
  return testing::AssertionSuccess();
}

void new_gradients(std::mt19937_64& random, Slice& slice) {
  for (Bytes& gradient : slice.gradients) {
    gradient =
        oracle::random_elements(random, slice.dtype, gradient.size() / dtype_bytes(slice.dtype));
  }
}

std::string context(const Case& c, DType dtype, std::int64_t step) {
  return c.name + " in " + std::string(dtype_name(dtype)) + ", step " + std::to_string(step) +
         ", seed " + std::to_string(kSeed);
}

class Update : public testing::TestWithParam<const Variant*> {
 protected:
  static void run(const UpdateRule& rule, Moment moment, Slice& slice) {
    update_with(*GetParam(), rule, moment, slice);
  }

  // Of one float32 element.
  static float run_one(const UpdateRule& rule, Moment moment, float gradient, float parameter,
                       std::vector<float>& states) {
    Slice slice = {.dtype = DType::kFloat32};
    slice.gradients = {bytes_of(std::vector<float>{gradient})};
    slice.parameter = bytes_of(std::vector<float>{parameter});
    for (const float state : states) slice.states.push_back(bytes_of(std::vector<float>{state}));
    run(rule, moment, slice);
    for (std::size_t s = 0; s < states.size(); ++s) {
      states[s] = values_of<float>(slice.states[s])[0];
    }
    return values_of<float>(slice.parameter)[0];
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, Update, testing::ValuesIn(oracle::available_variants()),
                         oracle::variant_name);

TEST_P(Update, FollowsTheFormulasBitForBitInEveryTypeFor100Steps) {
  std::mt19937_64 random(kSeed);
  for (const Case& c : all_cases()) {
    for (const DType dtype : kFloatingTypes) {
      Slice got = random_slice(random, dtype, c.rule, 2, 19);
      Slice want = got;
      for (int step = 1; step <= kSteps; ++step) {
        const Moment moment = {.step = step, .scale = 0.5, .fresh = step == 1};
        run(c.rule, moment, got);
        update_by_formulas(c.rule, moment, want);
        ASSERT_TRUE(same(got, want)) << context(c, dtype, step);
        new_gradients(random, got);
        want.gradients = got.gradients;
      }
    }
  }
}

// In the norm: a single float32 multiplied 100 times by 0.9997 may be off by three millionths.
TEST_P(Update, StaysWithinAMillionthOfDoublePrecisionFor100Steps) {
  std::mt19937_64 random(kSeed);
  constexpr std::size_t kCount = 100;
  for (const Case& c : all_cases()) {
    Slice slice = random_slice(random, DType::kFloat32, c.rule, 1, kCount);
    const std::vector<float> start = values_of<float>(slice.parameter);
    std::vector<double> want(start.begin(), start.end());
    std::vector<Formulas<double>::State> states(kCount);
    for (int step = 1; step <= kSteps; ++step) {
      run(c.rule, {.step = step, .fresh = step == 1}, slice);
      const std::vector<float> gradients = values_of<float>(slice.gradients[0]);
      const Formulas<double, float> formulas(c.rule, step, step == 1);
      for (std::size_t i = 0; i < kCount; ++i) {
        formulas.apply(static_cast<double>(gradients[i]), want[i], states[i]);
      }
      new_gradients(random, slice);
    }
    const std::vector<float> got = values_of<float>(slice.parameter);
    double error = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < kCount; ++i) {
      error += std::pow(static_cast<double>(got[i]) - want[i], 2);
      norm += std::pow(want[i], 2);
    }
    EXPECT_LT(std::sqrt(error / norm), 1e-6) << context(c, DType::kFloat32, kSteps);
  }
}

TEST_P(Update, TakesArbitraryBitsWhereTorchTakesThem) {
  std::mt19937_64 random(kSeed);
  for (const Case& c : all_cases()) {
    for (const DType dtype : kFloatingTypes) {
      Slice got = random_slice(random, dtype, c.rule, 2, 501);
      for (Bytes& bytes : got.gradients) bytes = oracle::random_bits(random, bytes.size());
      for (Bytes& bytes : got.states) bytes = oracle::random_bits(random, bytes.size());
      got.parameter = oracle::random_bits(random, got.parameter.size());
      Slice want = got;
      run(c.rule, {.step = 7}, got);
      update_by_formulas(c.rule, {.step = 7}, want);
      ASSERT_TRUE(same(got, want)) << context(c, dtype, 7);
    }
  }
}

TEST_P(Update, GivesTheBitsOfThePortableVariant) {
  std::mt19937_64 random(kSeed);
  for (const Case& c : all_cases()) {
    for (const DType dtype : kFloatingTypes) {
      Slice got = random_slice(random, dtype, c.rule, 3, 5003);
      Slice want = got;
      for (int step = 1; step <= 3; ++step) {
        const Moment moment = {.step = step, .scale = 1.0 / 3, .fresh = step == 1};
        run(c.rule, moment, got);
        update_with(variants().back(), c.rule, moment, want);
      }
      ASSERT_EQ(got.parameter, want.parameter) << context(c, dtype, 3);
      ASSERT_EQ(got.states, want.states) << context(c, dtype, 3);
    }
  }
}

TEST_P(Update, EqualsReduceFollowedByAnUpdate) {
  std::mt19937_64 random(kSeed);
  for (const Case& c : all_cases()) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const std::size_t ranks : Counts{1, 2, 3, 8}) {
        Slice got = random_slice(random, dtype, c.rule, ranks, 259);
        Slice want = got;
        const auto gradients = const_pointers(want.gradients);
        Bytes reduced(want.parameter.size());
        std::byte* const to[] = {reduced.data()};
        reduce({.dtype = dtype, .op = ReduceOp::kSum, .postscale = 0.3}, gradients, to, 259);
        want.gradients = {reduced};
        run(c.rule, {.scale = 0.3, .fresh = true}, got);
        run(c.rule, kFirst, want);
        ASSERT_EQ(got.parameter, want.parameter) << context(c, dtype, 1);
        ASSERT_EQ(got.states, want.states) << context(c, dtype, 1);
      }
    }
  }
}

TEST_P(Update, TakesEveryCountAndWritesNothingBeyond) {
  std::mt19937_64 random(kSeed);
  constexpr std::size_t kMargin = 16;
  const UpdateRule rule = {.kind = RuleKind::kAdam, .amsgrad = true};
  for (const DType dtype : kFloatingTypes) {
    const std::size_t element_bytes = dtype_bytes(dtype);
    for (std::size_t count = 0; count <= 130; ++count) {
      Slice got = random_slice(random, dtype, rule, 2, count + kMargin);
      for (Bytes& state : got.states) state = got.gradients[0];
      Slice want = got;
      update_by_formulas(rule, {.step = 2}, want);
      const auto keep_margin = [&](Bytes& wanted, const Bytes& old) {
        const auto margin = static_cast<std::ptrdiff_t>(count * element_bytes);
        std::copy(old.begin() + margin, old.end(), wanted.begin() + margin);
      };
      keep_margin(want.parameter, got.parameter);
      for (std::size_t s = 0; s < 3; ++s) keep_margin(want.states[s], got.states[s]);
      const auto gradients = const_pointers(got.gradients);
      const auto states = pointers(got.states);
      std::byte* const parameters[] = {got.parameter.data()};
      GetParam()->loops->update(updating(rule, {.dtype = dtype,
                                                .step = 2,
                                                .gradients = gradients,
                                                .parameters = parameters,
                                                .states = states,
                                                .count = count}));
      ASSERT_TRUE(same(got, want)) << count << " of " << dtype_name(dtype);
    }
  }
}

TEST_P(Update, AcceptsMemoryAlignedToOneElementOnly) {
  std::mt19937_64 random(kSeed);
  const UpdateRule rule = {.kind = RuleKind::kAdam};
  for (const DType dtype : kFloatingTypes) {
    const std::size_t shift = dtype_bytes(dtype);
    constexpr std::size_t kCount = 77;
    Slice want = random_slice(random, dtype, rule, 2, kCount);
    // Each array at another distance from its allocation's start.
    std::vector<Bytes> arrays = {want.gradients[0], want.gradients[1], want.parameter,
                                 want.states[0], want.states[1]};
    std::vector<std::byte*> shifted;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      arrays[a].insert(arrays[a].begin(), (a + 1) * shift, std::byte{0});
      shifted.push_back(arrays[a].data() + (a + 1) * shift);
    }
    const std::byte* const gradients[] = {shifted[0], shifted[1]};
    GetParam()->loops->update(updating(rule, {.dtype = dtype,
                                              .fresh_state = true,
                                              .gradients = gradients,
                                              .parameters = std::span(shifted).subspan(2, 1),
                                              .states = std::span(shifted).subspan(3, 2),
                                              .count = kCount}));
    update_by_formulas(rule, kFirst, want);
    const Bytes parameter(shifted[2], shifted[2] + kCount * shift);
    ASSERT_TRUE(oracle::same(dtype, parameter, want.parameter)) << dtype_name(dtype);
  }
}

TEST_P(Update, WritesEveryCopyAndReadsTheFirst) {
  std::mt19937_64 random(kSeed);
  const UpdateRule rule = {.momentum = 0.9};
  for (const DType dtype : kFloatingTypes) {
    Slice slice = random_slice(random, dtype, rule, 1, 45);
    Slice want = slice;
    update_by_formulas(rule, kFirst, want);
    std::vector<Bytes> copies(3, oracle::random_bits(random, slice.parameter.size()));
    copies[0] = slice.parameter;
    const auto gradients = const_pointers(slice.gradients);
    const auto states = pointers(slice.states);
    GetParam()->loops->update(updating(rule, {.dtype = dtype,
                                              .fresh_state = true,
                                              .gradients = gradients,
                                              .parameters = pointers(copies),
                                              .states = states,
                                              .count = 45}));
    for (const Bytes& copy : copies) ASSERT_TRUE(oracle::same(dtype, copy, want.parameter));
  }
}

TEST_P(Update, LeavesTheReducedGradientInTheGradientsOwnMemory) {
  std::mt19937_64 random(kSeed);
  const UpdateRule rule = {.kind = RuleKind::kAdamW, .weight_decay = 0.1, .maximize = true};
  for (const DType dtype : kFloatingTypes) {
    Slice slice = random_slice(random, dtype, rule, 3, 83);
    Slice want = slice;
    const Bytes reduced = oracle::reduce(dtype, ReduceOp::kSum, {.post = 0.7}, slice.gradients);
    update_by_formulas(rule, {.scale = 0.7, .fresh = true}, want);
    const auto gradients = const_pointers(slice.gradients);
    const auto states = pointers(slice.states);
    std::byte* const parameters[] = {slice.parameter.data()};
    // Another order than the inputs': the last input is written before the first.
    std::vector<std::byte*> outputs = pointers(slice.gradients);
    std::reverse(outputs.begin(), outputs.end());
    GetParam()->loops->update(updating(rule, {.dtype = dtype,
                                              .gradient_scale = 0.7,
                                              .fresh_state = true,
                                              .gradients = gradients,
                                              .parameters = parameters,
                                              .states = states,
                                              .gradient_outputs = outputs,
                                              .count = 83}));
    ASSERT_TRUE(same(slice, want)) << dtype_name(dtype);
    for (const Bytes& gradient : slice.gradients) {
      ASSERT_TRUE(oracle::same(dtype, gradient, reduced)) << dtype_name(dtype);
    }
  }
}

TEST_P(Update, StartsMomentumFromTheUndampenedGradient) {
  const UpdateRule rule = {.lr = 0.5, .momentum = 0.5, .dampening = 0.75};
  std::vector<float> states = {kNan};  // fresh: whatever lies there
  EXPECT_EQ(run_one(rule, kFirst, 8.0f, 1.0f, states), 1.0f - 0.5f * 8.0f);
  EXPECT_EQ(states[0], 8.0f);
  EXPECT_EQ(run_one(rule, {.step = 2}, 4.0f, 0.0f, states), -0.5f * (4.0f + 1.0f));
}

TEST_P(Update, StartsAdagradFromItsInitialValue) {
  const UpdateRule rule = {
      .kind = RuleKind::kAdagrad, .lr = 1.0, .eps = 0.0, .initial_accumulator_value = 7.0};
  std::vector<float> states = {kNan};
  EXPECT_EQ(run_one(rule, kFirst, 3.0f, 1.0f, states), 1.0f - 3.0f / 4.0f);
  EXPECT_EQ(states[0], 16.0f);
}

TEST_P(Update, TurnsSubnormalStateIntoZero) {
  const float tiny = std::numeric_limits<float>::min();
  std::vector<float> states = {tiny, -tiny};
  run_one({.kind = RuleKind::kAdam}, {.step = 2}, 0.0f, 1.0f, states);
  EXPECT_EQ(states, (std::vector<float>{0.0f, 0.0f}));
  states = {tiny * 2, tiny * 2};
  run_one({.kind = RuleKind::kAdam}, {.step = 2}, 0.0f, 1.0f, states);
  EXPECT_GT(states[0], 0.0f);
}

TEST_P(Update, LetsNanAndInfinityThrough) {
  for (const Case& c : all_cases()) {
    std::vector<float> states(state_arrays(c.rule).size());
    EXPECT_TRUE(std::isnan(run_one(c.rule, kFirst, kNan, 1.0f, states))) << c.name;
    for (const float state : states) EXPECT_TRUE(std::isnan(state)) << c.name;
    const float moved = run_one(c.rule, kFirst, kInfinity, 1.0f, states);
    // Lion takes the sign of the gradient; infinity stays in its state.
    const bool is_lion = c.rule.kind == RuleKind::kLion;
    EXPECT_FALSE(std::isfinite(is_lion ? states[0] : moved)) << c.name;
  }
}

TEST_P(Update, KeepsNanInTheMaximumOfAmsgrad) {
  const UpdateRule rule = {.kind = RuleKind::kAdam, .amsgrad = true};
  std::vector<float> states = {0.0f, 1.0f, kNan};
  EXPECT_TRUE(std::isnan(run_one(rule, {.step = 2}, 1.0f, 1.0f, states)));
  EXPECT_TRUE(std::isnan(states[2]));
}

// --- What a rule keeps. ---

std::vector<std::string_view> state_names(const UpdateRule& rule) {
  std::vector<std::string_view> names;
  for (const StateArray array : state_arrays(rule)) names.push_back(torch_name(array));
  return names;
}

TEST(UpdateRuleStates, BearTorchsNames) {
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(state_names({.kind = RuleKind::kSgd}), Names{});
  EXPECT_EQ(state_names({.kind = RuleKind::kSgd, .momentum = 0.9}), Names{"momentum_buffer"});
  for (const RuleKind adam : {RuleKind::kAdam, RuleKind::kAdamW}) {
    EXPECT_EQ(state_names({.kind = adam}), (Names{"exp_avg", "exp_avg_sq"}));
    EXPECT_EQ(state_names({.kind = adam, .amsgrad = true}),
              (Names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}));
  }
  EXPECT_EQ(state_names({.kind = RuleKind::kAdagrad}), Names{"sum"});
  EXPECT_EQ(state_names({.kind = RuleKind::kLion}), Names{"exp_avg"});
  EXPECT_EQ(state_names({.kind = RuleKind::kRmsprop}), Names{"square_avg"});
  EXPECT_EQ(state_names({.kind = RuleKind::kRmsprop, .momentum = 0.9}),
            (Names{"momentum_buffer", "square_avg"}));
  EXPECT_EQ(state_names({.kind = RuleKind::kRmsprop, .centered = true}),
            (Names{"square_avg", "grad_avg"}));
  EXPECT_EQ(state_names({.kind = RuleKind::kRmsprop, .momentum = 0.9, .centered = true}),
            (Names{"momentum_buffer", "square_avg", "grad_avg"}));
}

TEST(UpdateRuleStates, AreCountedByTheCompiler) {
  static_assert(state_count({.kind = RuleKind::kSgd}) == 0);
  static_assert(state_count({.kind = RuleKind::kAdam}) == 2);
}

// --- Through the front, with the instruction set it chose. ---

TEST(UpdateFront, AveragesTwoRanksIntoTwoCopies) {
  const std::vector<float> a = {1, 2, 3};
  const std::vector<float> b = {3, 4, 6};
  std::vector<float> copies[2] = {{10, 10, 10}, {10, 10, 10}};
  const std::byte* const gradients[] = {reinterpret_cast<const std::byte*>(a.data()),
                                        reinterpret_cast<const std::byte*>(b.data())};
  std::byte* const parameters[] = {reinterpret_cast<std::byte*>(copies[0].data()),
                                   reinterpret_cast<std::byte*>(copies[1].data())};
  update({.lr = 1.0}, {.dtype = DType::kFloat32,
                       .gradient_scale = 0.5,
                       .gradients = gradients,
                       .parameters = parameters,
                       .count = 3});
  EXPECT_EQ(copies[0], (std::vector<float>{8, 7, 5.5}));
  EXPECT_EQ(copies[1], copies[0]);
}

TEST(UpdateFrontDeathTest, RefusesStatesThatTheRuleDoesNotKeep) {
  float value = 1.0f;
  auto* const bytes = reinterpret_cast<std::byte*>(&value);
  const std::byte* const gradients[] = {bytes};
  std::byte* const parameters[] = {bytes};
  EXPECT_DEATH(
      update(
          {.kind = RuleKind::kAdam},
          {.dtype = DType::kFloat32, .gradients = gradients, .parameters = parameters, .count = 1}),
      "broken invariant");
}

// --- Sum of squares. ---

class SumOfSquares : public testing::TestWithParam<const Variant*> {
 protected:
  static double run_with(const Variant& variant, DType dtype, const std::vector<Bytes>& inputs) {
    const auto from = const_pointers(inputs);
    return variant.loops->sum_of_squares({.dtype = dtype,
                                          .inputs = from.data(),
                                          .input_count = from.size(),
                                          .count = inputs[0].size() / dtype_bytes(dtype)});
  }
  static double run(DType dtype, const std::vector<Bytes>& inputs) {
    return run_with(*GetParam(), dtype, inputs);
  }
  static double run_floats(const std::vector<float>& values) {
    return run(DType::kFloat32, {bytes_of(values)});
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, SumOfSquares, testing::ValuesIn(oracle::available_variants()),
                         oracle::variant_name);

TEST_P(SumOfSquares, EqualsTheNaiveSumForEveryTypeAndCount) {
  std::mt19937_64 random(kSeed);
  for (const DType dtype : kFloatingTypes) {
    for (std::size_t count = 0; count <= 70; ++count) {
      std::vector<Bytes> inputs;
      for (int rank = 0; rank < 3; ++rank) {
        inputs.push_back(oracle::random_elements(random, dtype, count));
      }
      double want = 0.0;
      oracle::visit_element(dtype, [&](auto element) {
        using Element = decltype(element);
        using Stored = typename Element::Stored;
        for (std::size_t i = 0; i < count; ++i) {
          const auto load = [&](std::size_t rank) {
            return Element::decode(oracle::element_at<Stored>(inputs[rank], i));
          };
          const auto sum = static_cast<double>(load(0) + load(1) + load(2));
          want += sum * sum;
        }
      });
      ASSERT_NEAR(run(dtype, inputs), want, 1e-14 * want)
          << count << " of " << dtype_name(dtype) << ", seed " << kSeed;
    }
  }
}

TEST_P(SumOfSquares, GivesTheBitsOfThePortableVariant) {
  std::mt19937_64 random(kSeed);
  for (const DType dtype : kFloatingTypes) {
    for (const std::size_t count : Counts{5, 4096, 10'007}) {
      const std::vector<Bytes> inputs = {oracle::random_elements(random, dtype, count),
                                         oracle::random_elements(random, dtype, count)};
      EXPECT_EQ(run(dtype, inputs), run_with(variants().back(), dtype, inputs))
          << count << " of " << dtype_name(dtype) << ", seed " << kSeed;
    }
  }
}

TEST_P(SumOfSquares, StaysExactWhereFloat32WouldStopAdding) {
  constexpr std::size_t kCount = (std::size_t{1} << 22) + 3;
  const double square = 0.1f * static_cast<double>(0.1f);
  const double want = static_cast<double>(kCount) * square;
  EXPECT_NEAR(run_floats(std::vector<float>(kCount, 0.1f)), want, 1e-10 * want);
}

TEST_P(SumOfSquares, HoldsSquaresThatFloat32DoesNot) {
  EXPECT_EQ(run_floats({0x1p100f}), 0x1p200);
  EXPECT_EQ(run_floats({0x1p-140f}), 0x1p-280);
}

TEST_P(SumOfSquares, TellsOfAnythingThatIsNotFinite) {
  for (const std::size_t at : Counts{0, 15, 16, 33}) {
    for (const float value : {kNan, kInfinity, -kInfinity}) {
      std::vector<float> values(34, 1.0f);
      values[at] = value;
      EXPECT_FALSE(std::isfinite(run_floats(values))) << value << " at " << at;
    }
  }
  const std::vector<Bytes> opposite = {bytes_of(std::vector<float>{kInfinity}),
                                       bytes_of(std::vector<float>{-kInfinity})};
  EXPECT_FALSE(std::isfinite(run(DType::kFloat32, opposite)));
}

TEST(SumOfSquaresFront, ScalesTheNorm) {
  const std::vector<float> a = {1, 2};
  const std::vector<float> b = {2, 2};
  const std::byte* const inputs[] = {reinterpret_cast<const std::byte*>(a.data()),
                                     reinterpret_cast<const std::byte*>(b.data())};
  EXPECT_EQ(sum_of_squares(DType::kFloat32, inputs, 0.5, 2), 25.0 / 4);
}

}  // namespace
}  // namespace ciranda::kernels
