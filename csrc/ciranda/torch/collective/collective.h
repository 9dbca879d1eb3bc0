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

// Among whom collectives run, and on which stream of a GPU.
struct Communicator {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<const Group> group;
  // The stream for tensors of that device; throws where there is none, in a sentence that begins
  // with `what`.
  std::shared_ptr<TorchStream> (*stream_of)(c10::Device device, std::string_view what) = nullptr;
};

struct CollectiveResult {
  std::vector<at::Tensor> tensors;  // one an input
  // alltoall: rows received from each rank.
  std::vector<std::int64_t> received_rows;
};

// A collective that was started; its tensors must live as long as it runs. Thread-safe, but for
// wait(), which one thread calls, once.
struct TensorCollective {
  // True when wait() would not block, and a GPU has the results.
  bool poll() const;
  // Blocks until it is done. Throws what ranks disagree about.
  CollectiveResult wait(const Engine::Look& look = {});
  CollectiveResult wait_for_this(const Engine::Look& look);
  CollectiveResult wait_for_parts(const Engine::Look& look);

  std::shared_ptr<Engine> engine;
  Handle handle;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  // Their memory and that of the inputs: a tensor may get another one (x.data = y) meanwhile.
  std::vector<c10::Storage> memory;
  // Outputs that are private memory, and the user's tensor that gets the values in the end.
  std::vector<std::pair<std::size_t, at::Tensor>> targets;
  bool writes = true;  // `targets`; else they are only what is shown as outputs
  // The dtypes that new outputs get, where they are reduced in a transport dtype.
  std::vector<c10::ScalarType> dtypes;
  std::shared_ptr<TorchStream> stream;  // of their GPU; null on the CPU
  // Of a list that is longer than one request: its other members, which come first.
  std::vector<std::shared_ptr<TensorCollective>> before;
  // scatter: why its splits do not fit, in place of the error of that code and rank, which all get.
  std::optional<Error> misfit = {};
};
using Started = std::shared_ptr<TensorCollective>;

// -------------------------------------------------------------------------------------------
// What collectives are made of. `what` begins the sentence of a refusal.

std::string describe(OpKind kind, const std::string& name);
[[noreturn]] void refuse(const std::string& what, const std::string& why);

// An empty name: unnamed.
RequestSpec make_spec(const Communicator& among, OpKind kind, const std::string& name);
RequestSpec make_rooted_spec(const Communicator& among, OpKind kind, const std::string& name,
                             Rank root);

// Says what runs the operation. Memory of a GPU: on the communicator's stream, after all that the
// current one does by now. Gives that stream; null on the CPU.
std::shared_ptr<TorchStream> place(const Communicator& among, c10::Device device,
                                   const std::string& what, RequestSpec& spec,
                                   Submission& submission);
// Once it is done: what the current stream does from here on comes after it. The host does not wait
// for a GPU.
void queue_behind(const Operation& operation, const std::shared_ptr<TorchStream>& stream);

void check_same(const at::Tensor& input, const at::Tensor& output, const std::string& what);

// Submits it. `ours`: to our own backends, whatever the user chose for the CPU.
Started start(const Communicator& among, Started collective, const std::string& what,
              RequestSpec spec, Submission submission, bool ours = false);
// Of kinds with as many outputs of the same shape, known at once. `writes`: this rank's get a
// result.
Started start_elementwise(const Communicator& among, RequestSpec spec,
                          std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                          const std::string& what, bool writes = true);
// Of kinds whose output is made once its rows are known, by any thread that drives the engine.
Started start_resizing(const Communicator& among, RequestSpec spec, std::vector<at::Tensor> inputs,
                       std::vector<std::int64_t> rows, const std::string& what,
                       std::optional<Digest> digest = {}, bool ours = false);

}  // namespace ciranda
