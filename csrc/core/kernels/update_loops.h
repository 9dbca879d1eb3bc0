#pragma once

#include <cstddef>
#include <limits>

#include "core/base/assert.h"
#include "core/kernels/loops.h"
#include "core/kernels/variants.h"
#include "core/kernels/vectors.h"

// The loops of update_rule.h for an instruction set `Isa`. Anonymous for the same reason as
// vectors.h.
namespace ciranda::kernels {
namespace {

// --- Rules: one step of one vector of elements. ---
//
// A rule keeps kStates arrays. step() takes the gradient (maximize and the coupled weight decay are
// done), the old parameter and the old state; it leaves the new state and returns the new
// parameter. Scalars are rounded to the element type once, as torch rounds them.

template <class Format>
class MovingAverage {
 public:
  using Vec = typename Format::Vec;
  using Element = typename Format::Element;

  explicit MovingAverage(double decay)
      : from_old_(1.0 - decay < 0.5),
        share_(static_cast<Element>(from_old_ ? 1.0 - decay : (1.0 - decay) - 1.0)) {}

  // old + (1 - decay) * (next - old), from the nearer end, as torch.lerp.
  Vec operator()(Vec old, Vec next) const {
    return (from_old_ ? old : next) + share_ * (next - old);
  }

 private:
  bool from_old_;
  Element share_;
};

template <class Format>
class MovingSquare {
 public:
  using Vec = typename Format::Vec;
  using Element = typename Format::Element;

  explicit MovingSquare(double decay)
      : decay_(static_cast<Element>(decay)), share_(static_cast<Element>(1.0 - decay)) {}

  Vec operator()(Vec old, Vec next) const { return old * decay_ + share_ * next * next; }

 private:
  Element decay_;
  Element share_;
};

template <class Isa, class Format, bool kMomentum>
class Sgd {
 public:
  using Vec = typename Format::Vec;
  static constexpr std::size_t kStates = kMomentum ? 1 : 0;

  explicit Sgd(const Updating& u)
      : fresh_(u.fresh_state),
        nesterov_(u.rule.nesterov),
        momentum_(static_cast<Element>(u.rule.momentum)),
        share_(static_cast<Element>(1.0 - u.rule.dampening)),
        step_size_(static_cast<Element>(u.step_size)) {}

  Vec step(Vec gradient, Vec parameter, [[maybe_unused]] Vec* states) const {
    if constexpr (kMomentum) {
      Vec& buffer = states[0];
      buffer = fresh_ ? gradient : buffer * momentum_ + gradient * share_;
      gradient = nesterov_ ? gradient + buffer * momentum_ : buffer;
    }
    return parameter - step_size_ * gradient;
  }

 private:
  using Element = typename Format::Element;
  bool fresh_;
  bool nesterov_;
  Element momentum_;
  Element share_;
  Element step_size_;
};

template <class Isa, class Format, bool kAmsgrad>
class Adam {
 public:
  using Vec = typename Format::Vec;
  static constexpr std::size_t kStates = kAmsgrad ? 3 : 2;

  explicit Adam(const Updating& u)
      : first_moment_(u.rule.beta1),
        second_moment_(u.rule.beta2),
        kept_(static_cast<Element>(
            u.rule.kind == RuleKind::kAdamW ? 1.0 - u.rule.lr * u.rule.weight_decay : 1.0)),
        step_size_(static_cast<Element>(u.step_size)),
        correction_(static_cast<Element>(1.0 / u.bias_correction2_sqrt)),
        eps_(static_cast<Element>(u.rule.eps)) {}

  Vec step(Vec gradient, Vec parameter, Vec* states) const {
    Vec& exp_avg = states[0];
    Vec& exp_avg_sq = states[1];
    exp_avg = first_moment_(exp_avg, gradient);
    exp_avg_sq = second_moment_(exp_avg_sq, gradient);
    Vec square = exp_avg_sq;
    if constexpr (kAmsgrad) square = states[2] = Max<Format>::combine(states[2], exp_avg_sq);
    return parameter * kept_ - step_size_ * exp_avg / (Isa::sqrt(square) * correction_ + eps_);
  }

