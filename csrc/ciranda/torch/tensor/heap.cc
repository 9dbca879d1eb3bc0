#include "ciranda/torch/tensor/heap.h"

#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace ciranda {

void keep_heap_between_steps() {
#if defined(__GLIBC__)
  static const bool kept = [] {
    constexpr int kMapFromBytes = 32 << 20;
    constexpr int kKeptBytes = 128 << 20;
    return ::mallopt(M_MMAP_THRESHOLD, kMapFromBytes) == 1 &&
           ::mallopt(M_TRIM_THRESHOLD, kKeptBytes) == 1;
  }();
  (void)kept;
#endif
}

}  // namespace ciranda
