#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "torch/default_world.h"
#include "torch/error.h"
#include "torch/gradient_reducer.h"

namespace ciranda {

namespace py = pybind11;
using Released = py::call_guard<py::gil_scoped_release>;

void bind_optimizer(py::module_& module) {
  py::enum_<Compression>(module, "Compression")
      .value("none", Compression::kNone)
      .value("fp16", Compression::kFloat16)
      .value("bf16", Compression::kBFloat16);

  py::class_<GradientReducer, std::shared_ptr<GradientReducer>>(
      module, "GradientReducer", "Reduces the gradients of an optimizer's parameters.")
      .def(py::init([](const std::string& name, int op, double predivide_factor, int passes,
                       Compression compression, bool sparse_as_dense, std::int64_t bucket_bytes,
                       std::vector<std::vector<std::size_t>> groups) {
             return std::make_shared<GradientReducer>(
                 default_world()->engine(), ReducerOptions{.name = name,
                                                           .op = static_cast<ReduceOp>(op),
                                                           .predivide_factor = predivide_factor,
                                                           .backward_passes_per_step = passes,
                                                           .compression = compression,
                                                           .sparse_as_dense = sparse_as_dense,
                                                           .bucket_bytes = bucket_bytes,
                                                           .groups = std::move(groups)});
           }),
           py::arg("name"), py::arg("op"), py::arg("predivide_factor"),
           py::arg("backward_passes_per_step"), py::arg("compression"), py::arg("sparse_as_dense"),
           py::arg("bucket_bytes"), py::arg("groups"))
      .def("add_parameters", &GradientReducer::add_parameters, py::arg("named_parameters"),
           Released())
      .def("synchronize", &GradientReducer::synchronize, Released())
      .def("finish_step", &GradientReducer::finish_step, Released())
      .def("settle", &GradientReducer::settle, Released())
      .def("set_backward_passes_per_step", &GradientReducer::set_backward_passes_per_step,
           py::arg("passes"), Released())
      .def("arena_bytes", &GradientReducer::arena_bytes, Released())
      .def("moved_bytes", &GradientReducer::moved_bytes, Released())
      .def("bucket_count", &GradientReducer::bucket_count, Released());
}

}  // namespace ciranda
