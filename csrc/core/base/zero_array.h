#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace ciranda {

// Zeros, on a line of the cache; pages that nobody has touched take no memory.
struct ZeroArray {
  explicit ZeroArray(std::uint64_t bytes);
  // Most of which will never be touched: more than there is memory for is possible, and who touches
  // too much of it is killed.
  static ZeroArray sparse(std::uint64_t bytes);

  std::unique_ptr<std::byte, std::function<void(void*)>> memory;
  std::byte* data = nullptr;  // where there is not so much

 private:
  ZeroArray() = default;
};

}  // namespace ciranda
