#pragma once

#include <cstddef>
#include <limits>

#include "core/base/assert.h"
#include "core/kernels/formats.h"
#include "core/kernels/update_steps.h"
#include "core/kernels/variants.h"
#include "core/kernels/vector_ops.h"

// The loops of update() for an instruction set `Isa` (formats.h): a pass over memory that takes the
// steps of update_steps.h. Anonymous for the same reason as vectors.h.
namespace ciranda::kernels {
namespace {

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
        is_coupled_(u_.coupled_decay != 0.0),
        coupled_decay_(static_cast<Element>(u_.coupled_decay)),
        initial_state_(static_cast<Element>(u_.initial_state)) {}

  void run() const {
    if (u_.saving == nullptr) return update_part(0, u_.count);
    constexpr std::size_t kPiece = kSavedBytes / Format::kElementBytes;
    for (std::size_t i = 0; i < u_.count; i += kPiece) {
      const std::size_t end = u_.count - i < kPiece ? u_.count : i + kPiece;
      save(i * Format::kElementBytes, end * Format::kElementBytes);
      update_part(i, end);
    }
  }

 private:
  using Vec = typename Format::Vec;
  using Element = typename Format::Element;

  // Not inlined, so that the loop is compiled once.
  [[gnu::noinline]] void update_part(std::size_t begin, std::size_t end) const {
    constexpr std::size_t kLanes = Format::kLanes;
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      update_vector(i * Format::kElementBytes, WholeVector<Format>{});
    }
    if (i < end) {
      update_vector(i * Format::kElementBytes, FirstElements<Format>{.elements = end - i});
    }
  }

  // A kill ends a process between two of its instructions, as a signal does: the stores before are
  // seen by all, the stores after by nobody. So it is enough that the compiler keeps their order.
  void save(std::size_t begin, std::size_t end) const {
    const Saving& saving = *u_.saving;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(saving.at, 2 * (saving.begin + begin), __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    save_array(saving.values, u_.parameters[0] + begin, end - begin);
    for (std::size_t s = 0; s < Rule::kStates; ++s) {
      save_array(saving.values + (s + 1) * kSavedBytes, u_.states[s] + begin, end - begin);
    }
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(saving.at, 2 * (saving.begin + begin) + 1, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
  }

  static void save_array(std::byte* to, const std::byte* from, std::size_t bytes) {
    using Stored = typename Format::Stored;
    std::size_t i = 0;
    for (; i + sizeof(Stored) <= bytes; i += sizeof(Stored)) {
      store_vector(to + i, load_vector<Stored>(from + i));
    }
    __builtin_memcpy(to + i, from + i, bytes - i);
  }

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
    case RuleKind::kLion:
      return UpdateLoop<Format, Lion<Isa, Format>>(u).run();
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

}  // namespace
}  // namespace ciranda::kernels
