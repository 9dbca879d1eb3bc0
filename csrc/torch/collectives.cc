#include "torch/collectives.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/runtime/submission_queue.h"
#include "core/wire/pair.h"
#include "torch/default_world.h"
#include "torch/device_stream.h"
#include "torch/error.h"
#include "torch/tensor_view.h"

namespace ciranda {
namespace {

// What belongs to an unfinished collective: its tensors live as long as it runs.
struct PendingCollective {
  std::shared_ptr<World> world;
  Handle handle;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  // Outputs that are private memory, and the user's tensor that gets the values in the end.
  std::vector<std::pair<std::size_t, at::Tensor>> targets;
  std::shared_ptr<TorchStream> stream;  // of their GPU; null on the CPU
  // scatter: why its splits do not fit, in place of the error of that code and rank, which all get.
  std::optional<Error> misfit = {};
};

// The numbers that users hold, for the default World.
class HandleTable {
 public:
  HandleId insert(std::shared_ptr<PendingCollective> pending) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    drop_finished();
    const HandleId id = next_++;
    pending_.emplace(id, std::move(pending));
    return id;
  }
  std::shared_ptr<PendingCollective> find(HandleId id) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = pending_.find(id);
    return found == pending_.end() ? nullptr : found->second;
  }
  std::shared_ptr<PendingCollective> take(HandleId id) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    auto node = pending_.extract(id);
    return node.empty() ? nullptr : std::move(node.mapped());
  }
  void abandon(HandleId id) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (auto node = pending_.extract(id)) abandoned_.push_back(std::move(node.mapped()));
    drop_finished();
  }

 private:
  void drop_finished() REQUIRES(mutex_) {
    std::erase_if(abandoned_, [](const auto& pending) { return pending->handle->done(); });
  }

  Mutex mutex_;
  HandleId next_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<HandleId, std::shared_ptr<PendingCollective>> pending_ GUARDED_BY(mutex_);
  // Nobody has their numbers any more; the engine uses their tensors until they are done.
  std::vector<std::shared_ptr<PendingCollective>> abandoned_ GUARDED_BY(mutex_);
};

HandleTable& handles() {
  // For good: what it holds of a GPU cannot be freed once CUDA has unloaded.
  static auto* const table = new HandleTable;
  return *table;
}

std::string describe(OpKind kind, const std::string& name) {
  const std::string text(op_kind_name(kind));
  return name.empty() ? text : text + " '" + name + "'";
}

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Exception({.code = ErrorCode::kInvalidArgument, .text = what + ": " + why});
}

void check_rank(const char* argument, Rank rank, const std::string& what) {
  const int size = default_world()->place().size;
  if (rank >= 0 && rank < size) return;
  refuse(what, argument + (" " + std::to_string(rank)) + " is not a rank; ranks are 0 to " +
                   std::to_string(size - 1));
}

RequestSpec make_spec(OpKind kind, const std::string& name, GroupId group) {
  RequestSpec spec;
  spec.kind = kind;
  spec.group = group;
  spec.name = name.empty() ? unnamed(kind) : name;
  return spec;
}

RequestSpec make_rooted_spec(OpKind kind, const std::string& name, Rank root, GroupId group) {
  RequestSpec spec = make_spec(kind, name, group);
  spec.root = root;
  return spec;
}

RequestSpec make_reduce_spec(OpKind kind, const ReduceOptions& options) {
  RequestSpec spec = make_spec(kind, options.name, options.group);
  spec.op = options.op;
  spec.prescale = options.prescale;
  spec.postscale = options.postscale;
  return spec;
}

// Says what runs the operation. Memory of a GPU: on the World's own stream, after all that the
// current one does by now. Gives that stream; null on the CPU.
std::shared_ptr<TorchStream> place(const World& world, c10::Device device, const std::string& what,
                                   RequestSpec& spec, Submission& submission) {
  spec.backend = backend_of(device, world.engine()->operations());
  if (device.is_cpu()) return nullptr;
  auto stream = default_stream(device, what);
  submission.device = {.stream = stream, .ready = record(current_stream(device))};
  return stream;
}

// Once it is done: what the current stream does from here on comes after it. The host does not wait
// for a GPU.
void queue_behind(const Operation& operation, const std::shared_ptr<TorchStream>& stream) {
  if (operation.finished()) wait(current_stream(stream->torch().device()), *operation.finished());
}

