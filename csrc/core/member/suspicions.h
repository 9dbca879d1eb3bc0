#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/member/messages.h"

namespace ciranda::member {

// Decides which host to give up when members of two hosts say that they cannot reach each other,
// although both hosts reach the launcher. Not thread-safe. Never blocks.
class Suspicions {
 public:
  // How long nothing is decided: a rank or a host may be gone, of which the arbiter may hear later
  // than the other ranks did.
  static constexpr std::uint64_t kGraceNs = 2'000'000'000;

  explicit Suspicions(std::uint64_t grace_ns) : grace_ns_(grace_ns) {}

  // A member on the host `by` cannot reach one on the host `whom`.
  void add(HostNumber by, HostNumber whom, std::uint64_t now_ns);
  // The next epoch begins.
  void clear();

  struct Verdict {
    HostNumber host = 0;  // to be given up
    HostNumber by = 0;    // a host that cannot reach it
    bool operator==(const Verdict&) const = default;
  };
  // Returns when the first suspicion is as old as the grace: when to call judge(), once.
  std::optional<std::uint64_t> deadline() const;
  // Returns which host is to be given up: the one that is cut off from most members. Of two such
  // hosts it is the one with fewer members, then the later one. Nothing if all suspected members
  // are gone. `members`: how many each host has.
  std::optional<Verdict> judge(const std::map<HostNumber, int>& members);

 private:
  const std::uint64_t grace_ns_;
  std::set<std::pair<HostNumber, HostNumber>> cuts_;  // each in both directions
  std::optional<std::uint64_t> since_ns_;             // until judge()
};

}  // namespace ciranda::member
