#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ciranda {

// Who may look at a tensor's memory without a tensor of this process that counts as its user: other
// processes that map it, an array of NumPy, a slice of the same storage.

// Nobody: torch's allocator has made the memory of the CPU for this storage, or it is ours.
bool seen_by_tensors_alone(const at::Tensor& tensor);
// It is ours: of a tensor_over().
bool is_ours(const at::Tensor& tensor);
// A tensor over memory of ours, which `keeper` keeps. A program that keeps its weights elsewhere
// for a while resizes the storage to nothing and back: it is torch's from then on.
at::Tensor tensor_over(std::byte* data, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       c10::ScalarType dtype, std::shared_ptr<void> keeper);

// The memory that this process had when this was made: reading it costs about a millisecond.
class Mappings {
 public:
  Mappings();
  // Names memory that processes share, the same in all processes of the machine and in no other
  // one; empty for what this process has alone.
  std::string shared_place(const void* data) const;

 private:
  struct Shared {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::string place;  // of its first byte, but for the offset
    std::uint64_t offset;
  };
  std::vector<Shared> shared_;  // by address
};

}  // namespace ciranda
