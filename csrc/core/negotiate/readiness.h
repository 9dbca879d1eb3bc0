#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/negotiate/name_table.h"
#include "core/negotiate/response.h"
#include "core/wire/messages.h"

namespace ciranda {

// An operation that at least one member of its group has submitted and that is not answered yet.
struct PendingOp {
  NameEntry* name = nullptr;
  std::uint32_t occurrence = 0;
  std::uint64_t since_tick = 0;                            // the tick of the first Request
  std::shared_ptr<const RequestSpec> spec;                 // the spec of the first Request
  std::vector<std::optional<Contribution>> contributions;  // by index in the group
  int missing = 0;                                         // number of missing contributions
  // A later Request under the same name with a spec that differs from `spec`; in log order.
  struct Disagreement {
    Rank rank = kNoRank;
    std::shared_ptr<const RequestSpec> spec;
  };
  std::vector<Disagreement> disagreements;

  const Group& group() const { return *name->group; }

  PendingOp* older = nullptr;  // in the order of first Requests; owned by Readiness
  PendingOp* newer = nullptr;
};

// The pending operations and their contributions. Pure bookkeeping; the negotiator decides.
class Readiness {
 public:
  explicit Readiness(NameTable& names) : names_(names) {}
  ~Readiness();
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;

  // Returns the pending operation of that name and occurrence, or nullptr.
  PendingOp* find(const NameEntry& name, std::uint32_t occurrence) const;
  // Creates a pending operation without contributions. Asserts that find() returns nullptr.
  PendingOp& open(NameEntry& name, std::uint32_t occurrence,
                  std::shared_ptr<const RequestSpec> spec, std::uint64_t tick);
  // Removes the operation. The caller moves out the contributions and the spec before, if it needs
  // them.
  void close(PendingOp& op);

  PendingOp* oldest() const { return oldest_; }
  // Returns the oldest pending operation of that group, or nullptr. O(pending operations).
  const PendingOp* oldest_of(GroupId group) const;

 private:
  void unlink(PendingOp& op);

  NameTable& names_;
  PendingOp* oldest_ = nullptr;
  PendingOp* newest_ = nullptr;
  std::vector<std::unique_ptr<PendingOp>> spare_;  // closed operations, for reuse
};

}  // namespace ciranda
