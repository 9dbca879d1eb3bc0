#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/base/assert.h"

namespace ciranda::ps {

using Caller = int;  // the number of an open connection

// Decides how long a silent caller, and a member that does not come back after a restart, may keep
// workers waiting.
//
// Not thread-safe. Never blocks.
class Leases {
 public:
  explicit Leases(std::uint64_t lease_ns) : lease_ns_(lease_ns) {}

  // A caller has entered. Its lease begins.
  void begin(Caller caller, std::uint64_t now_ns) {
    CIRANDA_ASSERT(!leases_.contains(caller));
    leases_[caller] = {.heard_ns = now_ns};
  }
  // A message came: the lease begins again, if the caller has one. Returns true if the caller was
  // silent until now.
  bool hear(Caller caller, std::uint64_t now_ns);
  void close(Caller caller) { leases_.erase(caller); }
  // Returns true if the caller's lease is over.
  bool is_silent(Caller caller) const {
    const auto found = leases_.find(caller);
    return found != leases_.end() && found->second.silent;
  }
  // Returns the callers whose lease is over, ascending.
  std::vector<Caller> silent() const;
  // The server was restarted: its members are waited for during one lease.
  void begin_wait(std::uint64_t now_ns) { wait_ends_ns_ = now_ns + lease_ns_; }

  // Returns when the next lease or the wait ends (monotonic_ns; kNever: none does).
  std::uint64_t next_ns() const;
  // Ends the leases that are over. Returns their callers, ascending.
  std::vector<Caller> end(std::uint64_t now_ns);
  // Returns true, once, if the wait is over.
  bool end_wait(std::uint64_t now_ns);

 private:
  struct Lease {
    std::uint64_t heard_ns = 0;
    bool silent = false;
  };
  const std::uint64_t lease_ns_;
  std::map<Caller, Lease> leases_;
  std::uint64_t wait_ends_ns_ = UINT64_MAX;
};

}  // namespace ciranda::ps
