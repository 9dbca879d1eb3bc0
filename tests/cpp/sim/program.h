#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/wire/messages.h"
#include "core/wire/pair.h"
#include "sim/network.h"

namespace ciranda::sim {

// One operation of the job's program; every member of its group that does not skip it submits it
// once.
struct ProgramOp {
  RequestSpec spec;
  std::uint32_t occurrence = 0;
  // Which of the program's groups it is in, makes or removes, whose number is known only once the
  // job runs; kNoSet: the World.
  int set = kNoSet;
  static constexpr int kNoSet = -1;
};

// What kind of trouble a schedule has. Most schedules have little, so that much else happens.
struct Trouble {
  bool skips = false;       // some ranks leave out some operations
  bool mismatches = false;  // some ranks submit something else under a name
  bool duplicates = false;  // some ranks submit a name twice, which the engine refuses
  bool early_leave = false;
  bool crash = false;
  bool cut = false;
  bool pauses = false;
  bool garbage = false;  // a rank sends bytes that are no frame
  bool zombie = false;   // a rank speaks after it has left
  // Some ranks submit to groups of others, or after they have joined, which the engine refuses.
  bool strangers = false;
};

// What a job does, the same for all ranks that make no trouble. Within a step every rank has an
// order of its own. A change of membership is a step of its own.
struct Program {
  std::vector<std::vector<ProgramOp>> steps;
};

Program make_program(int size, const Trouble& trouble, SimRandom& random);

// A random operation of that name and group; nearly always one that could run.
RequestSpec make_spec(const std::string& name, const std::vector<Rank>& members,
                      const Trouble& trouble, SimRandom& random);

// A random message between the two.
RequestSpec make_message(const std::string& name, Pair pair, SimRandom& random);

// A random group of some ranks.
std::vector<Rank> make_members(int size, SimRandom& random);

}  // namespace ciranda::sim