// `ours`: by our own backends, whatever the user chose for the CPU.
HandleId start(std::shared_ptr<PendingCollective> pending, const std::string& what,
               RequestSpec spec, Submission submission, bool ours = false) {
  if (!pending->inputs.empty() && !ours) {
    pending->stream =
        place(*pending->world, device_of(pending->inputs, what), what, spec, submission);
  }
  const auto reach = [&](const at::Tensor& tensor) {
    if (pending->stream) keep_for(pending->stream->torch(), tensor);
    return data_of(tensor);
  };
  if (!spec.in_arena) {
    for (const at::Tensor& input : pending->inputs) submission.inputs.push_back(reach(input));
    for (const at::Tensor& output : pending->outputs) {
      if (output.defined()) submission.outputs.push_back(reach(output));
    }
  }
  submission.spec = std::make_shared<const RequestSpec>(std::move(spec));
  pending->handle = unwrap(pending->world->engine()->submit(std::move(submission)));
  return handles().insert(std::move(pending));
}

void check_same(const at::Tensor& input, const at::Tensor& output, const std::string& what) {
  check_usable(output, what);
  if (output.sizes() != input.sizes() || output.dtype() != input.dtype() ||
      output.device() != input.device()) {
    refuse(what, "the output has another shape, dtype or device than the input");
  }
}

// The engine reads while it writes, and knows nothing of lazy views: what it cannot write where it
// is gets memory of its own, so that the result is as if all inputs had been read before.
void make_private(PendingCollective& pending, std::size_t index, const std::string& what) {
  at::Tensor& output = pending.outputs[index];
  if (!output.is_cpu()) (void)default_stream(output.device(), what);  // or it has no memory to give
  at::Tensor memory = at::empty(output.sizes(), output.options().requires_grad(false));
  pending.targets.emplace_back(index, std::exchange(output, std::move(memory)));
}

// allreduce, broadcast and reduce: as many outputs of the same shape, known at once. `writes`: this
// rank's get a result.
HandleId start_elementwise(RequestSpec spec, std::vector<at::Tensor> inputs,
                           std::vector<at::Tensor> outputs, const std::string& what,
                           bool writes = true) {
  auto pending = std::make_shared<PendingCollective>();
  pending->world = default_world();
  pending->inputs = std::move(inputs);
  pending->outputs = outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor& input = pending->inputs[i];
    input = resolved(input);
    if (is_lazy(outputs[i])) make_private(*pending, i, what);
    spec.tensors.push_back(reduces(spec.kind) ? spec_of(input, what) : moved_spec_of(input, what));
    check_same(input, pending->outputs[i], what);
  }
  if (outputs.empty()) refuse(what, "the list of tensors is empty");
  const std::vector<bool> overlaps = overlapping_outputs(pending->inputs, pending->outputs);
  if (outputs.size() > 1) (void)device_of(pending->inputs, what);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (overlaps[i]) make_private(*pending, i, what);
  }
  const HandleId handle = start(std::move(pending), what, std::move(spec), {});
  for (const at::Tensor& output : outputs) {
    if (writes) mark_written(output);
  }
  return handle;
}

std::int64_t rows_of(const at::Tensor& tensor) {
  return tensor.dim() > 0 ? tensor.size(0) : 0;
}

// How many of `rows` go to each of `size` ranks; the error says why they cannot.
Result<std::vector<std::int64_t>> rows_to_send(
    std::int64_t rows, const std::optional<std::vector<std::int64_t>>& splits, int size) {
  const auto refused = [](std::string why) {
    return Error{.code = ErrorCode::kInvalidArgument, .text = std::move(why)};
  };
  if (!splits) {
    if (rows % size == 0) {
      return std::vector<std::int64_t>(static_cast<std::size_t>(size), rows / size);
    }
    return refused("dimension 0 (" + std::to_string(rows) + ") does not divide evenly among " +
                   std::to_string(size) + " ranks; pass splits");
  }
  const std::int64_t total = std::accumulate(splits->begin(), splits->end(), std::int64_t{0});
  const bool negative = std::any_of(splits->begin(), splits->end(), [](auto n) { return n < 0; });
  if (splits->size() == static_cast<std::size_t>(size) && !negative && total == rows) {
    return *splits;
  }
  return refused("splits must be " + std::to_string(size) +
                 " non-negative row counts that add up to dimension 0 (" + std::to_string(rows) +
                 "), but there are " + std::to_string(splits->size()) + " that add up to " +
                 std::to_string(total));
}

