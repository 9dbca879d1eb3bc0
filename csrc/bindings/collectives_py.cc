#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "torch/collectives.h"
#include "torch/error.h"

namespace ciranda {

namespace py = pybind11;
using Released = py::call_guard<py::gil_scoped_release>;

namespace {

ReduceOptions reduce_options(const std::string& name, int op, double prescale, double postscale,
                             GroupId group) {
  if (op < 0 || op >= kReduceOpCount) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "op is none of Average, Sum, Min, Max, Product"});
  }
  return {.name = name,
          .op = static_cast<ReduceOp>(op),
          .prescale = prescale,
          .postscale = postscale,
          .group = group};
}

}  // namespace

void bind_collectives(py::module_& module) {
  module.attr("SUM") = static_cast<int>(ReduceOp::kSum);
  module.attr("AVERAGE") = static_cast<int>(ReduceOp::kAverage);
  module.attr("MIN") = static_cast<int>(ReduceOp::kMin);
  module.attr("MAX") = static_cast<int>(ReduceOp::kMax);
  module.attr("PRODUCT") = static_cast<int>(ReduceOp::kProduct);

  module.def(
      "allreduce_async",
      [](std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, const std::string& name,
         int op, double prescale, double postscale, GroupId group) {
        return allreduce_async(std::move(inputs), std::move(outputs),
                               reduce_options(name, op, prescale, postscale, group));
      },
      py::arg("inputs"), py::arg("outputs"), py::arg("name"), py::arg("op"), py::arg("prescale"),
      py::arg("postscale"), py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "allreduce",
      [](const at::Tensor& input, const at::Tensor& output, const std::string& name, int op,
         double prescale, double postscale, GroupId group) {
        allreduce(input, output, reduce_options(name, op, prescale, postscale, group));
      },
      py::arg("input"), py::arg("output"), py::arg("name"), py::arg("op"), py::arg("prescale"),
      py::arg("postscale"), py::arg("process_set") = kWorldGroup, Released(),
      "Blocking, for one tensor: no handle is made.");
  module.def("broadcast_async", &broadcast_async, py::arg("inputs"), py::arg("outputs"),
             py::arg("root"), py::arg("name"), py::arg("process_set") = kWorldGroup, Released());
  module.def("broadcast_tensors", &broadcast_tensors, py::arg("tensors"), py::arg("root"),
             py::arg("name"), py::arg("process_set") = kWorldGroup, Released(),
             "Blocking, in place; of any layout and dtype.");
  module.def("allgather_async", &allgather_async, py::arg("inputs"), py::arg("name"),
             py::arg("process_set") = kWorldGroup, Released());
  module.def("allgather_bytes", &allgather_bytes, py::arg("mine"), py::arg("name"),
             py::arg("process_set") = kWorldGroup, Released(),
             "Every rank's bytes, by rank, as they were sent. Blocking.");
  module.def("alltoall_async", &alltoall_async, py::arg("input"), py::arg("splits"),
             py::arg("name"), py::arg("process_set") = kWorldGroup, Released());
  module.def("gather_async", &gather_async, py::arg("input"), py::arg("root"), py::arg("name"),
             py::arg("process_set") = kWorldGroup, Released());
  module.def("scatter_async", &scatter_async, py::arg("input"), py::arg("root"), py::arg("splits"),
             py::arg("name"), py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "reducescatter_async",
      [](std::vector<at::Tensor> inputs, const std::string& name, int op, double prescale,
         double postscale, GroupId group) {
        return reducescatter_async(std::move(inputs),
                                   reduce_options(name, op, prescale, postscale, group));
      },
      py::arg("inputs"), py::arg("name"), py::arg("op"), py::arg("prescale"), py::arg("postscale"),
      py::arg("process_set") = kWorldGroup, Released());
  module.def(
      "reduce_async",
      [](const at::Tensor& input, const at::Tensor& output, Rank root, const std::string& name,
         int op, double prescale, double postscale, GroupId group) {
        return reduce_async(input, output, root,
                            reduce_options(name, op, prescale, postscale, group));
      },
      py::arg("input"), py::arg("output"), py::arg("root"), py::arg("name"), py::arg("op"),
      py::arg("prescale"), py::arg("postscale"), py::arg("process_set") = kWorldGroup, Released());
  module.def("send_async", &send_async, py::arg("tensor"), py::arg("dst"), py::arg("name"),
             Released());
  module.def("recv_async", &recv_async, py::arg("tensor"), py::arg("src"), py::arg("name"),
             Released());
  module.def("barrier_async", &barrier_async, py::arg("name"), py::arg("process_set") = kWorldGroup,
             Released());
  module.def("add_process_set", &add_group, py::arg("ranks"), Released(),
             "By all ranks; blocking. The number of the set.");
  module.def("remove_process_set", &remove_group, py::arg("process_set"), Released(),
             "By all ranks; blocking.");
  module.def("join", &join, Released(), "By all ranks; blocking. The rank that joined last.");
  module.def("poll", &poll, py::arg("handle"), Released());
  module.def("abandon", &abandon, py::arg("handle"), Released(),
             "Frees what the operation holds, once it is done; nobody will synchronize it.");
  module.def(
      "synchronize",
      [](HandleId handle)
          -> std::optional<std::pair<std::vector<at::Tensor>, std::vector<std::int64_t>>> {
        auto result = synchronize(handle);
        if (!result) return std::nullopt;
        return std::pair(std::move(result->tensors), std::move(result->received_rows));
      },
      py::arg("handle"), Released(),
      "(outputs, received rows) of the operation; None for a handle that is not unfinished.");
  module.def(
      "arena_empty",
      [](const std::vector<std::int64_t>& shape, const at::Tensor& like) {
        return arena_empty(shape, like.scalar_type());
      },
      py::arg("shape"), py::arg("like"), Released());
  module.def(
      "arena_allreduce_async",
      [](const at::Tensor& tensor, const std::string& name, int op) {
        return arena_allreduce_async(tensor, reduce_options(name, op, 1.0, 1.0, kWorldGroup));
      },
      py::arg("tensor"), py::arg("name"), py::arg("op"), Released());
}

}  // namespace ciranda
