#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace ciranda {

// Zeroed bytes that begin on a cache line. Untouched pages take no memory.
struct ZeroArray {
  explicit ZeroArray(std::uint64_t bytes);
  // Makes an array that may be larger than the memory, if most of its pages will never be touched.
  // A process that touches too much of it is killed.
  static ZeroArray sparse(std::uint64_t bytes);

  std::unique_ptr<std::byte, std::function<void(void*)>> memory;
  std::byte* data = nullptr;  // null if the memory could not be allocated

 private:
  ZeroArray() = default;
};

}  // namespace ciranda
