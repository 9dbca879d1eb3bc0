#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ciranda/torch/tensor/device_stream.h"
#include "core/engine/engine.h"

namespace ciranda {

// The ranks among which collectives run, and the GPU stream on which they run.
struct Communicator {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<const Group> group;
  // Returns the stream for tensors of `device`. Throws if the device has none; the error begins
  // with `what`.
  std::shared_ptr<TorchStream> (*stream_of)(c10::Device device, std::string_view what) = nullptr;
};

struct CollectiveResult {
  std::vector<at::Tensor> tensors;  // one per input
  // alltoall: rows received from each rank.
  std::vector<std::int64_t> received_rows;
};

// A collective that was started. Owns the tensors, so it must live until the collective is done.
// Thread-safe except for wait(), which one thread calls, once.
struct TensorCollective {
  // Returns true if wait() would not block and the GPU, if any, has the results. Does not block.
  bool poll() const;
  // Blocks until the collective is done and returns the results. Throws its error, such as what the
  // ranks disagree about.
  CollectiveResult wait(const Engine::Look& look = {});
  CollectiveResult wait_for_this(const Engine::Look& look);
  CollectiveResult wait_for_parts(const Engine::Look& look);

  std::shared_ptr<Engine> engine;
  Handle handle;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  // Memory of inputs and outputs, kept because a tensor may get other memory (x.data = y)
  // meanwhile.
  std::vector<c10::Storage> memory;
  // Index of each output that is private memory, and the user's tensor that gets its values at the
  // end.
  std::vector<std::pair<std::size_t, at::Tensor>> targets;
  bool writes = true;  // true: wait() fills `targets`; false: it only returns them
  // Own dtypes of new outputs, which may have been reduced in a transport dtype.
  std::vector<c10::ScalarType> dtypes;
  std::shared_ptr<TorchStream> stream;  // of the tensors' GPU; null on the CPU
  // Collectives of the earlier members of a list that is longer than one request.
  std::vector<std::shared_ptr<TensorCollective>> before;
  // scatter: the reason why this rank's splits do not fit. It replaces the error with the same code
  // and rank, which all ranks get.
  std::optional<Error> misfit = {};
};
using Started = std::shared_ptr<TensorCollective>;

// -------------------------------------------------------------------------------------------
// The building blocks of collectives. An error's text begins with `what`.

std::string describe(OpKind kind, const std::string& name);
[[noreturn]] void refuse(const std::string& what, const std::string& why);

// An empty name makes an unnamed operation.
RequestSpec make_spec(const Communicator& among, OpKind kind, const std::string& name);
RequestSpec make_rooted_spec(const Communicator& among, OpKind kind, const std::string& name,
                             Rank root);

// Sets the backend that runs the operation. For memory of a GPU also puts the operation on the
// communicator's stream, after everything that is queued on the current stream by now. Returns that
// stream; null on the CPU.
std::shared_ptr<TorchStream> place(const Communicator& among, c10::Device device,
                                   const std::string& what, RequestSpec& spec,
                                   Submission& submission);
// Makes work that is queued on the current stream from now on start after an operation that is
// done. The host does not wait for the GPU.
void queue_behind(const Operation& operation, const std::shared_ptr<TorchStream>& stream);

void check_same(const at::Tensor& input, const at::Tensor& output, const std::string& what);

// Submits the collective and returns it. `ours`: to ciranda's own backends, whatever the user chose
// for the CPU.
Started start(const Communicator& among, Started collective, const std::string& what,
              RequestSpec spec, Submission submission, bool ours = false);
// Starts a collective with outputs of the same number and shapes as its inputs. `writes`: this
// rank's outputs get a result.
Started start_elementwise(const Communicator& among, RequestSpec spec,
                          std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                          const std::string& what, bool writes = true);
// Starts a collective that allocates its outputs once their rows are known, in any thread that
// drives the engine.
Started start_resizing(const Communicator& among, RequestSpec spec, std::vector<at::Tensor> inputs,
                       std::vector<std::int64_t> rows, const std::string& what,
                       std::optional<Digest> digest = {}, bool ours = false);

}  // namespace ciranda
