#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/negotiate/name_table.h"
#include "core/negotiate/response.h"
#include "core/wire/messages.h"

namespace ciranda {

// An operation that at least one rank has submitted and at least one has not.
struct PendingOp {
  NameEntry* name = nullptr;
  std::uint32_t occurrence = 0;
  std::uint64_t since_tick = 0;
  std::shared_ptr<const RequestSpec> spec;                 // what the first rank submitted
  std::vector<std::optional<Contribution>> contributions;  // by rank
  int contributed = 0;
  // What others submitted under the same name, where it differs from `spec`; in log order.
  struct Disagreement {
    Rank rank = kNoRank;
    std::shared_ptr<const RequestSpec> spec;
  };
  std::vector<Disagreement> disagreements;

  PendingOp* older = nullptr;  // in order of the first request; owned by Readiness
  PendingOp* newer = nullptr;
};

// Who has submitted what. Pure bookkeeping; the negotiator decides.
class Readiness {
 public:
  Readiness(int size, NameTable& names);
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
  const int size;

 private:
  void unlink(PendingOp& op);

  NameTable& names_;
  PendingOp* oldest_ = nullptr;
  PendingOp* newest_ = nullptr;
  std::vector<std::unique_ptr<PendingOp>> spare_;  // closed ones, used again
};

}  // namespace ciranda
