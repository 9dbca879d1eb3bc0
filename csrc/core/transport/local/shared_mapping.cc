#include "core/transport/local/shared_mapping.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>

namespace ciranda {

constinit Mutex SharedMapping::all_mutex_;               // NOLINT: the header says why
constinit SharedMapping* SharedMapping::all_ = nullptr;  // NOLINT

Result<std::unique_ptr<SharedMapping>> SharedMapping::map(int fd, std::size_t bytes) {
  static const int kRefused =
      ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (kRefused != 0) return Error::from_errno("pthread_atfork", kRefused);
  // MAP_POPULATE: the pages exist already, so take all page faults here and none in a step.
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return Error::from_errno("cannot map shared memory", errno);
  // MAP_NORESERVE: hardly any child writes to all of it.
  void* const for_child = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (for_child == MAP_FAILED) {
    const Error error = Error::from_errno("cannot map shared memory for forked children", errno);
    ::munmap(data, bytes);
    return error;
  }
  return std::unique_ptr<SharedMapping>(new SharedMapping(data, for_child, bytes));
}

// A fork between the mapping and its entry, or between that's end and the mapping's, leaves the
// child a mapping that nobody there knows: the thread that would use it exists in the parent only.
// The other way round it would be given the place of something else.
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
    (previous_ != nullptr ? previous_->next_ : all_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
  }
  ::munmap(data_, bytes_);
  if (for_child_ != nullptr) ::munmap(for_child_, bytes_);
}

// Moves the private pages over the shared ones. If the kernel lacks memory even for that, a child
// that writes is better ended by the write than let through to the parent's memory.
void SharedMapping::become_private() noexcept {
  if (for_child_ == nullptr) return;  // a child of a child: private since the first fork
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
