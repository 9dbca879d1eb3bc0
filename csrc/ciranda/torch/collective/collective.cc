#include "ciranda/torch/collective/collective.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "ciranda/torch/tensor/transport_dtype.h"
#include "core/base/assert.h"
#include "core/engine/submission_queue.h"
#include "core/wire/operation_name.h"

namespace ciranda {

bool TensorCollective::poll() const {
  if (!std::all_of(before.begin(), before.end(), [](const auto& part) { return part->poll(); })) {
    return false;
  }
  if (!engine->poll(handle)) return false;
  const auto& finished = handle->finished();
  return finished == nullptr || unwrap(finished->passed());
}

CollectiveResult TensorCollective::wait(const Engine::Look& look) {
  return before.empty() ? wait_for_this(look) : wait_for_parts(look);
}

// Waits for every part even if one fails, because the engine still uses the memory of the rest.
CollectiveResult TensorCollective::wait_for_parts(const Engine::Look& look) {
  std::exception_ptr problem;
  CollectiveResult all;
  const auto add = [&](auto wait) {
    try {
      const CollectiveResult part = wait();
      all.tensors.insert(all.tensors.end(), part.tensors.begin(), part.tensors.end());
    } catch (...) {
      if (!problem) problem = std::current_exception();
    }
  };
  for (const auto& part : before) add([&] { return part->wait_for_this(look); });
  add([&] { return wait_for_this(look); });
  if (problem) std::rethrow_exception(problem);
  return all;
}

CollectiveResult TensorCollective::wait_for_this(const Engine::Look& look) {
  CIRANDA_ASSERT(engine != nullptr && handle != nullptr);  // by start()
  const Status status = engine->wait(handle, look);
  if (misfit && !status && status.error().code == misfit->code &&
      status.error().rank == misfit->rank) {
    throw Exception(*misfit);
  }
  check(status);
  queue_behind(*handle, stream);
  if (stream) {
    // The outputs that the engine allocated belong to the communicator's stream.
    const c10::Stream current = current_stream(stream->torch().device());
    for (const at::Tensor& output : outputs) keep_for(current, output);
  }
  CIRANDA_ASSERT(outputs.size() == inputs.size());  // it is waited for once
  for (const auto& [index, target] : targets) {
    if (writes) assign(target, from_transport_dtype(outputs[index], target.scalar_type()));
    outputs[index] = target;
  }
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    outputs[i] = from_transport_dtype(outputs[i], dtypes[i]).to(dtypes[i]);
  }
  return {.tensors = std::move(outputs), .received_rows = handle->rows()};
}

std::string describe(OpKind kind, const std::string& name) {
  const std::string text(op_kind_name(kind));
  return name.empty() ? text : text + " '" + name + "'";
}

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Exception({.code = ErrorCode::kInvalidArgument, .text = what + ": " + why});
}

RequestSpec make_spec(const Communicator& among, OpKind kind, const std::string& name) {
  RequestSpec spec;
  spec.kind = kind;
  spec.group = among.group->id;
  spec.name = name.empty() ? unnamed(kind) : name;
  return spec;
}

RequestSpec make_rooted_spec(const Communicator& among, OpKind kind, const std::string& name,
                             Rank root) {
  RequestSpec spec = make_spec(among, kind, name);
  spec.root = root;
  return spec;
}

std::shared_ptr<TorchStream> place(const Communicator& among, c10::Device device,
                                   const std::string& what, RequestSpec& spec,
                                   Submission& submission) {
  spec.backend = backend_of(device, among.engine->backend_choice());
  if (device.is_cpu()) return nullptr;
  auto stream = among.stream_of(device, what);
  submission.device = {.stream = stream, .ready = record(current_stream(device))};
  return stream;
}

void queue_behind(const Operation& operation, const std::shared_ptr<TorchStream>& stream) {
  CIRANDA_ASSERT(operation.finished() == nullptr || stream != nullptr);  // by place()
  if (operation.finished()) wait(current_stream(stream->torch().device()), *operation.finished());
}

Started start(const Communicator& among, Started collective, const std::string& what,
              RequestSpec spec, Submission submission, bool ours) {
  CIRANDA_ASSERT(collective->handle == nullptr);
  collective->engine = among.engine;
  if (!collective->inputs.empty() && !ours) {
    collective->stream = place(among, device_of(collective->inputs, what), what, spec, submission);
  }
  const auto reach = [&](const at::Tensor& tensor) {
    if (collective->stream) {
      check_memory(tensor, what);
      keep_for(collective->stream->torch(), tensor);
    }
    if (tensor.has_storage()) collective->memory.push_back(tensor.storage());
    return data_of(tensor);
  };
  if (!spec.in_arena) {
    for (const at::Tensor& input : collective->inputs) submission.inputs.push_back(reach(input));
    for (const at::Tensor& output : collective->outputs) {
      if (output.defined()) submission.outputs.push_back(reach(output));
    }
  }
  submission.spec = std::make_shared<const RequestSpec>(std::move(spec));
  collective->handle = unwrap(among.engine->submit(std::move(submission)));
  return collective;
}

void check_same(const at::Tensor& input, const at::Tensor& output, const std::string& what) {
  check_usable(output, what);
  if (output.sizes() != input.sizes() || output.dtype() != input.dtype() ||
      output.device() != input.device()) {
    refuse(what, "the output has another shape, dtype or device than the input");
  }
}

