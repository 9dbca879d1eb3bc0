#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/result.h"
#include "core/kernels/update_rule.h"
#include "core/wire/messages.h"

// The parameter server's pure part: what servers and workers agree about, and what a server
// decides. No I/O, no clock, no threads.
namespace ciranda::ps {

using Worker = std::int32_t;  // from 0; a job has as many as it was started with
using Life = std::uint64_t;   // counts the starts of a worker, from 1

// How a push takes effect, and when its worker goes on.
enum class ModeKind : std::uint8_t {
  kAsync,  // at once
  kSsp,    // at once; its worker waits for those that are too far behind
  kSync,   // with those of the others, averaged
};
inline constexpr int kModeKindCount = 3;

// What happens to a push that was made from parameters so many pushes ago as its staleness says.
enum class StalePolicy : std::uint8_t {
  kApply,
  kScale,  // divided by the staleness, where that is above 1
  kDrop,   // not applied if the staleness is above max_staleness
};
inline constexpr int kStalePolicyCount = 3;
inline constexpr std::uint64_t kUnboundedStaleness = UINT64_MAX;

struct Mode {
  ModeKind kind = ModeKind::kAsync;
  StalePolicy policy = StalePolicy::kApply;           // kAsync
  std::uint64_t max_staleness = kUnboundedStaleness;  // kAsync with kDrop
  std::uint64_t staleness = 0;                        // kSsp: pushes that one may be ahead
  std::uint32_t backup_workers = 0;                   // kSync: of so many a round waits for none
  bool operator==(const Mode&) const = default;
};

// A parameter.
struct Slot {
  std::string name;
  Shape shape;
  bool operator==(const Slot&) const = default;
};

// Parameters of one dtype that one rule updates, one behind the other.
struct Table {
  DType dtype = DType::kFloat32;  // floating
  kernels::UpdateRule rule;       // each push brings its own values, of the same kind and state
  std::vector<Slot> slots;
  bool operator==(const Table&) const = default;
};

// A table of which a worker has only the rows that it asks for, such as an embedding's. Row r is on
// server r mod N, as the row r / N there.
struct RowTable {
  std::string name;
  std::uint64_t rows = 0;
  std::uint32_t columns = 0;  // of float32
  // What a row becomes must not depend on when it was looked at: SGD without momentum, or Adagrad
  // whose rate does not decay; neither decays weights.
  kernels::UpdateRule rule = {};
  // A row begins with what the first worker gives it, and cannot be asked for before. Else it
  // begins with numbers that are normally distributed with `deviation`, and follow from seed and
  // row.
  bool given = false;
  double deviation = 0.0;
  std::uint64_t seed = 0;
  bool operator==(const RowTable&) const = default;
};

inline constexpr std::uint64_t kRowsMax = std::uint64_t{1} << 40;
inline constexpr std::uint32_t kColumnsMax = 1 << 16;

// What all workers of a job declare alike.
struct Model {
  Mode mode;
  std::vector<Table> tables;
  std::vector<RowTable> row_tables = {};
  bool operator==(const Model&) const = default;
};

inline constexpr std::size_t kTablesMax = 64;
inline constexpr std::size_t kRulesMax = 1024;  // of a push
inline constexpr std::size_t kRowTablesMax = 4096;
inline constexpr std::size_t kSlotsMax = std::size_t{1} << 20;       // of all tables
inline constexpr std::int64_t kElementsMax = std::int64_t{1} << 40;  // of all tables

std::size_t slot_count(const Model& model);
// By table, the number of its first slot among those of all tables.
std::vector<std::size_t> first_slots(const Model& model);

// Whether servers can hold it: limits, floating dtypes, no name twice. kInvalidArgument says what
// cannot be, and of which parameter.
Status check(const Model& model);
// Whether `rule` may update a table of `declared`: the same kind, and no state that it has not, but
// for SGD's momentum, which may begin at any time.
bool has_state_for(const kernels::UpdateRule& rule, const kernels::UpdateRule& declared);
// In what `other` differs from `ours`, in words as the rest of a sentence; empty if it does not.
std::string difference(const Model& ours, const Model& other);

}  // namespace ciranda::ps
