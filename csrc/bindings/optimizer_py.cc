#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "bindings/bindings.h"
#include "ciranda/torch/gradient/rank_graph.h"
#include "ciranda/torch/optimizer/optimizer_core.h"
#include "ciranda/torch/step/optimizer_checks.h"
#include "ciranda/torch/step/optimizer_options.h"
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

void bind_rank_graph(py::module_& module) {
  module.def("refuse_derivatives_in_step", &refuse_derivatives_in_step, py::arg("gradient"),
             py::arg("parameter"));
  module.def("begin_rank_step", &begin_rank_step);
  module.def("end_rank_step", &end_rank_step);
}

void bind_core(py::module_& module) {
  py::enum_<SharedStepMode>(module, "SharedStepMode")
      .value("auto", SharedStepMode::kAuto)
      .value("host", SharedStepMode::kHost)
      .value("off", SharedStepMode::kOff);
  py::enum_<LostStep>(module, "LostStep")
      .value("none", LostStep::kNone)
      .value("begun", LostStep::kBegun)
      .value("for_others", LostStep::kForOthers);
  py::class_<OptimizerCore, std::shared_ptr<OptimizerCore>>(
      module, "OptimizerCore", "What a DistributedOptimizer over ranks does beside the optimizer.")
      .def(py::init([](GroupId group, const NamedParameters& parameters,
                       std::optional<std::string> obstacle, int op, bool adasum, bool reduces,
                       double predivide_factor, int passes, Compression compression,
                       bool sparse_as_dense, std::optional<std::int64_t> bucket_bytes,
                       std::vector<std::vector<std::size_t>> groups, SharedStepMode shared_step,
                       std::int64_t auto_parameters_min, bool share_parameters,
                       std::optional<double> max_grad_norm, std::string others) {
             OptimizerOptions options{.reduction = {.op = static_cast<ReduceOp>(op),
                                                    .predivide_factor = predivide_factor,
                                                    .backward_passes_per_step = passes,
                                                    .wire_dtype = wire_dtype_of(compression),
                                                    .sparse_as_dense = sparse_as_dense,
                                                    .bucket_bytes = bucket_bytes,
                                                    .groups = std::move(groups),
                                                    .share_parameters = share_parameters},
                                      .shared_step = shared_step,
                                      .auto_parameters_min = auto_parameters_min,
                                      .max_grad_norm = max_grad_norm,
                                      .adasum = adasum,
                                      .reduces = reduces,
                                      .others = std::move(others)};
             return std::make_shared<OptimizerCore>(group, std::move(options), parameters,
                                                    std::move(obstacle));
           }),
           py::kw_only(), py::arg("process_set"), py::arg("named_parameters"), py::arg("obstacle"),
           py::arg("op"), py::arg("adasum"), py::arg("reduces"), py::arg("predivide_factor"),
           py::arg("backward_passes_per_step"), py::arg("compression"), py::arg("sparse_as_dense"),
           py::arg("bucket_bytes"), py::arg("groups"), py::arg("shared_step"),
           py::arg("auto_parameters_min"), py::arg("share_parameters"), py::arg("max_grad_norm"),
           py::arg("others"), Released())
      .def("alone", &OptimizerCore::alone)
      .def("name", &OptimizerCore::name)
      .def("why_not_shared", &OptimizerCore::why_not_shared)
      .def("described_options", [](const OptimizerCore& core) { return describe(core.options()); })
      .def("add_parameters", &OptimizerCore::add_parameters, py::arg("named_parameters"),
           py::arg("groups"), Released())
      .def("agree_on", &OptimizerCore::agree_on, py::arg("added"), Released())
      .def("set_backward_passes_per_step", &OptimizerCore::set_backward_passes_per_step,
           py::arg("passes"), Released())
      .def("synchronize", &OptimizerCore::synchronize, Released())
      .def("discard_step", &OptimizerCore::discard_step, Released())
      .def("finish_step", &OptimizerCore::finish_step, Released())
      .def("begin_step", &OptimizerCore::begin_step, Released())
      .def("compare", &OptimizerCore::compare, py::arg("way"), Released())
      .def("loss_of_all", &OptimizerCore::loss_of_all, py::arg("loss"), Released())
      .def_static("take_changes", &OptimizerCore::take_changes, py::arg("parameters"),
                  py::arg("starts"), Released())
      .def("combine", &OptimizerCore::combine, py::arg("changes"), Released())
      .def("broadcast_buffers", &OptimizerCore::broadcast_buffers, py::arg("buffers"), Released())
      .def("end_step", &OptimizerCore::end_step, py::arg("objects"), Released())
      .def("set_rule", &OptimizerCore::set_rule, py::arg("group"), py::arg("rule"), Released())
      .def(
          "step",
          [](OptimizerCore& core, double gradient_scale, bool reduce,
             const std::string& objection) {
            return core.step(gradient_scale, reduce, objection).why_not_shared;
          },
          py::arg("gradient_scale"), py::arg("reduce"), py::arg("objection"), Released())
      .def("hold_step", &OptimizerCore::hold_step, Released())
      .def("lost_step", &OptimizerCore::lost_step, Released())
      .def("complete_step", &OptimizerCore::complete_step, Released())
      .def("end_completed_step", &OptimizerCore::end_completed_step, Released())
      .def("norm", &OptimizerCore::norm, Released())
      .def(
          "state",
          [](OptimizerCore& core, std::size_t position) {
            return core.state(position, /*copies=*/true);
          },
          py::arg("position"), Released())
      .def("adopt_state", &OptimizerCore::adopt_state, py::arg("position"), py::arg("state"),
           Released())
      .def("end_shared_step", &OptimizerCore::end_shared_step, py::arg("why"), Released())
      .def("tune", &OptimizerCore::tune, py::arg("class_name"), py::arg("clock"), Released())
      .def("tunes", &OptimizerCore::tunes)
      .def("retune", &OptimizerCore::retune, py::arg("states"), py::arg("obstacle"), Released())
      .def("arena_bytes", &OptimizerCore::arena_bytes, Released())
      .def("moved_bytes", &OptimizerCore::moved_bytes, Released())
      .def("bucket_count", &OptimizerCore::bucket_count, Released());
}

}  // namespace

void bind_optimizer(py::module_& module) {
  py::enum_<Training>(module, "Training")
      .value("ring", Training::kRing)
      .value("adasum", Training::kAdasum)
      .value("servers", Training::kServers);
  module.def("refuse_options", &refuse_options, py::arg("training"), py::arg("given"));
  module.def(
      "check_values",
      [](int passes, std::optional<double> max_grad_norm) {
        check_values(
            {.reduction = {.backward_passes_per_step = passes}, .max_grad_norm = max_grad_norm});
      },
      py::arg("backward_passes_per_step"), py::arg("max_grad_norm"));
  module.def("names_of", &names_of, py::arg("owned"), py::arg("named"));
  module.attr("AUTO_PARAMETERS_MIN") = kAutoParametersMin;
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
  bind_rank_graph(module);
  bind_core(module);
}

}  // namespace ciranda