namespace {

// Gives an output private memory if the engine cannot write to it in place. The engine reads while
// it writes, and it knows nothing of lazy views. The results are as if all inputs had been read
// before.
void make_private(const Communicator& among, TensorCollective& collective, std::size_t index,
                  const std::string& what) {
  at::Tensor& output = collective.outputs[index];
  if (!output.is_cpu())
    (void)among.stream_of(output.device(), what);  // throws here if the device is not usable
  at::Tensor memory = at::empty(output.sizes(), output.options().requires_grad(false));
  collective.targets.emplace_back(index, std::exchange(output, std::move(memory)));
}

// Replaces input and output of a member by tensors of its transport dtype.
void use_transport_dtype(TensorCollective& collective, std::size_t index, ReduceOp op,
                         const std::string& what) {
  at::Tensor& input = collective.inputs[index];
  at::Tensor& output = collective.outputs[index];
  check_same(input, output, what);
  input = to_transport_dtype(input, op, what);
  at::Tensor memory = collective.writes ? at::empty(input.sizes(), input.options()) : input;
  const bool has_target = !collective.targets.empty() && collective.targets.back().first == index;
  if (has_target) {
    output = std::move(memory);
  } else {
    collective.targets.emplace_back(index, std::exchange(output, std::move(memory)));
  }
}

// Moves a GPU's tensors to the CPU, which alone computes Adasum. The host waits for the GPU.
void bring_to_cpu(TensorCollective& collective) {
  for (std::size_t i = 0; i < collective.inputs.size(); ++i) {
    if (collective.inputs[i].is_cpu()) continue;
    collective.inputs[i] = collective.inputs[i].cpu();
    at::Tensor& output = collective.outputs[i];
    collective.targets.emplace_back(
        i, std::exchange(output, at::empty(output.sizes(), collective.inputs[i].options())));
  }
}

}  // namespace

Started start_elementwise(const Communicator& among, RequestSpec spec,
                          std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                          const std::string& what, bool writes) {
  CIRANDA_ASSERT(inputs.size() == outputs.size());
  auto collective = std::make_shared<TensorCollective>();
  collective->inputs = std::move(inputs);
  collective->outputs = outputs;
  collective->writes = writes;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor& input = collective->inputs[i];
    input = resolved(input);
    if (is_lazy(outputs[i])) make_private(among, *collective, i, what);
    const c10::ScalarType type = input.scalar_type();
    if (reduces(spec.kind) && needs_transport_dtype(input, spec.op))
      use_transport_dtype(*collective, i, spec.op, what);
    spec.tensors.push_back(reduces(spec.kind) ? transport_spec_of(input, type, what)
                                              : moved_spec_of(input, what));
    if (reduces(spec.kind)) check_average(input, type, spec, among.group->size(), what);
    check_same(input, collective->outputs[i], what);
  }
  if (outputs.empty()) refuse(what, "the list of tensors is empty");
  if (reduces(spec.kind) && spec.op == ReduceOp::kAdasum) bring_to_cpu(*collective);
  const std::vector<bool> overlaps = overlapping_outputs(collective->inputs, collective->outputs);
  if (outputs.size() > 1) (void)device_of(collective->inputs, what);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (overlaps[i]) make_private(among, *collective, i, what);
  }
  start(among, collective, what, std::move(spec), {});
  for (const at::Tensor& output : outputs) {
    if (writes) mark_written(output);
  }
  return collective;
}

Started start_resizing(const Communicator& among, RequestSpec spec, std::vector<at::Tensor> inputs,
                       std::vector<std::int64_t> rows, const std::string& what,
                       std::optional<Digest> digest, bool ours) {
  auto collective = std::make_shared<TensorCollective>();
  Submission submission;
  submission.digest = digest;
  const bool reduces_them = reduces(spec.kind);
  for (at::Tensor& input : inputs) {
    input = resolved(input);
    if (input.defined() && input.dim() == 0) {
      refuse(what, "a 0-dim tensor has no rows; pass tensor.unsqueeze(0)");
    }
    const c10::ScalarType type = input.scalar_type();
    if (reduces_them) {
      collective->dtypes.push_back(type);
      if (needs_transport_dtype(input, spec.op)) input = to_transport_dtype(input, spec.op, what);
    }
    TensorSpec tensor =
        reduces_them ? transport_spec_of(input, type, what) : moved_spec_of(input, what);
    if (reduces_them) check_average(input, type, spec, among.group->size(), what);
    if (!reduces_them) tensor.shape[0] = kAnyRows;
    spec.tensors.push_back(std::move(tensor));
  }
  if (inputs.empty()) refuse(what, "the list of tensors is empty");
  submission.rows = std::move(rows);
  collective->inputs = std::move(inputs);
  collective->outputs.resize(collective->inputs.size());
  submission.allocate = [raw = collective.get()](std::size_t index,
                                                 std::int64_t count) -> Result<std::byte*> {
    try {
      // Makes the output belong to the stream that writes it.
      const c10::OptionalStreamGuard guard(raw->stream ? std::optional(raw->stream->torch())
                                                       : std::nullopt);
      std::vector<std::int64_t> shape = raw->inputs[index].sizes().vec();
      shape[0] = count;
      raw->outputs[index] = at::empty(shape, raw->inputs[index].options().requires_grad(false));
      return data_of(raw->outputs[index]);
    } catch (const std::exception& problem) {
      return Error{.code = ErrorCode::kSystem,
                   .text = std::string("cannot allocate the output: ") + problem.what()};
    }
  };
  return start(among, std::move(collective), what, std::move(spec), std::move(submission), ours);
}

}  // namespace ciranda
