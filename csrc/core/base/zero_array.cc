#include "core/base/zero_array.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace ciranda {
namespace {

constexpr std::size_t kLineBytes = 64;
// More bytes than a process can address.
constexpr std::uint64_t kAddressesMax = std::uint64_t{1} << 47;

std::byte* on_a_line(void* memory) {
  const std::size_t behind = reinterpret_cast<std::uintptr_t>(memory) % kLineBytes;
  return static_cast<std::byte*>(memory) + (behind == 0 ? 0 : kLineBytes - behind);
}

}  // namespace

ZeroArray::ZeroArray(std::uint64_t bytes) {
  if (bytes > kAddressesMax) return;
  memory = {static_cast<std::byte*>(std::calloc(bytes + kLineBytes, 1)), std::free};
  if (memory) data = on_a_line(memory.get());
}

ZeroArray ZeroArray::sparse(std::uint64_t bytes) {
  ZeroArray array;
  if (bytes > kAddressesMax) return array;
  const std::size_t size = std::max<std::size_t>(1, bytes);
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return array;
  array.data = static_cast<std::byte*>(at);
  array.memory = {array.data, [size](void* pages) { ::munmap(pages, size); }};
  return array;
}

}  // namespace ciranda
