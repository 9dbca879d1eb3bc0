#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace ciranda {

// Returns a digest of memory, to tell whether the memory has changed or equals other memory. It is
// as fast as reading the memory, and does not resist an attacker.
std::uint64_t digest_of(std::span<const std::byte> bytes);

// Returns a digest of a tensor's values, whatever its strides and device; 0 if it is sparse or
// empty. Waits for a GPU.
std::uint64_t digest_of_values(const at::Tensor& tensor);

// Returns the digest extended by a word.
std::uint64_t mixed(std::uint64_t digest, std::uint64_t word);

}  // namespace ciranda
