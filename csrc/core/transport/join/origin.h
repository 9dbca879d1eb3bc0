#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/base/result.h"

namespace ciranda {

// A rank of this host, as another rank sees it.
struct LocalRank {
  pid_t pid = 0;  // 0: in another pid namespace, so nothing is known about it
  int number = 0;
};

// Checks that two ranks are of one job, for a job that differs from others only by a port of the
// user's choice. Two ranks are of one job if one process gave both their numbers and their commands
// differ only by these numbers. `variable` is the environment variable with a rank's number. A
// process that inherited the same number and passed it on, such as a wrapper around the program, is
// not the starter. Both ranks are examined at the same time, because they get another parent when
// the starter ends.
//
// Returns kInvalidArgument, which names both ranks and a remedy, for ranks of different jobs. Ranks
// pass if too little is known about them. Blocks: reads files of /proc.
Status check_same_job(const LocalRank& rank_0, const LocalRank& other, const std::string& variable);

// Digests that identify the origin of a process, for a peer that cannot examine it. 0: unknown.
struct OriginDigests {
  std::uint64_t host = 0;     // this host and the pid namespace
  std::uint64_t process = 0;  // this process
  std::uint64_t starter = 0;  // the starter, as above
};
// Returns the digests of this process. `variable` as above. Blocks: reads files of /proc.
OriginDigests origin_of_this_process(const std::string& variable);

// Returns an error message for a process that finds its place taken and has a parent with the same
// number: the parent may be the rank, and this process only a program that the rank has started.
// Returns an empty string if there is no such parent. `variable` as above.
std::string heir_of_a_rank(const std::string& variable);

}  // namespace ciranda
