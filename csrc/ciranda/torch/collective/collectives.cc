#include "ciranda/torch/collective/collectives.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "ciranda/torch/tensor/transport_dtype.h"
#include "core/base/secret.h"
#include "core/wire/pair.h"

namespace ciranda {
namespace {

void check_rank(const Communicator& among, const char* argument, Rank rank,
                const std::string& what) {
  const int size = among.engine->size();
  if (rank >= 0 && rank < size) return;
  refuse(what, argument + (" " + std::to_string(rank)) + " is not a rank; ranks are 0 to " +
                   std::to_string(size - 1));
}

std::int64_t rows_of(const at::Tensor& tensor) {
  return tensor.dim() > 0 ? tensor.size(0) : 0;
}

// Returns how many of `rows` go to each of `size` ranks, or an error with the reason why they
// cannot.
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

}  // namespace

RequestSpec make_reduce_spec(const Communicator& among, OpKind kind, const ReduceOptions& options) {
  RequestSpec spec = make_spec(among, kind, options.name);
  spec.op = options.op;
  spec.prescale = options.prescale;
  spec.postscale = options.postscale;
  return spec;
}

namespace {

// Starts as many collectives as the list needs and returns the last, which holds the earlier ones.
// The names of the earlier ones get a number. `start_one` starts one for members `begin` to `end`.
template <typename StartOne>
Started start_list(std::size_t members, const std::string& name, const StartOne& start_one) {
  std::vector<Started> before;
  try {
    std::size_t begin = 0;
    for (; members - begin > kTensorsPerRequestMax; begin += kTensorsPerRequestMax) {
      const std::string part = name.empty() ? "" : name + "." + std::to_string(before.size());
      before.push_back(start_one(begin, begin + kTensorsPerRequestMax, part));
    }
    Started last = start_one(begin, members, name);
    last->before = std::move(before);
    return last;
  } catch (...) {
    // Leaks the started collectives: no caller waits for them, and the engine still uses their
    // memory.
    if (!before.empty()) (void)new std::vector<Started>(std::move(before));
    throw;
  }
}

// Moves `list` itself out if the part is all of it.
std::vector<at::Tensor> part_of(std::vector<at::Tensor>& list, std::size_t begin, std::size_t end) {
  if (end - begin == list.size()) return std::move(list);
  return {list.begin() + static_cast<std::ptrdiff_t>(begin),
          list.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace

Started allreduce_async(const Communicator& among, std::vector<at::Tensor> inputs,
                        std::vector<at::Tensor> outputs, const ReduceOptions& options) {
  return start_list(outputs.size(), options.name,
                    [&](std::size_t begin, std::size_t end, const std::string& name) {
                      ReduceOptions part = options;
                      part.name = name;
                      return start_elementwise(
                          among, make_reduce_spec(among, OpKind::kAllreduce, part),
                          part_of(inputs, begin, end), part_of(outputs, begin, end),
                          describe(OpKind::kAllreduce, name));
                    });
}

namespace {

// The latest reduction of a thread. A loop repeats it, and then its spec is neither made nor
// checked anew.
class LastReduction {
 public:
  // Returns the spec if make_reduce_spec() and spec_of() would make the same again; else null.
  std::shared_ptr<const RequestSpec> find(const at::Tensor& input, const at::Tensor& output,
                                          const ReduceOptions& options, GroupId group,
                                          BackendId backend) const {
    const bool again = spec_ && options.name == name_ && options.op == spec_->op &&
                       group == spec_->group && options.prescale == spec_->prescale &&
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
    return tensor.defined() && tensor.is_cpu() && has_memory(tensor) &&
           tensor.layout() == c10::Layout::Strided && tensor.is_contiguous() &&
           tensor.scalar_type() == dtype_ && tensor.sizes() == spec_->tensors.front().shape;
  }

  std::shared_ptr<const RequestSpec> spec_;
  std::string name_;  // the user's; empty: unnamed
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
};

}  // namespace

void allreduce(const Communicator& among, const at::Tensor& input, const at::Tensor& output,
               const ReduceOptions& options, const Engine::Look& look) {
  const bool averages_int64 = options.op == ReduceOp::kAverage && input.defined() &&
                              input.scalar_type() == c10::ScalarType::Long;
  if (is_lazy(input) || is_lazy(output) || needs_transport_dtype(input, options.op) ||
      averages_int64 || options.op == ReduceOp::kAdasum) {
    allreduce_async(among, {input}, {output}, options)->wait(look);
    return;
  }
  thread_local LastReduction last;
  Engine& engine = *among.engine;
  Submission submission;
  submission.spec = last.find(input, output, options, among.group->id, engine.backend_choice().cpu);
  submission.is_checked = submission.spec != nullptr;
  std::shared_ptr<TorchStream> stream;
  if (!submission.is_checked) {
    const std::string what = describe(OpKind::kAllreduce, options.name);
    RequestSpec spec = make_reduce_spec(among, OpKind::kAllreduce, options);
    spec.tensors.push_back(spec_of(input, what));
    if (!output.is_same(input)) check_same(input, output, what);
    stream = place(among, input.device(), what, spec, submission);
    submission.spec = std::make_shared<const RequestSpec>(std::move(spec));
  }
  submission.inputs.push_back(data_of(input));
  submission.outputs.push_back(data_of(output));
  const auto made = submission.is_checked ? nullptr : submission.spec;
  const Handle handle = unwrap(engine.submit(std::move(submission)));
  if (made) last.keep(input, options, made);
  const Status status = engine.wait(handle, look);
  if (!status && stream) {  // no caller waits for work that may be queued there
    keep_for(stream->torch(), input);
    keep_for(stream->torch(), output);
  }
  check(status);
  queue_behind(*handle, stream);
  mark_written(output);
}

Started broadcast_async(const Communicator& among, std::vector<at::Tensor> inputs,
                        std::vector<at::Tensor> outputs, Rank root, const std::string& name) {
  const std::string what = describe(OpKind::kBroadcast, name);
  check_rank(among, "root_rank", root, what);
  return start_elementwise(among, make_rooted_spec(among, OpKind::kBroadcast, name, root),
                           std::move(inputs), std::move(outputs), what);
}

void broadcast_tensors(const Communicator& among, const std::vector<at::Tensor>& tensors, Rank root,
                       const std::string& name) {
  constexpr std::size_t kGroupTensorsMax = 2048;  // tensors of one request
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
  // Broadcasts one list after the other, because tensors of two lists may share memory.
  for (std::size_t i = 0; i < groups.size(); ++i) {
    broadcast_async(among, groups[i], groups[i], root, name + "." + std::to_string(i))->wait();
  }
  for (const auto& [tensor, flat] : copies) assign(tensor, flat);
}

Started allgather_async(const Communicator& among, std::vector<at::Tensor> inputs,
                        const std::string& name) {
  return start_list(
      inputs.size(), name, [&](std::size_t begin, std::size_t end, const std::string& part) {
        std::vector<at::Tensor> members = part_of(inputs, begin, end);
        std::vector<std::int64_t> rows;
        for (const at::Tensor& member : members) rows.push_back(rows_of(member));
        return start_resizing(among, make_spec(among, OpKind::kAllgather, part), std::move(members),
                              std::move(rows), describe(OpKind::kAllgather, part));
      });
}

std::vector<at::Tensor> allgather_bytes(const Communicator& among, const at::Tensor& mine,
                                        const std::string& name) {
  const std::string what = describe(OpKind::kAllgather, name);
  const bool leaves_host = !among.engine->one_host();
  const auto bytes_of = [](const at::Tensor& bytes) {
    return std::as_bytes(std::span(bytes.const_data_ptr<std::uint8_t>(), bytes.nbytes()));
  };
  std::optional<Digest> digest;
  if (leaves_host) digest = sha256(bytes_of(mine));
  const Started gather = start_resizing(among, make_spec(among, OpKind::kAllgather, name), {mine},
                                        {mine.size(0)}, what, digest, /*ours=*/true);
  const at::Tensor all = gather->wait().tensors.at(0);
  std::vector<at::Tensor> pieces = all.split_with_sizes(gather->handle->rows());
  for (std::size_t rank = 0; rank < pieces.size() && leaves_host; ++rank) {
    if (gather->handle->digests()[rank] == sha256(bytes_of(pieces[rank]))) continue;
    throw Exception({.code = ErrorCode::kMalformed,
                     .text = what + ": the bytes of rank " + std::to_string(rank) +
                             " were changed on their way",
                     .rank = static_cast<Rank>(rank)});
  }
  return pieces;
}

Started alltoall_async(const Communicator& among, const at::Tensor& input,
                       const std::optional<std::vector<std::int64_t>>& splits,
                       const std::string& name) {
  const std::string what = describe(OpKind::kAlltoall, name);
  auto send = rows_to_send(rows_of(input), splits, among.group->size());
  if (!send) refuse(what, send.error().text);
  return start_resizing(among, make_spec(among, OpKind::kAlltoall, name), {input},
                        std::move(send).value(), what);
}

Started gather_async(const Communicator& among, const at::Tensor& input, Rank root,
                     const std::string& name) {
  const std::string what = describe(OpKind::kGather, name);
  std::vector<std::int64_t> send(static_cast<std::size_t>(among.group->size()), 0);
  // A root that is no member is an error of the negotiation, which all ranks get.
  if (among.group->contains(root)) {
    send[static_cast<std::size_t>(among.group->index_of(root))] = rows_of(input);
  }
  return start_resizing(among, make_rooted_spec(among, OpKind::kGather, name, root), {input},
                        std::move(send), what);
}

Started scatter_async(const Communicator& among, const at::Tensor& input, Rank root,
                      const std::optional<std::vector<std::int64_t>>& splits,
                      const std::string& name) {
  const std::string what = describe(OpKind::kScatter, name);
  const int size = among.group->size();
  RequestSpec spec = make_rooted_spec(among, OpKind::kScatter, name, root);
  if (among.engine->rank() != root) {
    std::vector<std::int64_t> nothing(static_cast<std::size_t>(size), 0);
    return start_resizing(among, std::move(spec), {input}, std::move(nothing), what);
  }
  const auto send = rows_to_send(rows_of(input), splits, size);
  // A submission without rows fails on all ranks, so that no rank waits for a scatter that cannot
  // run.
  const Started scatter = start_resizing(among, std::move(spec), {input},
                                         send ? send.value() : std::vector<std::int64_t>{}, what);
  if (!send) {
    Error why = send.error();
    why.text = what + ": " + why.text;
    why.rank = root;
    scatter->misfit = std::move(why);
  }
  return scatter;
}

Started reducescatter_async(const Communicator& among, std::vector<at::Tensor> inputs,
                            const ReduceOptions& options) {
  return start_list(inputs.size(), options.name,
                    [&](std::size_t begin, std::size_t end, const std::string& name) {
                      ReduceOptions part = options;
                      part.name = name;
                      return start_resizing(
                          among, make_reduce_spec(among, OpKind::kReducescatter, part),
                          part_of(inputs, begin, end), {}, describe(OpKind::kReducescatter, name));
                    });
}

Started reduce_async(const Communicator& among, const at::Tensor& input, const at::Tensor& output,
                     Rank root, const ReduceOptions& options) {
  RequestSpec spec = make_reduce_spec(among, OpKind::kReduce, options);
  spec.root = root;
  const bool is_root = among.engine->rank() == root;
  const at::Tensor own = resolved(input);
  return start_elementwise(among, std::move(spec), {own}, {is_root ? output : own},
                           describe(OpKind::kReduce, options.name), /*writes=*/is_root);
}

namespace {

Started start_message(const Communicator& among, bool sends, const at::Tensor& tensor, Rank other,
                      const std::string& name) {
  const std::string what = (sends ? "send" : "recv") + (name.empty() ? "" : " '" + name + "'");
  const Rank self = among.engine->rank();
  check_rank(among, sends ? "dst" : "src", other, what);
  if (other == self) refuse(what, "rank " + std::to_string(other) + " is this rank itself");
  const Pair pair = {.from = sends ? self : other, .to = sends ? other : self};
  const at::Tensor own = sends ? resolved(tensor) : tensor;
  RequestSpec spec = make_rooted_spec(among, OpKind::kSend, name, pair.from);
  spec.group = pair_id(pair);
  return start_elementwise(among, std::move(spec), {own}, {own}, what, /*writes=*/!sends);
}

}  // namespace

Started send_async(const Communicator& among, const at::Tensor& input, Rank to,
                   const std::string& name) {
  return start_message(among, /*sends=*/true, input, to, name);
}

Started recv_async(const Communicator& among, const at::Tensor& output, Rank from,
                   const std::string& name) {
  return start_message(among, /*sends=*/false, output, from, name);
}

Started barrier_async(const Communicator& among, const std::string& name) {
  return start(among, std::make_shared<TensorCollective>(), describe(OpKind::kBarrier, name),
               make_spec(among, OpKind::kBarrier, name), {});
}

}  // namespace ciranda
