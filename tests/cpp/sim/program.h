#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/wire/messages.h"
#include "sim/network.h"

namespace ciranda::sim {

// One operation of the job's program; every rank that does not skip it submits it once.
struct ProgramOp {
  RequestSpec spec;
  std::uint32_t occurrence = 0;
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
};

// What a job does, the same for all ranks that make no trouble: steps of `step_ops` operations
// each. Within a step every rank has an order of its own.
struct Program {
  std::vector<ProgramOp> ops;
  std::size_t step_ops = 0;
};

Program make_program(int size, const Trouble& trouble, SimRandom& random);

// A random operation of that name; nearly always one that could run.
RequestSpec make_spec(const std::string& name, int size, const Trouble& trouble, SimRandom& random);

}  // namespace ciranda::sim
