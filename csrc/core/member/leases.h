#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/member/messages.h"

namespace ciranda::member {

// Decides which processes have been silent for too long. A process has a lease from its first Beat
// on, which each of its messages begins anew.
//
// Not thread-safe. Never blocks. The caller passes in the time, which never goes back.
class Leases {
 public:
  // 0: nobody has a lease.
  explicit Leases(std::uint64_t lease_ns) : lease_ns_(lease_ns) {}

  // From now on the caller calls end() whenever it is awake, and at deadline() at the latest.
  void begin(std::uint64_t now_ns) { looked_at_ns_ = now_ns; }
  // The process, on this host, has sent a message.
  void hear(Incarnation incarnation, HostNumber host, bool is_beat, std::uint64_t now_ns);
  // The host has said that it runs, after all that its processes had said before. From then on its
  // processes are judged by such words: silent is who says nothing while its host does. So a
  // connection that stands still is no silence of the processes behind it.
  void host_beats(HostNumber host, std::uint64_t now_ns) { hosts_[host] = now_ns; }
  void close(Incarnation incarnation) { heard_.erase(incarnation); }
  // Returns the processes whose lease is over, ascending, and closes their leases. If the caller
  // itself stood still for half a lease, it has heard nobody: all leases begin anew.
  std::vector<Incarnation> end(std::uint64_t now_ns);
  // Returns when to call end() at the latest, a quarter of a lease after the last call.
  std::optional<std::uint64_t> deadline() const;

 private:
  const std::uint64_t lease_ns_;
  std::uint64_t looked_at_ns_ = 0;
  struct Heard {
    HostNumber host = 0;
    std::uint64_t at_ns = 0;
  };
  std::map<Incarnation, Heard> heard_;
  std::map<HostNumber, std::uint64_t> hosts_;  // the latest word of each; none: it is this one
};

}  // namespace ciranda::member
