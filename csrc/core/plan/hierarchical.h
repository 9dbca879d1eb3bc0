#pragma once

#include <string>
#include <vector>

#include "core/plan/cost.h"
#include "core/plan/schedule.h"
#include "core/wire/introduction.h"

namespace ciranda {

// Every rank a host of its own: the plan becomes a ring over all ranks.
Hosts flat_hosts(int ranks);

// A collective between ranks of several hosts: what a host does inside, over shared memory, and the
// schedule between the hosts.
//
// A lane is one rank of every host, those with the same local rank; there are as many lanes as the
// smallest host has ranks. Channel c of the schedule belongs to lane c % lanes and is its stream
// c / lanes. So each lane carries its own stripe of every block, 1/lanes of the bytes, and a host
// sends 2(H-1)/H of an allreduce's payload, however many ranks it has.
//
//                 inside, before           between hosts         inside, after
//   allreduce     reduced chunk by chunk   allreduce             result for all ranks
//   reducescatter reduced chunk by chunk   the hosts' parts      a part for each rank
//   broadcast     payload for all lanes    from the root's host  result for all ranks
//   allgather     parts side by side       the hosts' parts      result for all ranks
//   barrier       all have come            lane 0                all may go
//   alltoall      -                        flat: every rank      -
//
// Chunks are a pipeline: the input of the schedule is the host's reduced sum, and a lane reduces it
// in the order of Schedule::chunk(), which is the order in which the steps read it. The first chunk
// is on the wire while the second is reduced; after_chunks says how far a step looks.
//
// Scales: the prescale is applied to each rank's input when a chunk is reduced inside the host, the
// postscale (for Average with 1/size in it) by the receive that `completes` the bytes, once and
// last, so that an average of integers is divided only when the whole sum is there. Alone on one
// host, both in the same pass. In a flat plan the input is one rank's: a prescale other than 1
// takes a pass of its own, by the same chunks. Halves are summed in float32 inside a host and
// rounded to their type for the wire, once a host.
//
// Parts of ranks that a host does not have in a row (its ranks are not consecutive) are not one
// part of the host: such an allgather or reducescatter is flat.
class HierarchicalPlan {
 public:
  // `among_ranks` counts ranks as participants. `grain.channels` is for a lane. `hosts` stays
  // valid as long as the plan.
  HierarchicalPlan(const Collective& among_ranks, const Hosts& hosts, Rank self,
                   const LinkSpeed& link, Grain grain = {});

  // Between hosts, for the host of `self`; flat: between ranks, for `self`.
  const Schedule& schedule() const { return schedule_; }
  bool flat() const { return flat_; }
  int lanes() const { return lanes_; }
  int lane(int channel) const { return channel % lanes_; }
  int stream(int channel) const { return channel / lanes_; }
  // Who drives `channel` on the participant's side.
  Rank rank(int participant, int channel) const;
  bool drives(int channel) const { return rank(schedule_.layout().self, channel) == self_; }

 private:
  const Hosts& hosts_;
  const Rank self_;
  const bool flat_;
  const int lanes_;
  const Schedule schedule_;
};

// Which lane carries what between which ranks, and the table of the schedule.
std::string to_string(const HierarchicalPlan& plan);

}  // namespace ciranda
