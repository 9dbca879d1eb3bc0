#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/result.h"
#include "core/kernels/update_rule.h"
#include "core/wire/messages.h"

// The pure part of the parameter server: the model that servers and workers agree on, and the
// decisions of a server. It has no I/O, no clock and no threads.
namespace ciranda::ps {

using Worker = std::int32_t;  // a worker's number, from 0; a job's number of workers is fixed
using Life = std::uint64_t;   // counts the starts of a worker, from 1

// When a push is applied, and when its worker may continue.
enum class ModeKind : std::uint8_t {
  kAsync,  // applied at once; the worker waits for no other
  kSsp,    // applied at once; the worker waits for workers that are too far behind
  kSync,   // applied in rounds, each the average of its pushes
};
inline constexpr int kModeKindCount = 3;

// The treatment of stale pushes. A push's staleness is the number of pushes that were applied since
// the version that its gradients were computed from.
enum class StalePolicy : std::uint8_t {
  kApply,
  kScale,  // divided by the staleness if that is above 1
  kDrop,   // not applied if the staleness is above max_staleness
};
inline constexpr int kStalePolicyCount = 3;
inline constexpr std::uint64_t kUnboundedStaleness = UINT64_MAX;

struct Mode {
  ModeKind kind = ModeKind::kAsync;
  StalePolicy policy = StalePolicy::kApply;           // kAsync
  std::uint64_t max_staleness = kUnboundedStaleness;  // kAsync with kDrop
  std::uint64_t staleness = 0;                        // kSsp: pushes that a worker may be ahead
  std::uint32_t backup_workers = 0;                   // kSync: workers that may miss a round
  bool operator==(const Mode&) const = default;
};

// A parameter.
struct Slot {
  std::string name;
  Shape shape;
  bool operator==(const Slot&) const = default;
};

// Parameters with one dtype and one kind of update rule, laid out one after another.
struct Table {
  DType dtype = DType::kFloat32;  // floating
  kernels::UpdateRule rule;       // each push brings its own values for the same kind and state
  std::vector<Slot> slots;
  bool operator==(const Table&) const = default;
};

// A table of which workers fetch only the rows that they need, such as an embedding's. Of N
// servers, server r mod N holds row r, as its local row r / N.
struct RowTable {
  std::string name;
  std::uint64_t rows = 0;
  std::uint32_t columns = 0;  // float32 values of a row
  // A row must not change unless it has a gradient. So the rule is SGD without momentum or Adagrad
  // without lr_decay, and has no weight_decay.
  kernels::UpdateRule rule = {};
  // true: a row's initial values come from the first worker that sends some, and the row cannot be
  // read before. false: they are normally distributed with standard deviation `deviation`, and
  // depend only on the seed and the row.
  bool given = false;
  double deviation = 0.0;
  std::uint64_t seed = 0;
  bool operator==(const RowTable&) const = default;
};

inline constexpr std::uint64_t kRowsMax = std::uint64_t{1} << 40;
inline constexpr std::uint32_t kColumnsMax = 1 << 16;

// The declaration that all workers of a job have in common.
struct Model {
  Mode mode;
  std::vector<Table> tables;
  std::vector<RowTable> row_tables = {};
  bool operator==(const Model&) const = default;
};

inline constexpr std::size_t kTablesMax = 64;
inline constexpr std::size_t kRulesMax = 1024;  // in a push
inline constexpr std::size_t kRowTablesMax = 4096;
inline constexpr std::size_t kSlotsMax = std::size_t{1} << 20;       // in all tables
inline constexpr std::int64_t kElementsMax = std::int64_t{1} << 40;  // in all tables

std::size_t slot_count(const Model& model);
// Returns, for each table, the index of its first slot when slots are numbered through all tables.
std::vector<std::size_t> first_slots(const Model& model);

// Returns an error unless servers can hold the model: sizes within the limits, floating dtypes, no
// duplicate name. kInvalidArgument names the parameter and the fault.
Status check(const Model& model);
// Returns true if `rule` may update a table that was declared with the rule `declared`: it has the
// same kind and needs no other state arrays. SGD may begin to use momentum at any time.
bool has_state_for(const kernels::UpdateRule& rule, const kernels::UpdateRule& declared);
// Returns the first difference of `other` from `ours` as the end of a sentence; empty: none.
// The hyperparameters of a Table's rule may differ, and lr of a RowTable's.
std::string difference(const Model& ours, const Model& other);

}  // namespace ciranda::ps
