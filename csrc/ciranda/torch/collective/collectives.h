#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ciranda/torch/collective/collective.h"

namespace ciranda {

// Collectives on tensors, among the ranks of the communicator's group. An empty name means the n-th
// unnamed operation of its kind on every rank. Thread-safe; no GIL needed. Bad arguments throw
// Exception at once. TensorCollective::wait() throws what ranks disagree about. Functions that
// return a Started do not block: wait() does.
//
// The tensors of a call are on one device. On a GPU an operation starts after the work that is on
// the current stream at the call. wait() blocks until all ranks have queued the operation there;
// the host does not wait for the GPU. Work that is put on the current stream after wait() comes
// after the operation.

struct ReduceOptions {
  std::string name;
  ReduceOp op = ReduceOp::kAverage;
  double prescale = 1.0;
  double postscale = 1.0;
};

RequestSpec make_reduce_spec(const Communicator& among, OpKind kind, const ReduceOptions& options);

// Reduces inputs[i] over the ranks into outputs[i]; the two may be the same tensor. Several tensors
// are reduced together, when all are ready on every rank. Outputs may overlap memory of other
// members: the results are as if all inputs had been read before.
Started allreduce_async(const Communicator& among, std::vector<at::Tensor> inputs,
                        std::vector<at::Tensor> outputs, const ReduceOptions& options);
// Does the same for one tensor, and blocks as wait() does.
void allreduce(const Communicator& among, const at::Tensor& input, const at::Tensor& output,
               const ReduceOptions& options, const Engine::Look& look = {});
// Copies the root's inputs[i] to outputs[i]. `root` is a rank of the World.
Started broadcast_async(const Communicator& among, std::vector<at::Tensor> inputs,
                        std::vector<at::Tensor> outputs, Rank root, const std::string& name);
// Broadcasts in place, with few requests for many tensors, which may have any dtype and strides.
// Blocks.
void broadcast_tensors(const Communicator& among, const std::vector<at::Tensor>& tensors, Rank root,
                       const std::string& name);
// Concatenates the ranks' tensors along dimension 0, whose size may differ by rank.
Started allgather_async(const Communicator& among, std::vector<at::Tensor> inputs,
                        const std::string& name);
// Returns every rank's bytes, by rank; none for a rank that has none. Use it for bytes that the
// receiver parses: they go through ciranda's own backends, whatever the user chose, and between
// hosts they are compared with the digest that the sender put on the sealed control channel. `mine`
// is a contiguous uint8 tensor of one dimension on the CPU. Collective, blocking. Throws kMalformed
// if bytes were changed on their way.
std::vector<at::Tensor> allgather_bytes(const Communicator& among, const at::Tensor& mine,
                                        const std::string& name);
// Sends `splits[r]` rows of `input` to rank r; divides dimension 0 evenly without splits.
Started alltoall_async(const Communicator& among, const at::Tensor& input,
                       const std::optional<std::vector<std::int64_t>>& splits,
                       const std::string& name);
// Gives the root the concatenation along dimension 0, whose size may differ by rank. Other ranks
// get no rows. `root` is a rank of the World.
Started gather_async(const Communicator& among, const at::Tensor& input, Rank root,
                     const std::string& name);
// Gives rank r `splits[r]` rows of the root's input; divides dimension 0 evenly without splits.
// Only the dtype and the shape of a row count in the inputs of other ranks; their splits are
// ignored. Splits that do not fit the root's input throw from wait(), on all ranks.
Started scatter_async(const Communicator& among, const at::Tensor& input, Rank root,
                      const std::optional<std::vector<std::int64_t>>& splits,
                      const std::string& name);
// Gives rank r the r-th piece of the reduction along dimension 0; the first ranks get one row more
// if it does not divide evenly.
Started reducescatter_async(const Communicator& among, std::vector<at::Tensor> inputs,
                            const ReduceOptions& options);
// Reduces into the root's `output`, which may be its input. On other ranks the result is the input,
// and `output` is ignored.
Started reduce_async(const Communicator& among, const at::Tensor& input, const at::Tensor& output,
                     Rank root, const ReduceOptions& options);
// Send a tensor to rank `to` of the World, whatever the group, and receive it into `output`. A send
// matches the receive of the same name; unnamed ones match in their order, in each direction. Both
// are done once the tensor has arrived. Dtypes and shapes must be the same.
Started send_async(const Communicator& among, const at::Tensor& input, Rank to,
                   const std::string& name);
Started recv_async(const Communicator& among, const at::Tensor& output, Rank from,
                   const std::string& name);
Started barrier_async(const Communicator& among, const std::string& name);

}  // namespace ciranda
