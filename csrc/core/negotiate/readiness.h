#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/negotiate/name_table.h"
#include "core/negotiate/response.h"
#include "core/wire/messages.h"

namespace ciranda {

// An operation that at least one member of its group has submitted, and that another one must
// submit still.
struct PendingOp {
  NameEntry* name = nullptr;
  std::uint32_t occurrence = 0;
  std::uint64_t since_tick = 0;
  std::shared_ptr<const RequestSpec> spec;                 // what the first rank submitted
  std::vector<std::optional<Contribution>> contributions;  // by index in the group
  int missing = 0;                                         // contributions
  // What others submitted under the same name, where it differs from `spec`; in log order.
  struct Disagreement {
    Rank rank = kNoRank;
    std::shared_ptr<const RequestSpec> spec;
  };
  std::vector<Disagreement> disagreements;

  const Group& group() const { return *name->group; }

  PendingOp* older = nullptr;  // in order of the first request; owned by Readiness
  PendingOp* newer = nullptr;
};

// Who has submitted what. Pure bookkeeping; the negotiator decides.
class Readiness {
 public:
  explicit Readiness(NameTable& names) : names_(names) {}
  ~Readiness();
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;

  // The pending operation of that name and occurrence; find gives nullptr if there is none.
  PendingOp* find(const NameEntry& name, std::uint32_t occurrence) const;
  PendingOp& open(NameEntry& name, std::uint32_t occurrence,
                  std::shared_ptr<const RequestSpec> spec, std::uint64_t tick);
  // Forgets the operation; the caller has moved out what it needs.
  void close(PendingOp& op);

  PendingOp* oldest() const { return oldest_; }
  // Of that group; nullptr if it has none.
  const PendingOp* oldest_of(GroupId group) const;

 private:
  void unlink(PendingOp& op);

  NameTable& names_;
  PendingOp* oldest_ = nullptr;
  PendingOp* newest_ = nullptr;
  std::vector<std::unique_ptr<PendingOp>> spare_;  // closed ones, used again
};

}  // namespace ciranda