 private:
  using Element = typename Format::Element;
  MovingAverage<Format> first_moment_;
  MovingSquare<Format> second_moment_;
  Element kept_;  // of the parameter, after AdamW's weight decay
  Element step_size_;
  Element correction_;  // 1 / sqrt of the second moment's bias correction
  Element eps_;
};

template <class Isa, class Format>
class Adagrad {
 public:
  using Vec = typename Format::Vec;
  static constexpr std::size_t kStates = 1;

  explicit Adagrad(const Updating& u)
      : step_size_(static_cast<Element>(u.step_size)), eps_(static_cast<Element>(u.rule.eps)) {}

  Vec step(Vec gradient, Vec parameter, Vec* states) const {
    Vec& sum = states[0];
    sum = sum + gradient * gradient;
    return parameter - step_size_ * gradient / (Isa::sqrt(sum) + eps_);
  }

 private:
  using Element = typename Format::Element;
  Element step_size_;
  Element eps_;
};

template <class Isa, class Format, bool kMomentum, bool kCentered>
class Rmsprop {
 public:
  using Vec = typename Format::Vec;
  static constexpr std::size_t kStates = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);

  explicit Rmsprop(const Updating& u)
      : average_(u.rule.alpha),
        square_average_(u.rule.alpha),
        momentum_(static_cast<Element>(u.rule.momentum)),
        step_size_(static_cast<Element>(u.step_size)),
        eps_(static_cast<Element>(u.rule.eps)) {}

  Vec step(Vec gradient, Vec parameter, Vec* states) const {
    Vec& square_avg = states[kMomentum ? 1 : 0];
    square_avg = square_average_(square_avg, gradient);
    Vec variance = square_avg;
    if constexpr (kCentered) {
      Vec& grad_avg = states[kMomentum ? 2 : 1];
      grad_avg = average_(grad_avg, gradient);
      variance = square_avg - grad_avg * grad_avg;  // below zero by rounding: NaN, as in torch
    }
    const Vec root = Isa::sqrt(variance) + eps_;
    if constexpr (kMomentum) {
      Vec& buffer = states[0];
      buffer = buffer * momentum_ + gradient / root;
      return parameter - step_size_ * buffer;
    } else {
      return parameter - step_size_ * gradient / root;
    }
  }

 private:
  using Element = typename Format::Element;
  MovingAverage<Format> average_;
  MovingSquare<Format> square_average_;
  Element momentum_;
  Element step_size_;
  Element eps_;
};

// --- The pass over memory. ---

// How a vector meets memory: whole, or the last one in fewer elements than it has lanes.
template <class Format>
struct WholeVector {
  using Stored = typename Format::Stored;
  static auto load(const std::byte* from) { return Format::load(from); }
  static void store(std::byte* to, Stored packed) { store_vector(to, packed); }
};

template <class Format>
struct FirstElements {
  using Stored = typename Format::Stored;
  std::size_t elements;
  auto load(const std::byte* from) const { return load_first<Format>(from, elements); }
  void store(std::byte* to, Stored packed) const {
    __builtin_memcpy(to, &packed, elements * Format::kElementBytes);
  }
};

// In the order of the inputs, as ReduceLoop does.
template <class Format, class Memory>
[[gnu::always_inline]] inline typename Format::Vec sum_of(const std::byte* const* inputs,
                                                          std::size_t input_count,
                                                          std::size_t offset, Memory memory) {
  auto sum = memory.load(inputs[0] + offset);
  for (std::size_t i = 1; i < input_count; ++i) sum = sum + memory.load(inputs[i] + offset);
  return sum;
}

template <class Format>
inline typename Format::Vec without_subnormals(typename Format::Vec vec) {
  constexpr auto kNormalMin = std::numeric_limits<typename Format::Element>::min();
  return ((vec < kNormalMin) & (vec > -kNormalMin)) ? typename Format::Vec{} : vec;
}

template <class Format, class Rule>
class UpdateLoop {
 public:
  explicit UpdateLoop(const Updating& updating)
      : u_(updating),
        rule_(updating),
        scale_(static_cast<Element>(u_.gradient_scale)),
        sign_(u_.rule.maximize ? Element{-1} : Element{1}),
        is_coupled_(u_.rule.kind != RuleKind::kAdamW && u_.rule.weight_decay != 0.0),
        coupled_decay_(static_cast<Element>(u_.rule.weight_decay)),
        initial_state_(static_cast<Element>(
            u_.rule.kind == RuleKind::kAdagrad ? u_.rule.initial_accumulator_value : 0.0)) {}

