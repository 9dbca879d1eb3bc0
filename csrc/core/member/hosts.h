#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/member/messages.h"

namespace ciranda::member {

// A host on which processes of an elastic job run.
struct HostOptions {
  int slots = 0;        // so many processes run there at most
  std::string meet_at;  // HOST:PORT, where its ranks listen
};

// The hosts of an elastic job: how many processes each may have, and which are lost or leave. Pure.
class Hosts {
 public:
  // None: all processes are on one host, which has room for all of them.
  explicit Hosts(std::vector<HostOptions> hosts);

  bool are_named() const { return !hosts_.empty(); }
  // Where others call a rank of the host; empty for a job on one host.
  const std::string& meet_at(HostNumber host) const;

  // A further host. Returns its number.
  HostNumber add(HostOptions host);
  // From now on nothing starts on the host. It was not lost before.
  void lose(HostNumber host);
  // Also while it leaves, and its members are still there.
  bool is_lost(HostNumber host) const { return are_named() && hosts_.at(host).is_lost; }
  bool is_any_lost() const;
  // The host is there again, and its ranks listen at `meet_at`. Returns false if it was not lost.
  bool regain(HostNumber host, std::string meet_at);

  // Returns a host on which a process can be started, `home` if it can; nothing if none has room.
  // `used`: how many processes each has.
  std::optional<HostNumber> with_room(HostNumber home, const std::map<HostNumber, int>& used) const;

 private:
  struct Host {
    HostOptions options;
    bool is_lost = false;
  };
  std::vector<Host> hosts_;
};

// A member's place in the World of its epoch.
struct MemberPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int host = 0;  // hosts are counted in the order of their first ranks
  int hosts = 1;
  std::vector<Incarnation> here;  // the members of its host, by local rank
  bool operator==(const MemberPlace&) const = default;
};

// Returns the place of a process that the epoch names as a member. All members find places that fit
// together, whichever hosts are left: rank 0 is the first rank of host 0.
MemberPlace place_of_member(const NewEpoch& epoch, Incarnation incarnation);

}  // namespace ciranda::member
