#pragma once

#include <cstddef>
#include <memory>

#include "core/base/mutex.h"
#include "core/base/result.h"

namespace ciranda {

// Memory of a file that this process shares with whoever else maps the file. A child made by fork
// gets it as its own: at the same address and with what is in it, but nobody else sees what the
// child writes there. A page that the child has not written yet shows what the others write.
class SharedMapping {
 public:
  // Maps the first `bytes` bytes of `fd`, which may be closed afterwards. Thread-safe.
  static Result<std::unique_ptr<SharedMapping>> map(int fd, std::size_t bytes) EXCLUDES(all_mutex_);
  ~SharedMapping() EXCLUDES(all_mutex_);
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  SharedMapping(void* data, void* for_child, std::size_t bytes) EXCLUDES(all_mutex_);
  void become_private() noexcept;

  // Handlers of pthread_atfork. The child finds the list as no thread was changing it, and calls
  // nothing but mprotect and mremap.
  static void before_fork() ACQUIRE(all_mutex_);
  static void after_fork_in_parent() RELEASE(all_mutex_);
  static void after_fork_in_child() RELEASE(all_mutex_);

  std::byte* const data_;
  // The same pages once more, private, inaccessible and untouched, which costs address space only:
  // what takes the place of data_ in a child. Null in a child, where it has.
  std::byte* for_child_;
  const std::size_t bytes_;

  // Every mapping of the process: a list through the mappings themselves, so that whoever holds the
  // mutex allocates nothing, and plain data that lasts as long as the last mapping.
  static Mutex all_mutex_;                            // NOLINT: see above. A leaf below every other
  static SharedMapping* all_ GUARDED_BY(all_mutex_);  // NOLINT
  SharedMapping* next_ GUARDED_BY(all_mutex_) = nullptr;
  SharedMapping* previous_ GUARDED_BY(all_mutex_) = nullptr;
};

}  // namespace ciranda
