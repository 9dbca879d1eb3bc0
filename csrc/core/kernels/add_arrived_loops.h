#pragma once

#include <cstddef>

#include "core/base/assert.h"
#include "core/kernels/formats.h"
#include "core/kernels/variants.h"
#include "core/kernels/vector_ops.h"
#include "core/kernels/vectors.h"

// The loops of add_arrived(), which adds what a peer sent, for an instruction set `Isa`
// (formats.h). Anonymous for the same reason as vectors.h.
namespace ciranda::kernels {
namespace {

template <class Isa, class Wire>
class AddArrivedLoop {
 public:
  explicit AddArrivedLoop(const Adding& adding) : a_(adding), postscale_(adding.postscale) {}

  void run() const {
    constexpr std::size_t kLanes = Wire::kLanes;
    std::size_t i = 0;
    for (; i + kLanes <= a_.count; i += kLanes) {
      const Vec sum = added(Own::load(a_.own + i * Own::kElementBytes),
                            Wire::load(a_.arrived + i * Wire::kElementBytes));
      for (std::size_t output = 0; output < a_.output_count; ++output) {
        store_vector(a_.outputs[output] + i * Own::kElementBytes, sum);
      }
    }
    const std::size_t rest = a_.count - i;
    if (rest == 0) return;
    const Vec sum = added(load_first<Own>(a_.own + i * Own::kElementBytes, rest),
                          load_first<Wire>(a_.arrived + i * Wire::kElementBytes, rest));
    for (std::size_t output = 0; output < a_.output_count; ++output) {
      store_first<Own>(a_.outputs[output] + i * Own::kElementBytes, sum, rest);
    }
  }

 private:
  using Own = Plain<Isa, float>;
  using Vec = typename Own::Vec;

  Vec added(Vec own, Vec arrived) const {
    const Vec sum = postscale_((a_.own_rounded ? rounded(own) : own) + arrived);
    return a_.result_rounded ? rounded(sum) : sum;
  }

  static Vec rounded(Vec vec) {
    const typename Wire::Stored packed = Wire::pack(vec);
    return Wire::load(reinterpret_cast<const std::byte*>(&packed));
  }

  const Adding a_;
  const Scale<Own> postscale_;
};

template <class Isa>
void add_arrived_loops(const Adding& adding) {
  if (adding.wire_dtype == DType::kFloat16) return AddArrivedLoop<Isa, Float16<Isa>>(adding).run();
  if (adding.wire_dtype == DType::kBFloat16) {
    return AddArrivedLoop<Isa, BFloat16<Isa>>(adding).run();
  }
  CIRANDA_UNREACHABLE();
}

}  // namespace
}  // namespace ciranda::kernels
