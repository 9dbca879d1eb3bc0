#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "ciranda/torch/collective/collective.h"
#include "core/job/world.h"
#include "core/ps/io/client.h"

namespace ciranda {

// What init() of <ciranda/torch.h> makes: one World, or, in a job with parameter servers, the
// connection to them. The only state of the process that is not owned by an object. Thread-safe.

// init() of <ciranda/torch.h>. `with_comm`: Python's has a comm, which is so on every rank or on
// none; else all ranks raise.
void init_default_world(bool with_comm);

// What a rank does that others wait for, and ask where it is: see EngineOptions. Of Worlds that
// begin afterwards.
void set_show_where(std::function<void()> show);

// What a thread of this process asks while it waits: see EngineOptions. Of Worlds that begin
// afterwards. It may wait for Python's lock, whose owner may wait for a World that begins or ends:
// the thread that does that does not ask.
void set_interrupted(std::function<bool()> interrupted);

// This rank's place. Also in a child made by fork (a DataLoader worker may ask which rank it works
// for); kNotInitialized before init().
RankInfo own_rank_info();

// A number of it that a rank alone has; kInvalidArgument in the coordinator, beginning with `what`.
Rank rank_of(Rank RankInfo::*number, std::string_view what);

// By host its ranks, ascending.
Hosts ranks_of_hosts();

// The World; kNotInitialized before init(), kForked in a child made by fork, kUnsupported in a job
// with parameter servers, whose ranks do not meet.
std::shared_ptr<World> default_world();

// The connection to the job's parameter servers; null in a World. Throws as default_world() does.
std::shared_ptr<ps::Client> default_client();

// Of all its ranks, and of those of a group; throws as default_world() does, and kInvalidArgument,
// beginning with `what`, where there is no such group (any more).
std::shared_ptr<const Communicator> default_communicator();
std::shared_ptr<const Communicator> default_communicator(GroupId group, std::string_view what);

// Changes of who takes part in it; by all ranks in the same order, blocking. See Engine. join() is
// in <ciranda/torch.h>.
GroupId add_group(std::vector<Rank> ranks);
void remove_group(GroupId group);

// The World's own stream of its GPU, which is the first one that is asked for. Throws
// kInvalidArgument for any other device, and kUnsupported where this build or this machine cannot
// run operations on GPUs; the sentence begins with `what` and says what to do.
std::shared_ptr<TorchStream> default_stream(c10::Device device, std::string_view what);

// Whether this process is a child that a rank has made by fork.
bool in_forked_child();
// Throws kForked there, before it touches any lock.
void refuse_in_forked_child();

}  // namespace ciranda
