#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "ciranda/torch/collective/collective.h"
#include "core/job/member.h"
#include "core/job/world.h"
#include "core/ps/io/client.h"

namespace ciranda {

// The state of the process that init() of <ciranda/torch.h> creates: one World, or, in a job with
// parameter servers, one connection to the servers. All functions are thread-safe.

// Implements init() of <ciranda/torch.h>. `with_comm`: Python's init() got a comm. If the ranks
// differ in that, init() throws on all of them; with parameter servers a comm is kUnsupported.
// Blocks.
void init_default_world(bool with_comm);

// --- Elastic jobs (docs/elastic.md). A process begins in a World of one rank, and later in one
// World after the other, as the arbiter names the ranks.

// Returns this process's socket to the arbiter; null before the first init(), and in a job that is
// not elastic.
std::shared_ptr<Member> elastic_member();

// Returns true in an elastic job on several hosts, also while all its ranks are on one of them.
bool in_elastic_job_of_hosts();

// Returns the number of the epoch whose World this process is in; 0 in its World of one rank.
member::EpochNumber own_epoch();

// Ends the World and meets the members of `epoch` in the next one. Process sets and unfinished
// operations of the old World are gone. Blocks until all members have come. Throws kShutdown if the
// arbiter says something newer meanwhile: the process then is in no World until the next call.
void begin_epoch(const member::NewEpoch& epoch);

// Leaves the ranks of the World, as shutdown() does. Until the next World begins, own_rank_info()
// tells of this one, and its operations are refused. Blocks for a few seconds at most.
void leave_ranks();

// Tells the arbiter that an operation of this rank needed the rank `who` of the World, which had
// left it. `step` is how far this rank is. Throws kRankLost if the launcher is gone.
void tell_who_left(Rank who, std::uint64_t step);

// Blocks until the processes have ended that were ranks of an earlier World and are none of this
// one: until then one of their threads may write to memory of that World. They were told to die.
void await_lost_ranks();

// Sets EngineOptions::show_where for Worlds that begin afterwards: the engine calls it when other
// ranks wait for this one and ask where it is.
void set_show_where(std::function<void()> show);

// Sets EngineOptions::interrupted for Worlds that begin afterwards: a thread that waits calls it.
// It may wait for Python's lock while the owner of the lock waits for a World to begin or end.
// Therefore the thread that begins or ends a World does not call it.
void set_interrupted(std::function<bool()> interrupted);

// Returns this rank's place. Works in a child made by fork too, since a DataLoader worker may ask
// which rank it works for. Throws kNotInitialized before init().
RankInfo own_rank_info();

// Returns one number of own_rank_info(), for numbers that only a rank has. Throws kInvalidArgument
// in the coordinator, with a text that begins with `what`.
Rank rank_of(Rank RankInfo::*number, std::string_view what);

// Returns the ranks of each host, ascending; may be called where own_rank_info() may. A job with
// parameter servers knows only the ranks of this host, and spreads the other ranks evenly.
Hosts ranks_of_hosts();

// Returns the World. Throws kNotInitialized before init(), kForked in a child made by fork, and
// kUnsupported in a job with parameter servers, since the ranks of such a job do not meet.
std::shared_ptr<World> default_world();

// Returns the connection to the job's parameter servers; null in a World. Throws kNotInitialized
// and kForked as default_world() does.
std::shared_ptr<ps::Client> default_client();

// Return the communicator of the World, or of the members of `group`. Both throw what
// default_world() throws. The second also throws kInvalidArgument, with a text that begins with
// `what`, if the group does not exist (any more).
std::shared_ptr<const Communicator> default_communicator();
std::shared_ptr<const Communicator> default_communicator(GroupId group, std::string_view what);

// Add and remove a process set, see Engine. All ranks call them in the same order; they block.
// join() is declared in <ciranda/torch.h>.
GroupId add_group(std::vector<Rank> ranks);
void remove_group(GroupId group);

// Returns the World's own stream of its GPU. The first call decides which GPU that is. Throws
// kInvalidArgument for any other device, and kUnsupported if this build or this machine cannot run
// operations on GPUs. The text begins with `what` and says what to do.
std::shared_ptr<TorchStream> default_stream(c10::Device device, std::string_view what);

// Returns true if this process is a child that a rank has made by fork.
bool in_forked_child();
// Throws kForked in such a child, before it touches any lock.
void refuse_in_forked_child();

}  // namespace ciranda
