// The table for processors that are not x86-64: compiled instead of variants_x86.cc.
#include "core/kernels/variants.h"

namespace ciranda::kernels {

std::span<const Variant> variants() {
  static constexpr Variant kVariants[] = {
      {.name = "portable", .available = [] { return true; }, .loops = &kPortableLoops},
  };
  return kVariants;
}

}  // namespace ciranda::kernels
