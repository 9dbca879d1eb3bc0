#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "bindings/bindings.h"
#include "ciranda/torch/gradient/gradient_reducer.h"
#include "ciranda/torch/gradient/rank_comparison.h"
#include "ciranda/torch/gradient/rank_graph.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/step/shared_step.h"

namespace ciranda {

namespace py = pybind11;
using Released = py::call_guard<py::gil_scoped_release>;

namespace {

void bind_rules(py::module_& module) {
  py::enum_<kernels::RuleKind> kinds(module, "RuleKind");
  for (const kernels::RuleFacts& facts : kernels::kRules) {
    std::string name = facts.name;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    kinds.value(name.c_str(), facts.kind);
  }

  using kernels::UpdateRule;
  py::class_<UpdateRule> rule(module, "UpdateRule",
                              "The hyper-parameters of a step, under torch.optim's names.");
  rule.def(py::init([](kernels::RuleKind kind) { return UpdateRule{.kind = kind}; }),
           py::arg("kind"))
      .def_readonly("kind", &UpdateRule::kind);
  for (const auto& [name, member] : kernels::kRuleValues) rule.def_readwrite(name, member);
  for (const auto& [name, member] : kernels::kRuleFlags) rule.def_readwrite(name, member);
}

void bind_reducer(py::module_& module) {
  py::class_<Reducer, std::shared_ptr<Reducer>>(
      module, "Reducer", "Reduces the gradients of an optimizer's parameters.")
      .def("add_parameters", &Reducer::add_parameters, py::arg("named_parameters"),
           py::arg("rules") = std::vector<std::size_t>(), Released())
      .def("synchronize", &Reducer::synchronize, Released())
      .def("finish_step", &Reducer::finish_step, Released())
      .def("discard_step", &Reducer::discard_step, Released())
      .def("set_backward_passes_per_step", &Reducer::set_backward_passes_per_step,
           py::arg("passes"), Released())
      .def("set_rule", &Reducer::set_rule, py::arg("number"), py::arg("rule"), Released())
      .def("confirm_sharing", &Reducer::confirm_sharing, Released())
      .def(
          "step",
          [](Reducer& reducer, double gradient_scale, bool reduce, double max_norm,
             const std::string& objection) {
            return reducer.step(gradient_scale, reduce, max_norm, objection).why_not_shared;
          },
          py::arg("gradient_scale"), py::arg("reduce"), py::arg("max_norm"), py::arg("objection"),
          Released())
      .def("end_shared_step", &Reducer::end_shared_step, Released())
      .def("norm", &Reducer::norm, Released())
      .def(
          "state",
          [](Reducer& reducer, std::size_t position) {
            return reducer.state(position, /*copies=*/true);
          },
          py::arg("position"), Released())
      .def("adopt_state", &Reducer::adopt_state, py::arg("position"), py::arg("state"), Released());
}

void bind_rank_graph(py::module_& module) {
  module.def("refuse_derivatives_in_step", &refuse_derivatives_in_step, py::arg("gradient"),
             py::arg("parameter"));
  module.def("begin_rank_step", &begin_rank_step);
  module.def("end_rank_step", &end_rank_step);
}

void bind_gradient_reducer(py::module_& module) {
  const ReducerOptions defaults;
  py::class_<GradientReducer, Reducer, std::shared_ptr<GradientReducer>>(
      module, "GradientReducer", "Reduces gradients in buckets, while backward produces them.")
      .def(py::init([](std::string name, int op, double predivide_factor, int passes,
                       Compression compression, std::uint8_t streams, bool sparse_as_dense,
                       std::optional<std::int64_t> bucket_bytes,
                       std::vector<std::vector<std::size_t>> groups, bool shared_step,
                       bool reduce_in_backward, bool share_parameters, GroupId group) {
             return make_gradient_reducer({.name = std::move(name),
                                           .group = group,
                                           .op = static_cast<ReduceOp>(op),
                                           .predivide_factor = predivide_factor,
                                           .backward_passes_per_step = passes,
                                           .wire_dtype = wire_dtype_of(compression),
                                           .streams = streams,
                                           .sparse_as_dense = sparse_as_dense,
                                           .bucket_bytes = bucket_bytes,
                                           .groups = std::move(groups),
                                           .shared_step = shared_step,
                                           .reduce_in_backward = reduce_in_backward,
                                           .share_parameters = share_parameters});
           }),
           py::kw_only(), py::arg("name"), py::arg("op") = static_cast<int>(defaults.op),
           py::arg("predivide_factor") = defaults.predivide_factor,
           py::arg("backward_passes_per_step") = defaults.backward_passes_per_step,
           py::arg("compression"), py::arg("streams") = defaults.streams,
           py::arg("sparse_as_dense") = defaults.sparse_as_dense,
           py::arg("bucket_bytes") = defaults.bucket_bytes, py::arg("groups") = defaults.groups,
           py::arg("shared_step") = defaults.shared_step,
           py::arg("reduce_in_backward") = defaults.reduce_in_backward,
           py::arg("share_parameters") = defaults.share_parameters,
           py::arg("process_set") = defaults.group)
      .def("arena_bytes", &GradientReducer::arena_bytes, Released())
      .def("moved_bytes", &GradientReducer::moved_bytes, Released())
      .def("bucket_count", &GradientReducer::bucket_count, Released());
}

void bind_rank_comparison(py::module_& module) {
  py::class_<RankComparison>(module, "RankComparison",
                             "Checks that the ranks of an optimizer train the same model.")
      .def(py::init([](const std::string& name, bool apart, GroupId members) {
             return RankComparison(default_communicator(members, name), name, apart);
           }),
           py::arg("name"), py::arg("apart"), py::arg("process_set") = kWorldGroup)
      .def("add", &RankComparison::add, py::arg("named_parameters"))
      .def("begin_step", &RankComparison::begin_step)
      .def(
          "compare",
          [](RankComparison& self, const std::string& way,
             const std::optional<std::shared_ptr<Reducer>>& reducer) {
            return self.compare(way, reducer ? reducer->get() : nullptr);
          },
          py::arg("way"), py::arg("reducer"), Released())
      .def("end_step", &RankComparison::end_step);
}

}  // namespace

void bind_optimizer(py::module_& module) {
  module.def(
      "check_options",
      [](int op, double predivide_factor, int passes, std::optional<std::int64_t> bucket_bytes,
         std::optional<double> max_grad_norm) {
        check_options(static_cast<ReduceOp>(op), predivide_factor, passes, bucket_bytes,
                      max_grad_norm);
      },
      py::arg("op"), py::arg("predivide_factor"), py::arg("backward_passes_per_step"),
      py::arg("bucket_bytes"), py::arg("max_grad_norm"));
  module.def("names_of", &names_of, py::arg("owned"), py::arg("named"));
  module.attr("AUTO_PARAMETERS_MIN") = kAutoParametersMin;
  module.def("obstacle_to_sharing", &obstacle_to_sharing, py::arg("demanded"), py::arg("obstacle"),
             py::arg("parameters"), py::arg("auto_parameters_min"));
  module.def(
      "require_agreement",
      [](const std::string& name, const std::string& options, const NamedParameters& parameters,
         const std::string& obstacle, GroupId group) {
        return require_agreement(*default_communicator(group, name), name, options, parameters,
                                 obstacle);
      },
      py::arg("name"), py::arg("options"), py::arg("parameters"), py::arg("obstacle") = "",
      py::arg("process_set") = kWorldGroup, Released());
  // Reads without the GIL. If the program begins to use the storage meanwhile, it is too late with
  // the GIL, too.
  SharedStep::set_kept_by_python([](const c10::StorageImpl& storage) {
    PyObject* object = storage.pyobj_slot()->load_pyobj();
    return object != nullptr && Py_REFCNT(object) == 1;
  });

  py::enum_<Compression>(module, "Compression")
      .value("none", Compression::kNone)
      .value("fp16", Compression::kFloat16)
      .value("bf16", Compression::kBFloat16);

  bind_rules(module);
  bind_reducer(module);
  bind_rank_graph(module);
  bind_gradient_reducer(module);
  bind_rank_comparison(module);
}

}  // namespace ciranda