// allgather, gather, alltoall, scatter, reducescatter: the output is made once its rows are known.
// The callback may run on any thread that drives the engine.
HandleId start_resizing(RequestSpec spec, std::vector<at::Tensor> inputs,
                        std::vector<std::int64_t> rows, const std::string& what,
                        std::optional<Digest> digest = {}, bool ours = false) {
  auto pending = std::make_shared<PendingCollective>();
  pending->world = default_world();
  Submission submission;
  submission.digest = digest;
  const bool reduces_them = reduces(spec.kind);
  for (at::Tensor& input : inputs) {
    input = resolved(input);
    if (input.defined() && input.dim() == 0) {
      refuse(what, "a 0-dim tensor has no rows; pass tensor.unsqueeze(0)");
    }
    TensorSpec tensor = reduces_them ? spec_of(input, what) : moved_spec_of(input, what);
    if (!reduces_them) tensor.shape[0] = kAnyRows;
    spec.tensors.push_back(std::move(tensor));
  }
  if (inputs.empty()) refuse(what, "the list of tensors is empty");
  submission.rows = std::move(rows);
  pending->inputs = std::move(inputs);
  pending->outputs.resize(pending->inputs.size());
  submission.allocate = [raw = pending.get()](std::size_t index,
                                              std::int64_t count) -> Result<std::byte*> {
    try {
      // It becomes memory of the stream that writes it.
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
  return start(std::move(pending), what, std::move(spec), std::move(submission), ours);
}

}  // namespace

std::shared_ptr<const Group> members_of(GroupId group, const std::string& what) {
  auto members = default_world()->engine()->group(group);
  if (members != nullptr) return members;
  throw Exception(
      {.code = ErrorCode::kInvalidArgument,
       .text = what + ": there is no process set " + std::to_string(group) + " (any more)"});
}

HandleId allreduce_async(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                         const ReduceOptions& options) {
  return start_elementwise(make_reduce_spec(OpKind::kAllreduce, options), std::move(inputs),
                           std::move(outputs), describe(OpKind::kAllreduce, options.name));
}

namespace {

// What this thread reduced last. In a loop it is the same again, and is neither made nor checked
// anew.
class LastReduction {
 public:
  // What make_reduce_spec() and spec_of() would give again; null where they would not.
  std::shared_ptr<const RequestSpec> find(const at::Tensor& input, const at::Tensor& output,
                                          const ReduceOptions& options, BackendId backend) const {
    const bool again = spec_ && options.name == name_ && options.op == spec_->op &&
                       options.group == spec_->group && options.prescale == spec_->prescale &&
                       options.postscale == spec_->postscale && backend == spec_->backend &&
                       fits(input) && (output.is_same(input) || fits(output));
    return again ? spec_ : nullptr;
  }
  void keep(const at::Tensor& input, const ReduceOptions& options,
            std::shared_ptr<const RequestSpec> spec) {
    name_ = options.name;
    dtype_ = input.scalar_type();
    spec_ = input.is_cpu() ? std::move(spec) : nullptr;
  }

 private:
  bool fits(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.is_cpu() && tensor.layout() == c10::Layout::Strided &&
           tensor.is_contiguous() && tensor.scalar_type() == dtype_ &&
           tensor.sizes() == spec_->tensors.front().shape;
  }

  std::shared_ptr<const RequestSpec> spec_;
  std::string name_;  // the user's; empty: unnamed
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
};

}  // namespace

void allreduce(const at::Tensor& input, const at::Tensor& output, const ReduceOptions& options) {
  if (is_lazy(input) || is_lazy(output)) {
    synchronize(allreduce_async({input}, {output}, options));
    return;
  }
  thread_local LastReduction last;
  const auto world = default_world();
  Engine& engine = *world->engine();
  Submission submission;
  submission.spec = last.find(input, output, options, engine.operations().cpu);
  submission.is_checked = submission.spec != nullptr;
  std::shared_ptr<TorchStream> stream;
  if (!submission.is_checked) {
    const std::string what = describe(OpKind::kAllreduce, options.name);
    RequestSpec spec = make_reduce_spec(OpKind::kAllreduce, options);
    spec.tensors.push_back(spec_of(input, what));
    if (!output.is_same(input)) check_same(input, output, what);
    stream = place(*world, input.device(), what, spec, submission);
    submission.spec = std::make_shared<const RequestSpec>(std::move(spec));
  }
  submission.inputs.push_back(data_of(input));
  submission.outputs.push_back(data_of(output));
  const auto made = submission.is_checked ? nullptr : submission.spec;
  const Handle handle = unwrap(engine.submit(std::move(submission)));
  if (made) last.keep(input, options, made);
  const Status status = engine.wait(handle);
  if (!status && stream) {  // nothing waits for what may be queued there
    keep_for(stream->torch(), input);
    keep_for(stream->torch(), output);
  }
  check(status);
  queue_behind(*handle, stream);
  mark_written(output);
}

HandleId broadcast_async(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, Rank root,
                         const std::string& name, GroupId group) {
  const std::string what = describe(OpKind::kBroadcast, name);
  check_rank("root_rank", root, what);
  return start_elementwise(make_rooted_spec(OpKind::kBroadcast, name, root, group),
                           std::move(inputs), std::move(outputs), what);
}

void broadcast_tensors(const std::vector<at::Tensor>& tensors, Rank root, const std::string& name,
                       GroupId group) {
  constexpr std::size_t kGroupTensorsMax = 2048;  // of one request
  static_assert(kGroupTensorsMax <= kTensorsPerRequestMax);
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // of tensors that are not contiguous
  std::vector<std::vector<at::Tensor>> groups;            // each on one device
  for (const at::Tensor& tensor : tensors) {
    at::Tensor flat = tensor.detach().contiguous();
    if (flat.const_data_ptr() != tensor.const_data_ptr()) copies.emplace_back(tensor, flat);
    const auto open = std::find_if(groups.begin(), groups.end(), [&](const auto& some) {
      return some.size() < kGroupTensorsMax && some.front().device() == tensor.device();
    });
    (open == groups.end() ? groups.emplace_back() : *open).push_back(std::move(flat));
  }
  // One after the other: tensors of two groups may share memory.
  for (std::size_t i = 0; i < groups.size(); ++i) {
    synchronize(broadcast_async(groups[i], groups[i], root, name + "." + std::to_string(i), group));
  }
  for (const auto& [tensor, flat] : copies) assign(tensor, flat);
}

HandleId allgather_async(std::vector<at::Tensor> inputs, const std::string& name, GroupId group) {
  std::vector<std::int64_t> rows;
  for (const at::Tensor& input : inputs) rows.push_back(rows_of(input));
  return start_resizing(make_spec(OpKind::kAllgather, name, group), std::move(inputs),
                        std::move(rows), describe(OpKind::kAllgather, name));
}

std::vector<at::Tensor> allgather_bytes(const at::Tensor& mine, const std::string& name,
                                        GroupId group) {
  const std::string what = describe(OpKind::kAllgather, name);
  const bool leaves_host = default_world()->place().cross_size > 1;
  const auto bytes_of = [](const at::Tensor& bytes) {
    return std::as_bytes(std::span(bytes.const_data_ptr<std::uint8_t>(), bytes.nbytes()));
  };
  std::optional<Digest> digest;
  if (leaves_host) digest = sha256(bytes_of(mine));
  const HandleId handle = start_resizing(make_spec(OpKind::kAllgather, name, group), {mine},
                                         {mine.size(0)}, what, digest, /*ours=*/true);
  const auto pending = handles().find(handle);
  const at::Tensor all = synchronize(handle)->tensors.at(0);
  std::vector<at::Tensor> pieces = all.split_with_sizes(pending->handle->rows());
  for (std::size_t rank = 0; rank < pieces.size() && leaves_host; ++rank) {
    if (pending->handle->digests()[rank] == sha256(bytes_of(pieces[rank]))) continue;
    throw Exception({.code = ErrorCode::kMalformed,
                     .text = what + ": the bytes of rank " + std::to_string(rank) +
                             " were changed on their way",
                     .rank = static_cast<Rank>(rank)});
  }
  return pieces;
}

HandleId alltoall_async(const at::Tensor& input,
                        const std::optional<std::vector<std::int64_t>>& splits,
                        const std::string& name, GroupId group) {
  const std::string what = describe(OpKind::kAlltoall, name);
  auto send = rows_to_send(rows_of(input), splits, members_of(group, what)->size());
  if (!send) refuse(what, send.error().text);
  return start_resizing(make_spec(OpKind::kAlltoall, name, group), {input}, std::move(send).value(),
                        what);
}

HandleId gather_async(const at::Tensor& input, Rank root, const std::string& name, GroupId group) {
  const std::string what = describe(OpKind::kGather, name);
  const auto members = members_of(group, what);
  std::vector<std::int64_t> send(static_cast<std::size_t>(members->size()), 0);
  // That a root is no member is for all to be told.
  if (members->contains(root)) {
    send[static_cast<std::size_t>(members->index_of(root))] = rows_of(input);
  }
  return start_resizing(make_rooted_spec(OpKind::kGather, name, root, group), {input},
                        std::move(send), what);
}

HandleId scatter_async(const at::Tensor& input, Rank root,
                       const std::optional<std::vector<std::int64_t>>& splits,
                       const std::string& name, GroupId group) {
  const std::string what = describe(OpKind::kScatter, name);
  const int size = members_of(group, what)->size();
  RequestSpec spec = make_rooted_spec(OpKind::kScatter, name, root, group);
  if (default_world()->place().rank != root) {
    std::vector<std::int64_t> nothing(static_cast<std::size_t>(size), 0);
    return start_resizing(std::move(spec), {input}, std::move(nothing), what);
  }
  const auto send = rows_to_send(rows_of(input), splits, size);
  // Without rows it fails on all ranks: the others do not wait for what cannot be.
  const HandleId handle = start_resizing(std::move(spec), {input},
                                         send ? send.value() : std::vector<std::int64_t>{}, what);
  if (!send) {
    Error why = send.error();
    why.text = what + ": " + why.text;
    why.rank = root;
    handles().find(handle)->misfit = std::move(why);
  }
  return handle;
}

HandleId reducescatter_async(std::vector<at::Tensor> inputs, const ReduceOptions& options) {
  return start_resizing(make_reduce_spec(OpKind::kReducescatter, options), std::move(inputs), {},
                        describe(OpKind::kReducescatter, options.name));
}

HandleId reduce_async(const at::Tensor& input, const at::Tensor& output, Rank root,
                      const ReduceOptions& options) {
  RequestSpec spec = make_reduce_spec(OpKind::kReduce, options);
  spec.root = root;
  const bool is_root = default_world()->place().rank == root;
  const at::Tensor own = resolved(input);
  return start_elementwise(std::move(spec), {own}, {is_root ? output : own},
                           describe(OpKind::kReduce, options.name), /*writes=*/is_root);
}

namespace {

HandleId start_message(bool sends, const at::Tensor& tensor, Rank other, const std::string& name) {
  const std::string what = (sends ? "send" : "recv") + (name.empty() ? "" : " '" + name + "'");
  const Rank self = default_world()->place().rank;
  check_rank(sends ? "dst" : "src", other, what);
  if (other == self) refuse(what, "rank " + std::to_string(other) + " is this rank itself");
  const Pair pair = {.from = sends ? self : other, .to = sends ? other : self};
  const at::Tensor own = sends ? resolved(tensor) : tensor;
  return start_elementwise(make_rooted_spec(OpKind::kSend, name, pair.from, pair_id(pair)), {own},
                           {own}, what, /*writes=*/!sends);
}

}  // namespace

HandleId send_async(const at::Tensor& input, Rank to, const std::string& name) {
  return start_message(/*sends=*/true, input, to, name);
}

HandleId recv_async(const at::Tensor& output, Rank from, const std::string& name) {
  return start_message(/*sends=*/false, output, from, name);
}

HandleId barrier_async(const std::string& name, GroupId group) {
  auto pending = std::make_shared<PendingCollective>();
  pending->world = default_world();
  return start(std::move(pending), describe(OpKind::kBarrier, name),
               make_spec(OpKind::kBarrier, name, group), {});
}

GroupId add_group(std::vector<Rank> ranks) {
  return unwrap(default_world()->engine()->add_group(std::move(ranks)))->id;
}

void remove_group(GroupId group) {
  check(default_world()->engine()->remove_group(group));
}

Rank join() {
  return unwrap(default_world()->engine()->join());
}

bool poll(HandleId id) {
  refuse_in_forked_child();
  const auto pending = handles().find(id);
  if (pending == nullptr) {
    throw Exception(
        {.code = ErrorCode::kInvalidArgument,
         .text = "poll: there is no unfinished operation with handle " + std::to_string(id)});
  }
  if (!pending->world->engine()->poll(pending->handle)) return false;
  const auto& finished = pending->handle->finished();
  return finished == nullptr || unwrap(finished->passed());
}

std::optional<CollectiveResult> synchronize(HandleId id) {
  refuse_in_forked_child();
  const auto pending = handles().take(id);
  if (pending == nullptr) return std::nullopt;
  const Status status = pending->world->engine()->wait(pending->handle);
  if (pending->misfit && !status && status.error().code == pending->misfit->code &&
      status.error().rank == pending->misfit->rank) {
    throw Exception(*pending->misfit);
  }
  check(status);
  queue_behind(*pending->handle, pending->stream);
  if (pending->stream) {
    // Outputs that were allocated meanwhile are memory of the World's stream.
    const c10::Stream current = current_stream(pending->stream->torch().device());
    for (const at::Tensor& output : pending->outputs) keep_for(current, output);
  }
  for (const auto& [index, target] : pending->targets) {
    assign(target, pending->outputs[index]);
    pending->outputs[index] = target;
  }
  return CollectiveResult{.tensors = std::move(pending->outputs),
                          .received_rows = pending->handle->rows()};
}

void abandon(HandleId id) {
  if (!in_forked_child()) handles().abandon(id);
}

// -------------------------------------------------------------------------------------------
// Tensors in the arena

namespace {

// Where an arena tensor lies, which means something in the World that made it alone.
struct ArenaPlace {
  std::weak_ptr<World> world;
  ArenaRef ref;
};

// Arena tensors of the process, by their memory: allreduce must know the segment.
class ArenaTensors {
 public:
  void insert(const std::byte* data, ArenaPlace place) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    places_[data] = std::move(place);
  }
  void erase(const std::byte* data) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    places_.erase(data);
  }
  std::optional<ArenaPlace> find(const std::byte* data) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = places_.find(data);
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  Mutex mutex_;
  std::unordered_map<const std::byte*, ArenaPlace> places_ GUARDED_BY(mutex_);
};

