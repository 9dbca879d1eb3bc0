#pragma once

namespace ciranda {

// Tells glibc's malloc to keep up to 128 MiB of free memory at the top of the heap, and to map only
// allocations of 32 MiB and more (the most it accepts, and where its own adjustment ends). By
// default it hands the top back to the system when a step frees its activations, and the next step
// faults every page in again. Acts on the whole process, once; no effect with another malloc.
// Thread-safe, does not block.
void keep_heap_between_steps();

}  // namespace ciranda
