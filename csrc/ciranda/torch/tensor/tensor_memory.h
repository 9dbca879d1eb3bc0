#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ciranda {

// These functions tell who can see a tensor's memory without a tensor of this process that counts
// as its user: another process that maps the memory, a NumPy array, a slice of the storage.

// Returns true if only tensors of this process can see the memory: torch's CPU allocator made it
// for this storage, or it is ours.
bool seen_by_tensors_alone(const at::Tensor& tensor);
// Returns true if tensor_over() made the tensor's storage.
bool is_ours(const at::Tensor& tensor);
// Returns a tensor over memory of ours, which `keeper` keeps alive. A program that stores its
// weights elsewhere for a while resizes the storage to nothing and back; the memory is torch's
// after that.
at::Tensor tensor_over(std::byte* data, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       c10::ScalarType dtype, std::shared_ptr<void> keeper);

// Tensors can share memory of ours with others that nobody can count apart from them: the parts of
// a graph that autograd keeps. relocate() moves the storage, and with it every tensor that shares
// it, as torch does with a storage that it sends to another process.
//
// Who has taken an address (Tensor.data_ptr(), DLPack) still finds the memory of before there, but
// not what is written to the tensors since. That memory is kept until settle() finds that nobody
// but the tensor uses the storage.

// Returns true if the tensor is all of a storage of ours, and nobody is known to have its address:
// no NumPy array, nor anybody who has used the storage since before an earlier relocate().
bool can_relocate(const at::Tensor& tensor);
// Moves the storage of such a tensor to `data`, which `keeper` keeps alive, with its values if
// `copy` is true. No other thread may use the storage meanwhile. Is no write for autograd: the
// values stay.
void relocate(const at::Tensor& tensor, std::byte* data, std::shared_ptr<void> keeper, bool copy);
// Called for a tensor that may have been relocated, when the graphs of that time are gone.
// `shared`: the storage has other users than the tensor. They are then taken for lasting ones.
void settle(const at::Tensor& tensor, bool shared);

// The memory that this process had mapped at construction, which takes about a millisecond.
class Mappings {
 public:
  Mappings();
  // Returns a name for memory that processes share: equal in all processes of this machine, and
  // never equal to a name from another machine. Returns an empty string for memory of this process
  // alone.
  std::string shared_place(const void* data) const;

 private:
  struct Shared {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::string place;  // machine, device and inode of the mapped file
    std::uint64_t offset;
  };
  std::vector<Shared> shared_;  // ascending by address
};

}  // namespace ciranda
