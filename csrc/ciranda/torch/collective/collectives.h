#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ciranda/torch/collective/collective.h"

namespace ciranda {

// Collectives on tensors, of the communicator's group. An empty name means: the n-th unnamed
// operation of the kind on every rank. Thread-safe; no GIL needed. Bad arguments throw Exception at
// once, what ranks disagree about throws from TensorCollective::wait(), which is where a call
// blocks, but for those that give no Started.
//
// The tensors of a call are on one device. On a GPU an operation starts after what the current
// stream does by then, and wait() blocks until it is queued there on all ranks: the host does not
// wait for the GPU, what the current stream does from then on comes after the operation.

struct ReduceOptions {
  std::string name;
  ReduceOp op = ReduceOp::kAverage;
  double prescale = 1.0;
  double postscale = 1.0;
};

RequestSpec make_reduce_spec(const Communicator& among, OpKind kind, const ReduceOptions& options);

// outputs[i] gets the reduction of inputs[i] over the ranks; they may be the same tensors. Several
// tensors are one group: it runs when every member is ready on every rank. Outputs may lie in
// memory of other members: what is written is as if all inputs had been read before.
Started allreduce_async(const Communicator& among, std::vector<at::Tensor> inputs,
                        std::vector<at::Tensor> outputs, const ReduceOptions& options);
// Blocking as wait() is, for one tensor.
void allreduce(const Communicator& among, const at::Tensor& input, const at::Tensor& output,
               const ReduceOptions& options, const Engine::Look& look = {});
// outputs[i] gets the root's inputs[i]; `root` is a rank of the World.
Started broadcast_async(const Communicator& among, std::vector<at::Tensor> inputs,
                        std::vector<at::Tensor> outputs, Rank root, const std::string& name);
// Blocking, in place, few requests for many tensors; dense ones of any layout and dtype.
void broadcast_tensors(const Communicator& among, const std::vector<at::Tensor>& tensors, Rank root,
                       const std::string& name);
// Concatenation over the ranks along dimension 0, whose size may differ by rank.
Started allgather_async(const Communicator& among, std::vector<at::Tensor> inputs,
                        const std::string& name);
// Every rank's bytes, by rank; empty: that rank has none. For what is parsed where it arrives: it
// goes through our own backends, whatever the user chose for others, and between hosts it is
// compared with what its sender said of it on the sealed control channel. `mine`: uint8, of one
// dimension, contiguous, on the CPU. Collective, blocking. Throws kMalformed where bytes were
// changed.
std::vector<at::Tensor> allgather_bytes(const Communicator& among, const at::Tensor& mine,
                                        const std::string& name);
// `splits[r]` rows of `input` go to rank r; without splits dimension 0 is divided evenly.
Started alltoall_async(const Communicator& among, const at::Tensor& input,
                       const std::optional<std::vector<std::int64_t>>& splits,
                       const std::string& name);
// The root gets the concatenation along dimension 0, whose size may differ by rank, the others get
// no rows. `root` is a rank of the World.
Started gather_async(const Communicator& among, const at::Tensor& input, Rank root,
                     const std::string& name);
// Rank r gets `splits[r]` rows of the root's input; without splits dimension 0 is divided evenly.
// Of the others' inputs only dtype and shape of a row matter; their splits are not looked at.
// Splits that do not fit the root's input throw from wait(), on all ranks.
Started scatter_async(const Communicator& among, const at::Tensor& input, Rank root,
                      const std::optional<std::vector<std::int64_t>>& splits,
                      const std::string& name);
// Rank r gets the r-th piece of the reduction along dimension 0; the first ranks get the rest.
Started reducescatter_async(const Communicator& among, std::vector<at::Tensor> inputs,
                            const ReduceOptions& options);
// The root's `output`, which may be its input, gets the reduction; the others' results are their
// inputs, and their outputs are not looked at.
Started reduce_async(const Communicator& among, const at::Tensor& input, const at::Tensor& output,
                     Rank root, const ReduceOptions& options);
// A tensor to rank `to` of the World, whatever the group, and in its recv_async() `output` gets it:
// the n-th one way, or the one of that name. Both are done once it is there; dtypes and shapes must
// be the same.
Started send_async(const Communicator& among, const at::Tensor& input, Rank to,
                   const std::string& name);
Started recv_async(const Communicator& among, const at::Tensor& output, Rank from,
                   const std::string& name);
Started barrier_async(const Communicator& among, const std::string& name);

}  // namespace ciranda
