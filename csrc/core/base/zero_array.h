#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ciranda::ps {

// Zeros, on a line of the cache; pages that nobody has touched take no memory.
struct ZeroArray {
  explicit ZeroArray(std::uint64_t bytes);
  std::unique_ptr<std::byte, void (*)(void*)> memory;
  std::byte* data = nullptr;  // where there is not so much
};

}  // namespace ciranda::ps
