#include <ciranda/torch.h>
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "ciranda/torch/collective/arena_tensors.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/process/handles.h"
#include "ciranda/torch/tensor/error.h"

namespace ciranda {

namespace py = pybind11;
using Released = py::call_guard<py::gil_scoped_release>;

namespace {

ReduceOptions reduce_options(const std::string& name, int op, double prescale, double postscale) {
  if (op < 0 || op >= kReduceOpCount) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "op is not one of Average, Sum, Min, Max, Product, Adasum"});
  }
  return {
      .name = name, .op = static_cast<ReduceOp>(op), .prescale = prescale, .postscale = postscale};
}

}  // namespace

void bind_collectives(py::module_& module) {
  module.attr("SUM") = static_cast<int>(ReduceOp::kSum);
  module.attr("AVERAGE") = static_cast<int>(ReduceOp::kAverage);
  module.attr("MIN") = static_cast<int>(ReduceOp::kMin);
  module.attr("MAX") = static_cast<int>(ReduceOp::kMax);
  module.attr("PRODUCT") = static_cast<int>(ReduceOp::kProduct);
  module.attr("ADASUM") = static_cast<int>(ReduceOp::kAdasum);

  // Each *_async function returns a handle's number. `process_set`: the ranks that take part.
  module.def(
      "allreduce_async",
      [](std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, const std::string& name,
         int op, double prescale, double postscale, GroupId group) {
        return hold(allreduce_async(*default_communicator(group, "allreduce"), std::move(inputs),
                                    std::move(outputs),
                                    reduce_options(name, op, prescale, postscale)));
      },
      py::arg("inputs"), py::arg("outputs"), py::arg("name"), py::arg("op"), py::arg("prescale"),
      py::arg("postscale"), py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "allreduce",
      [](const at::Tensor& input, const at::Tensor& output, const std::string& name, int op,
         double prescale, double postscale, GroupId group) {
        return allreduce(*default_communicator(group, "allreduce"), input, output,
                         reduce_options(name, op, prescale, postscale));
      },
      py::arg("input"), py::arg("output"), py::arg("name"), py::arg("op"), py::arg("prescale"),
      py::arg("postscale"), py::arg("process_set") = kWorldGroup, Released(),
      "Reduces one tensor without making a handle. Blocks until the result is in output.");
  module.def(
      "broadcast_async",
      [](std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, Rank root,
         const std::string& name, GroupId group) {
        return hold(broadcast_async(*default_communicator(group, "broadcast"), std::move(inputs),
                                    std::move(outputs), root, name));
      },
      py::arg("inputs"), py::arg("outputs"), py::arg("root"), py::arg("name"),
      py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "broadcast_tensors",
      [](const std::vector<at::Tensor>& tensors, Rank root, const std::string& name,
         GroupId group) {
        return broadcast_tensors(*default_communicator(group, "broadcast"), tensors, root, name);
      },
      py::arg("tensors"), py::arg("root"), py::arg("name"), py::arg("process_set") = kWorldGroup,
      Released(),
      "Broadcasts tensors of any layout and dtype in place. Blocks until they are received.");
  module.def(
      "allgather_async",
      [](std::vector<at::Tensor> inputs, const std::string& name, GroupId group) {
        return hold(
            allgather_async(*default_communicator(group, "allgather"), std::move(inputs), name));
      },
      py::arg("inputs"), py::arg("name"), py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "allgather_bytes",
      [](const at::Tensor& mine, const std::string& name, GroupId group) {
        return allgather_bytes(*default_communicator(group, "allgather"), mine, name);
      },
      py::arg("mine"), py::arg("name"), py::arg("process_set") = kWorldGroup, Released(),
      "Returns the bytes of every rank, in the order of the ranks. Blocks until all are received.");
  module.def(
      "alltoall_async",
      [](const at::Tensor& input, const std::optional<std::vector<std::int64_t>>& splits,
         const std::string& name, GroupId group) {
        return hold(alltoall_async(*default_communicator(group, "alltoall"), input, splits, name));
      },
      py::arg("input"), py::arg("splits"), py::arg("name"), py::arg("process_set") = kWorldGroup,
      Released());
  module.def(
      "gather_async",
      [](const at::Tensor& input, Rank root, const std::string& name, GroupId group) {
        return hold(gather_async(*default_communicator(group, "gather"), input, root, name));
      },
      py::arg("input"), py::arg("root"), py::arg("name"), py::arg("process_set") = kWorldGroup,
      Released());
  module.def(
      "scatter_async",
      [](const at::Tensor& input, Rank root, const std::optional<std::vector<std::int64_t>>& splits,
         const std::string& name, GroupId group) {
        return hold(
            scatter_async(*default_communicator(group, "scatter"), input, root, splits, name));
      },
      py::arg("input"), py::arg("root"), py::arg("splits"), py::arg("name"),
      py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "reducescatter_async",
      [](std::vector<at::Tensor> inputs, const std::string& name, int op, double prescale,
         double postscale, GroupId group) {
        return hold(reducescatter_async(*default_communicator(group, "reducescatter"),
                                        std::move(inputs),
                                        reduce_options(name, op, prescale, postscale)));
      },
      py::arg("inputs"), py::arg("name"), py::arg("op"), py::arg("prescale"), py::arg("postscale"),
      py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "reduce_async",
      [](const at::Tensor& input, const at::Tensor& output, Rank root, const std::string& name,
         int op, double prescale, double postscale, GroupId group) {
        return hold(reduce_async(*default_communicator(group, "reduce"), input, output, root,
                                 reduce_options(name, op, prescale, postscale)));
      },
      py::arg("input"), py::arg("output"), py::arg("root"), py::arg("name"), py::arg("op"),
      py::arg("prescale"), py::arg("postscale"), py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "send_async",
      [](const at::Tensor& tensor, Rank dst, const std::string& name) {
        return hold(send_async(*default_communicator(), tensor, dst, name));
      },
      py::arg("tensor"), py::arg("dst"), py::arg("name"), Released());
  module.def(
      "recv_async",
      [](const at::Tensor& tensor, Rank src, const std::string& name) {
        return hold(recv_async(*default_communicator(), tensor, src, name));
      },
      py::arg("tensor"), py::arg("src"), py::arg("name"), Released());
  module.def(
      "barrier_async",
      [](const std::string& name, GroupId group) {
        return hold(barrier_async(*default_communicator(group, "barrier"), name));
      },
      py::arg("name"), py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "add_process_set", &add_group, py::arg("ranks"), Released(),
      "Returns the number of a new process set. All ranks must call it; blocks until they have.");
  module.def("remove_process_set", &remove_group, py::arg("process_set"), Released(),
             "Removes a process set. All ranks must call it; blocks until they have.");
  module.def("join", &join, Released(),
             "Returns the rank that joined last. All ranks must call it; blocks until they have.");
  module.def("poll", &poll, py::arg("handle"), Released());
  module.def(
      "synchronize",
      [](HandleId handle, const std::optional<std::function<void()>>& look)
          -> std::optional<std::pair<std::vector<at::Tensor>, std::vector<std::int64_t>>> {
        auto result = synchronize(handle, look.value_or(nullptr));
        if (!result) return std::nullopt;
        return std::pair(std::move(result->tensors), std::move(result->received_rows));
      },
      py::arg("handle"), py::arg("look") = py::none(), Released(),
      "Blocks until the operation is done and returns (outputs, received rows); None if the handle "
      "was synchronized before. Calls `look` about a hundred times a second meanwhile.");
  module.def(
      "waits_crosswise",
      [](const std::string& scope) {
        return default_communicator()->engine->crossing(scope).has_value();
      },
      py::arg("scope"), Released(),
      "True if this rank and another rank wait for each other, in two operations whose names begin "
      "with `scope`.");
  module.def(
      "arena_empty",
      [](const std::vector<std::int64_t>& shape, const at::Tensor& like) {
        return arena_empty(default_communicator()->engine, shape, like.scalar_type());
      },
      py::arg("shape"), py::arg("like"), Released());
  module.def(
      "arena_allreduce_async",
      [](const at::Tensor& tensor, const std::string& name, int op) {
        return hold(arena_allreduce_async(*default_communicator(), tensor,
                                          reduce_options(name, op, 1.0, 1.0)));
      },
      py::arg("tensor"), py::arg("name"), py::arg("op"), Released());
}

}  // namespace ciranda
