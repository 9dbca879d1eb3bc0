#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/base/result.h"

namespace ciranda {

// A rank of this host, as whoever judges it knows it.
struct LocalRank {
  pid_t pid = 0;  // 0: in another namespace, of which nothing can be seen
  int number = 0;
};

// Whether two ranks are of one job, where nothing but a port that the user chose tells jobs apart:
// one process has told both their numbers, and their commands differ by these alone. `variable` has
// a rank's number; whoever got it too and handed it on, such as a wrapper around the program, is
// not its starter. Both are looked at now, for a starter that ends leaves all its ranks to another
// parent. kInvalidArgument names both and says what to do; what cannot be seen is believed.
// Blocking: reads files of /proc.
Status check_same_job(const LocalRank& rank_0, const LocalRank& other, const std::string& variable);

// What tells this process from those of other jobs, for who cannot look: digests, 0 where nothing
// is known. `variable` as above.
struct OriginDigests {
  std::uint64_t host = 0;     // this host, and which processes of it this one sees
  std::uint64_t process = 0;  // this process
  std::uint64_t starter = 0;  // as above
};
OriginDigests origin_of_this_process(const std::string& variable);

// For sentences of a process that finds its place taken: that its parent, which was told the same
// number, may be the rank, and it only a program of the rank's. Empty: there is no such parent.
std::string heir_of_a_rank(const std::string& variable);

}  // namespace ciranda
