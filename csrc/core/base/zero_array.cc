#include "core/ps/zero_array.h"

#include <cstdlib>

namespace ciranda::ps {
namespace {

constexpr std::size_t kLineBytes = 64;

std::byte* on_a_line(void* memory) {
  const std::size_t behind = reinterpret_cast<std::uintptr_t>(memory) % kLineBytes;
  return static_cast<std::byte*>(memory) + (behind == 0 ? 0 : kLineBytes - behind);
}

}  // namespace

ZeroArray::ZeroArray(std::uint64_t bytes)
    : memory(static_cast<std::byte*>(std::calloc(bytes + kLineBytes, 1)), std::free) {
  if (memory) data = on_a_line(memory.get());
}

}  // namespace ciranda::ps
