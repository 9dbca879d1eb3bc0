#include "core/transport/local/shared_mapping.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>

#include "core/base/assert.h"

namespace ciranda {

constinit Mutex SharedMapping::all_mutex_;               // NOLINT: the header says why
constinit SharedMapping* SharedMapping::all_ = nullptr;  // NOLINT

Result<std::unique_ptr<SharedMapping>> SharedMapping::map(int fd, std::size_t bytes,
                                                          std::size_t ready_bytes) {
  static const int kRefused =
      ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (kRefused != 0) return Error::from_errno("pthread_atfork", kRefused);
  // The pages exist already; MAP_POPULATE takes the page faults here instead of in a step.
  const int populate = ready_bytes >= bytes ? MAP_POPULATE : 0;
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | populate, fd, 0);
  if (data == MAP_FAILED) return Error::from_errno("cannot map shared memory", errno);
#ifdef MADV_POPULATE_WRITE  // a kernel without it takes the faults later
  if (populate == 0 && ready_bytes > 0) (void)::madvise(data, ready_bytes, MADV_POPULATE_WRITE);
#endif
  // MAP_NORESERVE, because hardly any child writes to all of it.
  void* const for_child = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (for_child == MAP_FAILED) {
    const Error error = Error::from_errno("cannot map shared memory for forked children", errno);
    ::munmap(data, bytes);
    return error;
  }
  return std::unique_ptr<SharedMapping>(new SharedMapping(data, for_child, bytes));
}

// The list holds a mapping only while it is mapped. A fork between mmap and the entry into the
// list, or between the removal and munmap, leaves the child a mapping that is not in its list. The
// thread that would use it exists in the parent only, so that is harmless. The opposite order could
// make the child remap an address that something else occupies.
SharedMapping::SharedMapping(void* data, void* for_child, std::size_t bytes)
    : data_(static_cast<std::byte*>(data)),
      for_child_(static_cast<std::byte*>(for_child)),
      bytes_(bytes) {
  const MutexLock lock(all_mutex_);
  next_ = all_;
  if (next_ != nullptr) next_->previous_ = this;
  all_ = this;
}

SharedMapping::~SharedMapping() {
  {
    const MutexLock lock(all_mutex_);
    CIRANDA_ASSERT((previous_ != nullptr ? previous_->next_ : all_) == this);
    CIRANDA_ASSERT(next_ == nullptr || next_->previous_ == this);
    (previous_ != nullptr ? previous_->next_ : all_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
  }
  ::munmap(data_, bytes_);
  if (for_child_ != nullptr) ::munmap(for_child_, bytes_);
}

// Moves the private pages over the shared ones. If the kernel lacks memory for that, the pages
// become read-only: it is better that a write kills the child than that it changes the parent's
// memory.
void SharedMapping::become_private() noexcept {
  if (for_child_ == nullptr) return;  // in a child of a child: private since the first fork
  if (::mprotect(for_child_, bytes_, PROT_READ | PROT_WRITE) != 0 ||
      ::mremap(for_child_, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_) == MAP_FAILED) {
    ::mprotect(data_, bytes_, PROT_READ);
  }
  for_child_ = nullptr;
}

void SharedMapping::before_fork() {
  all_mutex_.lock();
}

void SharedMapping::after_fork_in_parent() {
  all_mutex_.unlock();
}

void SharedMapping::after_fork_in_child() {
  for (SharedMapping* mapping = all_; mapping != nullptr; mapping = mapping->next_) {
    mapping->become_private();
  }
  all_mutex_.unlock();
}

}  // namespace ciranda
