#pragma once

namespace ciranda {

// Tells glibc's malloc to keep up to 128 MiB of free memory at the top of the heap, and to map only
// allocations of 32 MiB and more (the largest threshold that glibc accepts, and the end of its
// automatic adjustment). Otherwise malloc returns the top to the system when a step frees its
// activations, and the next step faults in every page again. Affects the whole process, once; has
// no effect with another malloc. Thread-safe, does not block.
void keep_heap_between_steps();

}  // namespace ciranda
