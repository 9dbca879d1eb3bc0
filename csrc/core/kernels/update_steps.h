#pragma once

#include <cstddef>

#include "core/kernels/variants.h"
#include "core/kernels/vector_ops.h"

// The rules of update_rule.h: one step of one vector of elements.
//
// A rule keeps kStates arrays. step() takes the gradient (maximize and the coupled weight decay are
// done), the old parameter and the old state; it leaves the new state and returns the new
// parameter. Scalars are rounded to the element type once, as torch rounds them.
//
// Anonymous for the same reason as vectors.h.
namespace ciranda::kernels {
namespace {

template <class Format>
class MovingAverage {
 public:
  using Vec = typename Format::Vec;
  using Element = typename Format::Element;

  explicit MovingAverage(double decay)
      : from_old_(1.0 - decay < 0.5),
        share_(static_cast<Element>(from_old_ ? 1.0 - decay : (1.0 - decay) - 1.0)) {}

  // Returns old + (1 - decay) * (next - old), computed from the nearer end, as torch.lerp.
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
        kept_(static_cast<Element>(u.kept)),
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
  Element kept_;
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

template <class Isa, class Format>
class Lion {
 public:
  using Vec = typename Format::Vec;
  static constexpr std::size_t kStates = 1;

  explicit Lion(const Updating& u)
      : direction_(u.rule.beta1),
        average_(u.rule.beta2),
        kept_(static_cast<Element>(u.kept)),
        step_size_(static_cast<Element>(u.step_size)) {}

  Vec step(Vec gradient, Vec parameter, Vec* states) const {
    Vec& exp_avg = states[0];
    const Vec direction = direction_(exp_avg, gradient);
    exp_avg = average_(exp_avg, gradient);
    const Vec one = Vec{} + Element{1};
    const Vec sign = direction > 0 ? one : (direction < 0 ? -one : direction);  // NaN stays NaN
    return parameter * kept_ - step_size_ * sign;
  }

 private:
  using Element = typename Format::Element;
  MovingAverage<Format> direction_;
  MovingAverage<Format> average_;
  Element kept_;
  Element step_size_;
};

}  // namespace
}  // namespace ciranda::kernels
