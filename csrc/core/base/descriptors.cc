#include "core/base/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>

namespace ciranda {

std::optional<std::string> raise_descriptor_limit(std::size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return std::nullopt;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  const bool raised = ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  if (raised && limit.rlim_cur >= wanted) return std::nullopt;
  return "this process may open " + std::to_string(limit.rlim_max) + " files, but connections to " +
         "all ranks of the job would need " + std::to_string(wanted) +
         "; raise the hard limit (ulimit -Hn, LimitNOFILE=) if an alltoall fails for lack of file "
         "descriptors";
}

void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) (void)::open("/dev/null", O_RDWR);  // gets this number
  }
}

}  // namespace ciranda