ArenaTensors& arena_tensors() {
  static auto* const tensors = new ArenaTensors;  // tensors may outlive static destruction
  return *tensors;
}

}  // namespace

at::Tensor arena_empty(const std::vector<std::int64_t>& shape, c10::ScalarType dtype) {
  const auto elements = static_cast<std::size_t>(element_count(shape));
  const std::size_t bytes = elements * dtype_bytes(dtype_of(dtype, "arena_empty"));
  const auto world = default_world();
  auto buffer = unwrap(world->engine()->allocate_arena(bytes));
  arena_tensors().insert(buffer.data, {.world = world, .ref = buffer.ref});
  auto forget = [lease = buffer.lease, data = buffer.data](void*) mutable {
    arena_tensors().erase(data);
    lease.reset();
  };
  return at::from_blob(buffer.data, shape, std::move(forget), at::TensorOptions().dtype(dtype));
}

HandleId arena_allreduce_async(const at::Tensor& tensor, const ReduceOptions& options) {
  const std::string what = describe(OpKind::kAllreduce, options.name);
  RequestSpec spec = make_reduce_spec(OpKind::kAllreduce, options);
  spec.in_arena = true;
  spec.arena_bytes = tensor.nbytes();
  spec.tensors.push_back(spec_of(tensor, what));
  const auto place = arena_tensors().find(data_of(tensor));
  if (!place) refuse(what, "the tensor was not made by arena_empty");
  auto pending = std::make_shared<PendingCollective>();
  pending->world = default_world();
  if (place->world.lock() != pending->world) {
    refuse(what, "the tensor was made by arena_empty before shutdown(); make it anew after init()");
  }
  pending->inputs = pending->outputs = {tensor};
  Submission submission;
  submission.arena = place->ref;
  const HandleId handle = start(std::move(pending), what, std::move(spec), std::move(submission));
  mark_written(tensor);
  return handle;
}

}  // namespace ciranda