  void run() const {
    constexpr std::size_t kLanes = Format::kLanes;
    std::size_t i = 0;
    for (; i + kLanes <= u_.count; i += kLanes) {
      update_vector(i * Format::kElementBytes, WholeVector<Format>{});
    }
    if (i < u_.count) {
      update_vector(i * Format::kElementBytes, FirstElements<Format>{.elements = u_.count - i});
    }
  }

 private:
  using Vec = typename Format::Vec;
  using Element = typename Format::Element;

  // Every gradient is read before anything is written: an output may be the same memory.
  template <class Memory>
  void update_vector(std::size_t offset, Memory memory) const {
    Vec gradient = scale_ * sum_of<Format>(u_.gradients, u_.gradient_count, offset, memory);
    store_all(u_.gradient_outputs, u_.gradient_output_count, offset, gradient, memory);
    Vec parameter = memory.load(u_.parameters[0] + offset);
    Vec states[Rule::kStates + 1];  // one too many, because a rule may have none
    for (std::size_t s = 0; s < Rule::kStates; ++s) {
      states[s] = u_.fresh_state ? Vec{} + initial_state_ : memory.load(u_.states[s] + offset);
    }
    gradient = gradient * sign_;
    if (is_coupled_) gradient = gradient + coupled_decay_ * parameter;
    parameter = rule_.step(gradient, parameter, states);
    for (std::size_t s = 0; s < Rule::kStates; ++s) {
      memory.store(u_.states[s] + offset, Format::pack(without_subnormals<Format>(states[s])));
    }
    store_all(u_.parameters, u_.parameter_count, offset, parameter, memory);
  }

  template <class Memory>
  static void store_all(std::byte* const* outputs, std::size_t output_count, std::size_t offset,
                        Vec vec, Memory memory) {
    if (output_count == 0) return;
    const typename Format::Stored packed = Format::pack(vec);  // once for all
    for (std::size_t i = 0; i < output_count; ++i) memory.store(outputs[i] + offset, packed);
  }

  const Updating u_;
  const Rule rule_;
  const Element scale_;
  const Element sign_;
  const bool is_coupled_;
  const Element coupled_decay_;
  const Element initial_state_;
};

template <class Isa, class Format>
void update_format(const Updating& u) {
  const bool momentum = u.rule.momentum != 0.0;
  switch (u.rule.kind) {
    case RuleKind::kSgd:
      if (momentum) return UpdateLoop<Format, Sgd<Isa, Format, true>>(u).run();
      return UpdateLoop<Format, Sgd<Isa, Format, false>>(u).run();
    case RuleKind::kAdam:
    case RuleKind::kAdamW:
      if (u.rule.amsgrad) return UpdateLoop<Format, Adam<Isa, Format, true>>(u).run();
      return UpdateLoop<Format, Adam<Isa, Format, false>>(u).run();
    case RuleKind::kAdagrad:
      return UpdateLoop<Format, Adagrad<Isa, Format>>(u).run();
    case RuleKind::kRmsprop:
      if (momentum && u.rule.centered) {
        return UpdateLoop<Format, Rmsprop<Isa, Format, true, true>>(u).run();
      }
      if (momentum) return UpdateLoop<Format, Rmsprop<Isa, Format, true, false>>(u).run();
      if (u.rule.centered) return UpdateLoop<Format, Rmsprop<Isa, Format, false, true>>(u).run();
      return UpdateLoop<Format, Rmsprop<Isa, Format, false, false>>(u).run();
  }
  CIRANDA_UNREACHABLE();
}

template <class Isa>
void update_loops(const Updating& updating) {
  switch (updating.dtype) {
    case DType::kFloat16:
      return update_format<Isa, Float16<Isa>>(updating);
    case DType::kBFloat16:
      return update_format<Isa, BFloat16<Isa>>(updating);
    case DType::kFloat32:
      return update_format<Isa, Plain<Isa, float>>(updating);
    case DType::kFloat64:
      return update_format<Isa, Plain<Isa, double>>(updating);
    default:
      CIRANDA_UNREACHABLE();
  }
}

// --- Sum of squares. ---

template <class Isa, class Format>
class SquareLoop {
 public:
  explicit SquareLoop(const Squaring& squaring) : s_(squaring) {}

