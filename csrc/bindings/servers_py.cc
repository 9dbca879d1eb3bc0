#include <ciranda/ps.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "ciranda/torch/process/row_tables.h"
#include "ciranda/torch/process/servers.h"
#include "ciranda/torch/servers/ps_differences.h"
#include "ciranda/torch/servers/ps_gradients.h"
#include "ciranda/torch/servers/ps_step.h"
#include "ciranda/torch/servers/saved_parameters.h"
#include "ciranda/torch/tensor/error.h"

namespace ciranda {

namespace py = pybind11;
using Released = py::call_guard<py::gil_scoped_release>;

namespace {

py::dict as_dict(const ps::JobStats::Pushes& pushes) {
  py::dict row;
  row["applied"] = pushes.applied;
  row["duplicate"] = pushes.duplicate;
  row["stale"] = pushes.stale;
  row["late"] = pushes.late;
  return row;
}

py::dict as_dict(const ps::JobStats::Worker& worker) {
  py::dict row;
  row["pushes"] = as_dict(worker.pushes);
  row["pulls"] = worker.pulls;
  row["pushed_bytes"] = worker.pushed_bytes;
  row["waiting_s"] = worker.waiting_s;
  row["waiting_for_workers_s"] = worker.waiting_for_workers_s;
  return row;
}

py::dict as_dict(const ps::JobStats::OfWorker& worker) {
  py::dict row;
  row["here"] = worker.here;
  row["pushes"] = worker.pushes;
  row["waiting_for_workers_s"] = worker.waiting_for_workers_s;
  return row;
}

py::dict as_dict(const ps::JobStats::Server& server) {
  py::dict row;
  row["version"] = server.version;
  row["pushes"] = as_dict(server.pushes);
  row["pulls"] = server.pulls;
  row["staleness"] = server.staleness;
  row["gradient_bytes"] = server.gradient_bytes;
  row["parameter_bytes"] = server.parameter_bytes;
  row["held_bytes"] = server.held_bytes;
  row["busy_s"] = server.busy_s;
  row["longest_in_queue_s"] = server.longest_in_queue_s;
  row["lost_pushes"] = server.lost_pushes;
  py::list workers;
  for (const auto& worker : server.workers) workers.append(as_dict(worker));
  row["workers"] = workers;
  return row;
}

}  // namespace

void bind_servers(py::module_& module) {
  py::enum_<ps::ModeKind>(module, "ModeKind")
      .value("async_", ps::ModeKind::kAsync)
      .value("ssp", ps::ModeKind::kSsp)
      .value("sync", ps::ModeKind::kSync);
  py::enum_<ps::StalePolicy>(module, "StalePolicy")
      .value("apply", ps::StalePolicy::kApply)
      .value("scale", ps::StalePolicy::kScale)
      .value("drop", ps::StalePolicy::kDrop);
  py::class_<ps::Mode>(module, "ServerMode",
                       "The rules by which pushes take effect and workers wait for each other.")
      .def(py::init([](ps::ModeKind kind, std::optional<ps::StalePolicy> policy,
                       std::optional<std::uint64_t> max_staleness, std::uint64_t staleness,
                       std::uint32_t backup_workers) {
             return ps::Mode{.kind = kind,
                             .policy = policy.value_or(ps::StalePolicy::kApply),
                             .max_staleness = max_staleness.value_or(ps::kUnboundedStaleness),
                             .staleness = staleness,
                             .backup_workers = backup_workers};
           }),
           py::arg("kind"), py::kw_only(), py::arg("policy") = std::nullopt,
           py::arg("max_staleness") = std::nullopt, py::arg("staleness") = 0,
           py::arg("backup_workers") = 0);

  py::class_<PsStep, std::shared_ptr<PsStep>>(
      module, "PsStep", "Pushes gradients to the servers, which make the step.")
      .def(py::init([](ps::Mode mode, bool ahead, bool force, int push_every, int fetch_every) {
             return make_ps_step({.mode = mode,
                                  .ahead = ahead,
                                  .force = force,
                                  .push_every = push_every,
                                  .fetch_every = fetch_every});
           }),
           py::kw_only(), py::arg("mode"), py::arg("ahead"), py::arg("force"),
           py::arg("push_every") = 0, py::arg("fetch_every") = 0)
      .def("add_parameters", &PsStep::add_parameters, py::arg("named_parameters"),
           py::arg("groups"), Released())
      .def("set_rule", &PsStep::set_rule, py::arg("group"), py::arg("rule"), Released())
      .def("step", &PsStep::step, py::arg("gradient_scale"), py::arg("max_norm"),
           py::arg("objection"), Released())
      .def("norm", &PsStep::norm, Released())
      .def("state", &PsStep::state, py::arg("position"), Released())
      .def("adopt_state", &PsStep::adopt_state, py::arg("position"), py::arg("state"), Released())
      .def("add_squares", &PsStep::add_squares, py::arg("squares"),
           "Adds the squares of gradients elsewhere to the norm of the next step.");
  py::class_<PsDifferences, std::shared_ptr<PsDifferences>>(
      module, "PsDifferences", "Pushes the changes of a step that the worker makes to the servers.")
      .def(py::init([](ps::Mode mode, double rho, int period) {
             return make_ps_differences({.mode = mode, .rho = rho, .period = period});
           }),
           py::kw_only(), py::arg("mode"), py::arg("rho") = 0.0, py::arg("period") = 0)
      .def("add_parameters", &PsDifferences::add_parameters, py::arg("named_parameters"),
           Released())
      .def("begin", &PsDifferences::begin, Released())
      .def(
          "push", [](PsDifferences& self, const std::vector<double>& rates) { self.push(rates); },
          py::arg("rates"), Released());

  py::class_<PsGradients, std::shared_ptr<PsGradients>>(
      module, "PsGradients",
      "Pushes gradients that the servers add up in a vector beside the parameters.")
      .def(py::init(&make_ps_gradients))
      .def("add_parameters", &PsGradients::add_parameters, py::arg("named_parameters"), Released())
      .def("push", &PsGradients::push, py::arg("into"), Released());
  module.def(
      "work_with_vectors",
      [](const std::vector<std::pair<ps::VectorId, std::vector<std::pair<ps::VectorId, double>>>>&
             sums,
         const std::vector<std::pair<ps::VectorId, ps::VectorId>>& dots) {
        ps::VectorWork work;
        for (const auto& [into, terms] : sums) {
          work.sums.push_back({.into = into});
          for (const auto& [vector, factor] : terms) {
            work.sums.back().terms.push_back({.vector = vector, .factor = factor});
          }
        }
        for (const auto& [one, other] : dots) work.dots.push_back({.one = one, .other = other});
        return unwrap(servers("ps.lbfgs")->tasks().work(std::move(work)));
      },
      py::arg("sums"), py::arg("dots"), Released(),
      "Has the servers compute sums of vectors, (into, (vector, factor), ...), in this order, and "
      "then dot products, which it returns. Vector 0 is the parameters. Only the coordinator may "
      "call it.");

  module.def(
      "add_row_table",
      [](const std::string& name, std::uint64_t rows, std::uint32_t columns, bool adagrad,
         double initial_accumulator_value, double eps, bool given, double deviation,
         std::uint64_t seed) {
        kernels::UpdateRule rule{
            .kind = adagrad ? kernels::RuleKind::kAdagrad : kernels::RuleKind::kSgd,
            .eps = eps,
            .initial_accumulator_value = initial_accumulator_value};
        return add_row_table({.name = name,
                              .rows = rows,
                              .columns = columns,
                              .rule = rule,
                              .given = given,
                              .deviation = deviation,
                              .seed = seed});
      },
      py::kw_only(), py::arg("name"), py::arg("rows"), py::arg("columns"), py::arg("adagrad"),
      py::arg("initial_accumulator_value"), py::arg("eps"), py::arg("given") = false,
      py::arg("deviation") = 0.0, py::arg("seed") = 0,
      "Adds a table of rows to the servers and returns its number.");
  module.def("pull_rows", &pull_rows, py::arg("table"), py::arg("rows"), Released());
  module.def("zero_rows", &zero_rows, py::arg("table"),
             "Returns zeros with the shape of the whole table.");
  module.def("note_freed", &note_freed, py::arg("bytes"), Released());
  module.def("begin_rows", &begin_rows, py::arg("table"), py::arg("rows"), py::arg("values"),
             Released());
  module.def("push_rows", &push_rows, py::arg("table"), py::arg("rows"), py::arg("gradients"),
             py::arg("lr"), Released());

  module.def("server_count", &server_count,
             "Returns the number of servers; 0 in a World and before init().");
  module.def(
      "lost_server", [] { return server_count() > 0 ? servers("")->lost_server() : std::nullopt; },
      "Returns the number of the server whose loss ended this worker's training; None if no server "
      "was lost or the job has no servers.");
  module.def(
      "pull_newest",
      [](int root_rank, bool all_ranks, const std::string& what) {
        pull_newest(root_rank, all_ranks, what);
      },
      py::arg("root_rank"), py::arg("all_ranks"), py::arg("what"), Released(),
      "Fetches the newest parameters from the servers, in place of a broadcast of parameters.");
  module.def(
      "coordinates", [] { return server_count() > 0 && servers("")->coordinates(); },
      "True if this process is the coordinator.");
  module.def(
      "schedule_task",
      [](const std::string& call, int copies) {
        return unwrap(servers("ps.schedule")->tasks().schedule(call, copies));
      },
      py::arg("call"), py::arg("copies"), Released(),
      "Schedules a task and returns its number, from 1.");
  module.def(
      "close_tasks", [] { check(servers("ps.run")->tasks().close()); }, Released(),
      "Ends the schedule: no more tasks follow.");
  module.def(
      "ask_task",
      [](std::uint64_t task, bool waits, std::optional<std::uint64_t> failures) {
        const ps::TaskStatus status = unwrap(servers("ps.run")->tasks().ask(
            {.task = task, .waits = waits, .failures = failures.value_or(UINT64_MAX)}));
        return std::tuple(status.task, status.done, status.failed, status.settled, status.text);
      },
      py::arg("task"), py::arg("waits"), py::arg("failures"), Released(),
      "Returns (task, done, failed, settled, text), at once, or when that task is done or more "
      "tasks have failed.");
  module.def(
      "take_task",
      [](bool failed, const std::string& text) {
        const ps::Given given = unwrap(servers("ps.run")->tasks().take(failed, text));
        return std::pair(given.task, given.call);
      },
      py::arg("failed"), py::arg("text"), Released(),
      "Reports the previous task with its result `text`, blocks until there is another task and "
      "returns (task, call). No task: nothing is left.");
  module.def(
      "begin_task",
      [] {
        if (const auto who = puller()) who->begin_task();
      },
      Released());
  module.def(
      "end_task",
      [] {
        if (const auto who = puller()) who->end_task();
      },
      Released());
  module.def("server_average", &ps::average, py::arg("value"), py::arg("name"), Released());
  module.def(
      "read_checkpoint",
      [](const std::string& path) {
        std::vector<SavedParameter> saved;
        {
          const py::gil_scoped_release released;
          saved = read_checkpoint(path);
        }
        py::list parameters;
        for (const SavedParameter& each : saved) {
          py::dict state;
          for (const auto& [name, value] : each.state) state[py::str(name)] = value;
          parameters.append(py::make_tuple(each.name, each.value, state, each.rule));
        }
        return parameters;
      },
      py::arg("path"),
      "Reads a checkpoint and returns (name, value, optimizer state, update rule) of each "
      "parameter.");
  module.def("server_stats", [] {
    const ps::JobStats stats = [] {
      const py::gil_scoped_release released;
      return ps::stats();
    }();
    py::dict all;
    all["worker"] = as_dict(stats.worker);
    py::list servers;
    for (const auto& server : stats.servers) servers.append(as_dict(server));
    all["servers"] = servers;
    return all;
  });
}

}  // namespace ciranda
