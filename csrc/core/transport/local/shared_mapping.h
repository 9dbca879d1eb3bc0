#pragma once

#include <cstddef>
#include <memory>

#include "core/base/mutex.h"
#include "core/base/result.h"

namespace ciranda {

// Memory of a file that this process shares with the other processes that map the file. In a child
// made by fork it becomes private: it keeps its address and contents, but no other process sees
// what the child writes. A page that the child has not written yet still shows what other processes
// write.
class SharedMapping {
 public:
  // Maps the first `bytes` bytes of `fd`, which may be closed afterwards. Takes the page faults of
  // the first `ready_bytes` bytes now, and the others with their first use. Thread-safe.
  static Result<std::unique_ptr<SharedMapping>> map(int fd, std::size_t bytes,
                                                    std::size_t ready_bytes) EXCLUDES(all_mutex_);
  ~SharedMapping() EXCLUDES(all_mutex_);
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  SharedMapping(void* data, void* for_child, std::size_t bytes) EXCLUDES(all_mutex_);
  void become_private() noexcept;

  // Handlers of pthread_atfork. They hold the mutex over the fork, so the child finds the list
  // whole. The child's handler calls only mprotect and mremap.
  static void before_fork() ACQUIRE(all_mutex_);
  static void after_fork_in_parent() RELEASE(all_mutex_);
  static void after_fork_in_child() RELEASE(all_mutex_);

  std::byte* const data_;
  // A second, private mapping of the same pages. It is inaccessible and untouched, so it costs
  // address space only. In a child it is moved over data_, and this pointer is null.
  std::byte* for_child_;
  const std::size_t bytes_;

  // All mappings of the process, as an intrusive list: nothing is allocated under the mutex. The
  // two statics are plain data without destructors, so they outlast every mapping. The mutex is a
  // leaf below every other one.
  static Mutex all_mutex_;                            // NOLINT: see above
  static SharedMapping* all_ GUARDED_BY(all_mutex_);  // NOLINT
  SharedMapping* next_ GUARDED_BY(all_mutex_) = nullptr;
  SharedMapping* previous_ GUARDED_BY(all_mutex_) = nullptr;
};

}  // namespace ciranda
