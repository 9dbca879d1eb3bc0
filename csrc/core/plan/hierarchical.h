#pragma once

#include <string>
#include <vector>

#include "core/plan/cost.h"
#include "core/plan/schedule.h"
#include "core/wire/introduction.h"

namespace ciranda {

// Returns hosts of one rank each: a plan over them is a schedule between all ranks.
Hosts flat_hosts(int ranks);

// Plans a collective between ranks of several hosts: what each host does inside, over shared
// memory, and the schedule between the hosts.
//
// A lane is one rank of each host: the ranks at the same index within their hosts. There are as
// many lanes as the smallest host has ranks. Channel c of the schedule belongs to lane c % lanes
// and is the lane's stream c / lanes. So each lane carries its own stripe of every block, 1/lanes
// of the bytes, and a host sends 2(H-1)/H of an allreduce's payload, however many ranks it has.
//
//                 inside, before           between hosts         inside, after
//   allreduce     reduced chunk by chunk   allreduce             result for all ranks
//   reducescatter reduced chunk by chunk   the hosts' parts      a part for each rank
//   broadcast     payload for all lanes    from the root's host  result for all ranks
//   allgather     parts side by side       the hosts' parts      result for all ranks
//   barrier       all have come            lane 0                all may go
//   alltoall      -                        flat: every rank      -
//
// Chunks form a pipeline. The input of the schedule is the host's reduced sum. A lane reduces its
// chunks in the order of Schedule::chunk(), which is the order in which the steps read them. The
// first chunk is on the wire while the second is reduced. A step's after_chunks says how many
// chunks it needs.
//
// The prescale is applied to each rank's input when a chunk is reduced inside the host. The
// postscale (for Average it includes 1/size) is applied once and last, by the receive that
// `completes` the bytes. So an average of integers is divided only when its sum is complete. A
// group on a single host applies both in one pass, without this plan (backend/shm). If the input is
// one rank's, a prescale other than 1 takes a separate pass. Halves are summed in float32 inside a
// host and rounded to their type for the wire, once per host.
//
// If the ranks of a host are not consecutive, their parts do not form one part of the host.
// Allgather and reducescatter then run flat: from rank to rank.
class HierarchicalPlan {
 public:
  // The participants of `among_ranks` are ranks. `grain.channels` is per lane. `hosts` outlives the
  // plan.
  HierarchicalPlan(const Collective& among_ranks, const Hosts& hosts, Rank self,
                   const LinkSpeed& link, Grain grain = {});

  // The schedule between hosts, for the host of `self`. If flat, it is between ranks, for `self`.
  const Schedule& schedule() const { return schedule_; }
  bool flat() const { return flat_; }
  int lanes() const { return lanes_; }
  int lane(int channel) const { return channel % lanes_; }
  int stream(int channel) const { return channel / lanes_; }
  // Returns the rank that drives `channel` on the side of `participant`.
  Rank rank(int participant, int channel) const;
  bool drives(int channel) const { return rank(schedule_.layout().self, channel) == self_; }

 private:
  const Hosts& hosts_;
  const Rank self_;
  const bool flat_;
  const int lanes_;
  const Schedule schedule_;
};

// Describes which lane carries what between which ranks, followed by the table of the schedule.
std::string to_string(const HierarchicalPlan& plan);

}  // namespace ciranda