  double run() const {
    Doubles sums[kSumVecs] = {};
    std::size_t i = 0;
    for (; i + kSums <= s_.count; i += kSums) {
      for (std::size_t v = 0; v < kVecsPerStrip; ++v) {
        add_vector(sums, v, i + v * Format::kLanes, WholeVector<Format>{});
      }
    }
    std::size_t v = 0;
    for (; i + Format::kLanes <= s_.count; i += Format::kLanes, ++v) {
      add_vector(sums, v, i, WholeVector<Format>{});
    }
    if (i < s_.count) add_vector(sums, v, i, FirstElements<Format>{.elements = s_.count - i});
    double in_order[kSums];
    __builtin_memcpy(in_order, sums, sizeof(sums));
    double total = 0.0;
    for (const double sum : in_order) total += sum;
    return total;
  }

 private:
  using Vec = typename Format::Vec;
  using Doubles = typename Isa::Doubles;
  // Element i is added to sum i % kSums, however wide the vectors are: the same bits. So many hide
  // an addition behind the others and stay in registers.
  static constexpr std::size_t kSums = 16;
  static constexpr std::size_t kVecsPerStrip = kSums / Format::kLanes;
  static constexpr std::size_t kSumVecs = kSums * sizeof(double) / sizeof(Doubles);
  static constexpr std::size_t kSumVecsPerVec = kSumVecs / kVecsPerStrip;

  // `first_element` is the first of the v-th vector of a strip.
  template <class Memory>
  [[gnu::always_inline]] void add_vector(Doubles* sums, std::size_t v, std::size_t first_element,
                                         Memory memory) const {
    const Vec vec =
        sum_of<Format>(s_.inputs, s_.input_count, first_element * Format::kElementBytes, memory);
    if constexpr (kSumVecsPerVec == 1) {
      sums[v] = sums[v] + vec * vec;
    } else {
      Vector<float, sizeof(Vec) / 2> parts[2];
      __builtin_memcpy(parts, &vec, sizeof(vec));
      for (std::size_t part = 0; part < 2; ++part) {
        const Doubles wide = Isa::to_doubles(parts[part]);
        Doubles& sum = sums[2 * v + part];
        sum = sum + wide * wide;  // 48 bits: exact
      }
    }
  }

  const Squaring s_;
};

template <class Isa>
double sum_of_squares_loops(const Squaring& squaring) {
  switch (squaring.dtype) {
    case DType::kFloat16:
      return SquareLoop<Isa, Float16<Isa>>(squaring).run();
    case DType::kBFloat16:
      return SquareLoop<Isa, BFloat16<Isa>>(squaring).run();
    case DType::kFloat32:
      return SquareLoop<Isa, Plain<Isa, float>>(squaring).run();
    case DType::kFloat64:
      return SquareLoop<Isa, Plain<Isa, double>>(squaring).run();
    default:
      CIRANDA_UNREACHABLE();
  }
}

}  // namespace
}  // namespace ciranda::kernels
