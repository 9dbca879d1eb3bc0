#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/runtime/engine.h"

namespace ciranda {

// Collectives on tensors of the default World. All are asynchronous and give the number of a
// handle; synchronize() blocks for the result. An empty name means: the n-th unnamed operation of
// the kind on every rank. Thread-safe; no GIL needed. Bad arguments throw Exception at once, what
// ranks disagree about throws from synchronize(). `group`: whose ranks take part, and count.
//
// The tensors of a call are on one device. On a GPU an operation starts after what the current
// stream does by then, and synchronize() blocks until it is queued there on all ranks: the host
// does not wait for the GPU, what the current stream does from then on comes after the operation.
using HandleId = std::int64_t;

struct ReduceOptions {
  std::string name;
  ReduceOp op = ReduceOp::kAverage;
  double prescale = 1.0;
  double postscale = 1.0;
  GroupId group = kWorldGroup;
};

struct CollectiveResult {
  std::vector<at::Tensor> tensors;  // one an input
  // alltoall: rows received from each rank.
  std::vector<std::int64_t> received_rows;
};

// outputs[i] gets the reduction of inputs[i] over the ranks; they may be the same tensors. Several
// tensors are one group: it runs when every member is ready on every rank. Outputs may lie in
// memory of other members: what is written is as if all inputs had been read before.
HandleId allreduce_async(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                         const ReduceOptions& options);
// Blocking as synchronize() does, for one tensor: without a handle.
void allreduce(const at::Tensor& input, const at::Tensor& output, const ReduceOptions& options);
// outputs[i] gets the root's inputs[i]; `root` is a rank of the World.
HandleId broadcast_async(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, Rank root,
                         const std::string& name, GroupId group = kWorldGroup);
// Blocking, in place, few requests for many tensors; dense ones of any layout and dtype.
void broadcast_tensors(const std::vector<at::Tensor>& tensors, Rank root, const std::string& name,
                       GroupId group = kWorldGroup);
// Concatenation over the ranks along dimension 0, whose size may differ by rank.
HandleId allgather_async(std::vector<at::Tensor> inputs, const std::string& name,
                         GroupId group = kWorldGroup);
// Every rank's bytes, by rank; empty: that rank has none. For what is parsed where it arrives: it
// goes through our own backends, whatever the user chose for others, and between hosts it is
// compared with what its sender said of it on the sealed control channel. `mine`: uint8, of one
// dimension, contiguous, on the CPU. Collective, blocking. Throws kMalformed where bytes were
// changed.
std::vector<at::Tensor> allgather_bytes(const at::Tensor& mine, const std::string& name,
                                        GroupId group = kWorldGroup);
// `splits[r]` rows of `input` go to rank r; without splits dimension 0 is divided evenly.
HandleId alltoall_async(const at::Tensor& input,
                        const std::optional<std::vector<std::int64_t>>& splits,
                        const std::string& name, GroupId group = kWorldGroup);
// The root gets the concatenation along dimension 0, whose size may differ by rank, the others get
// no rows. `root` is a rank of the World.
HandleId gather_async(const at::Tensor& input, Rank root, const std::string& name,
                      GroupId group = kWorldGroup);
// Rank r gets `splits[r]` rows of the root's input; without splits dimension 0 is divided evenly.
// Of the others' inputs only dtype and shape of a row matter; their splits are not looked at.
// Splits that do not fit the root's input throw from synchronize(), on all ranks.
HandleId scatter_async(const at::Tensor& input, Rank root,
                       const std::optional<std::vector<std::int64_t>>& splits,
                       const std::string& name, GroupId group = kWorldGroup);
// Rank r gets the r-th piece of the reduction along dimension 0; the first ranks get the rest.
HandleId reducescatter_async(std::vector<at::Tensor> inputs, const ReduceOptions& options);
// The root's `output`, which may be its input, gets the reduction; the others' results are their
// inputs, and their outputs are not looked at.
HandleId reduce_async(const at::Tensor& input, const at::Tensor& output, Rank root,
                      const ReduceOptions& options);
// A tensor to rank `to`, and in its recv_async() `output` gets it: the n-th one way, or the one of
// that name. Both are done once it is there; dtypes and shapes must be the same.
HandleId send_async(const at::Tensor& input, Rank to, const std::string& name);
HandleId recv_async(const at::Tensor& output, Rank from, const std::string& name);
HandleId barrier_async(const std::string& name, GroupId group = kWorldGroup);

// The group of that number; throws kInvalidArgument, beginning with `what`, where there is none
// (any more).
std::shared_ptr<const Group> members_of(GroupId group, const std::string& what);

// Changes of who takes part; by all ranks in the same order, blocking. See Engine.
GroupId add_group(std::vector<Rank> ranks);
void remove_group(GroupId group);
Rank join();

// True when synchronize() would not block, and a GPU has the results.
bool poll(HandleId id);
// Blocks until done and forgets the handle; a second call with the same id gives nothing.
std::optional<CollectiveResult> synchronize(HandleId id);
// Nobody will call synchronize(): what the operation holds is freed once it is done. Does not
// block.
void abandon(HandleId id);

// A tensor whose memory all ranks of the host map: its in-place allreduce copies nothing. Lives in
// the arena of the default World for as long as the tensor does.
at::Tensor arena_empty(const std::vector<std::int64_t>& shape, c10::ScalarType dtype);
// In-place allreduce of a tensor made by arena_empty, by every rank.
HandleId arena_allreduce_async(const at::Tensor& tensor, const ReduceOptions& options);

}  // namespace ciranda
