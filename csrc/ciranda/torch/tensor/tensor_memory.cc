#include "ciranda/torch/tensor/tensor_memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// What a storage of ours has beside its address.
struct OwnMemory {
  std::shared_ptr<void> keeper;
  c10::DataPtr before = {};  // where the storage was, while somebody may have that address
  bool has_lasting_users = false;
};

void forget(void* memory) {
  delete static_cast<OwnMemory*>(memory);
}

c10::DeleterFnPtr deleter_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_deleter();
}

// A line of /proc/self/maps: "7f00-7f80 rw-s 00001000 00:01 1234 /dev/shm/x (deleted)".
struct Mapping {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string flags = {};
  std::uint64_t offset = 0;
  std::string device = {};
  std::string inode = {};

  static bool read(std::istream& maps, Mapping& mapping) {
    char dash = 0;
    std::string path;
    maps >> std::hex >> mapping.begin >> dash >> mapping.end >> mapping.flags >> mapping.offset >>
        mapping.device >> mapping.inode;
    return static_cast<bool>(std::getline(maps, path));
  }
};

// Returns the boot ID of this machine. Device and inode alone do not name a file: two machines may
// number theirs alike.
const std::string& this_machine() {
  static const std::string machine = [] {
    std::string id;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
    return id;
  }();
  return machine;
}

}  // namespace

bool is_ours(const at::Tensor& tensor) {
  return deleter_of(tensor) == &forget;
}

namespace {

OwnMemory& memory_of(const at::Tensor& tensor) {
  CIRANDA_ASSERT(is_ours(tensor));
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  return *static_cast<OwnMemory*>(storage._mutable_data_ptr_no_checks().get_context());
}

}  // namespace

// Tensor.numpy() makes the storage one that cannot be resized, and nothing undoes that.
bool can_relocate(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && is_ours(tensor) && tensor.storage_offset() == 0 &&
         tensor.storage().nbytes() == tensor.nbytes() && tensor.storage().resizable() &&
         !memory_of(tensor).has_lasting_users;
}

void relocate(const at::Tensor& tensor, std::byte* data, std::shared_ptr<void> keeper, bool copy) {
  CIRANDA_ASSERT(data != nullptr && keeper != nullptr && can_relocate(tensor));
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (copy) std::memcpy(data, storage.data(), storage.nbytes());
  auto memory = std::make_unique<OwnMemory>(OwnMemory{.keeper = std::move(keeper)});
  OwnMemory& moved = *memory;
  moved.before = storage.set_data_ptr({data, memory.release(), &forget, storage.device()});
}

void settle(const at::Tensor& tensor, bool shared) {
  if (!is_ours(tensor)) return;
  OwnMemory& memory = memory_of(tensor);
  if (!memory.before) return;
  memory.has_lasting_users = shared;
  if (!shared) memory.before.clear();
}

bool seen_by_tensors_alone(const at::Tensor& tensor) {
  const c10::DeleterFnPtr deleter = deleter_of(tensor);
  // The last deleter belongs to GradientPlaces, or to an allocator that the program has set.
  return tensor.storage().nbytes() == 0 || deleter == &forget ||
         deleter == c10::GetDefaultCPUAllocator()->raw_deleter() ||
         deleter == c10::GetCPUAllocator()->raw_deleter();
}

at::Tensor tensor_over(std::byte* data, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       c10::ScalarType dtype, std::shared_ptr<void> keeper) {
  CIRANDA_ASSERT(data != nullptr && keeper != nullptr);
  return at::for_blob(data, sizes)
      .strides(strides)
      .context(new OwnMemory{.keeper = std::move(keeper)}, &forget)
      .options(at::TensorOptions().dtype(dtype))
      .allocator(c10::GetCPUAllocator())
      .resizeable_storage()
      .make_tensor();
}

Mappings::Mappings() {
  std::ifstream maps("/proc/self/maps");
  for (Mapping mapping; Mapping::read(maps, mapping);) {
    if (mapping.flags.size() < 4 || mapping.flags[3] != 's') continue;
    shared_.push_back({mapping.begin, mapping.end,
                       this_machine() + ' ' + mapping.device + ' ' + mapping.inode,
                       mapping.offset});
  }
}

std::string Mappings::shared_place(const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto at = std::ranges::upper_bound(shared_, address, {}, &Shared::end);
  if (at == shared_.end() || address < at->begin) return "";
  return at->place + '+' + std::to_string(at->offset + address - at->begin);
}

}  // namespace ciranda
