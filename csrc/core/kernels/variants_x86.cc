// The table for x86-64. Built without options for newer processors: it runs before we know them.
#include <cpuid.h>

#include "core/kernels/variants.h"

namespace ciranda::kernels {
namespace {

// clang 14's __builtin_cpu_supports does not know this name.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && has_f16c();
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

std::span<const Variant> variants() {
  static constexpr Variant kVariants[] = {
      {.name = "avx512", .available = has_avx512, .loops = &kAvx512Loops},
      {.name = "avx2", .available = has_avx2, .loops = &kAvx2Loops},
      {.name = "portable", .available = [] { return true; }, .loops = &kPortableLoops},
  };
  return kVariants;
}

}  // namespace ciranda::kernels
