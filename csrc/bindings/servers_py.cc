#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "torch/error.h"
#include "torch/ps_differences.h"
#include "torch/ps_reducer.h"
#include "torch/servers.h"

namespace ciranda {

namespace py = pybind11;
using Released = py::call_guard<py::gil_scoped_release>;

namespace {

double seconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

template <typename Counts>
py::dict by_outcome(const Counts& counts) {
  constexpr const char* kNames[] = {"applied", "duplicate", "stale", "late"};
  py::dict row;
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    row[kNames[i]] = i < counts.size() ? counts[i] : 0;
  }
  return row;
}

py::dict as_dict(const ps::ClientStats& stats) {
  py::dict row;
  row["pushes"] = by_outcome(stats.outcomes);
  row["pulls"] = stats.pulls;
  row["pushed_bytes"] = stats.pushed_bytes;
  row["waiting_s"] = seconds(stats.waiting_ns);
  row["waiting_for_workers_s"] = seconds(stats.held_ns);
  return row;
}

py::dict as_dict(const ps::Stats& stats) {
  py::dict row;
  row["version"] = stats.version;
  row["pushes"] = by_outcome(stats.outcomes);
  row["pulls"] = stats.pulls;
  row["staleness"] = stats.staleness;
  row["gradient_bytes"] = stats.gradient_bytes;
  row["parameter_bytes"] = stats.parameter_bytes;
  row["held_bytes"] = stats.held_bytes;
  row["busy_s"] = seconds(stats.busy_ns);
  row["longest_in_queue_s"] = seconds(stats.oldest_ns);
  py::list workers;
  for (const ps::WorkerStats& each : stats.workers) {
    py::dict worker;
    worker["here"] = each.here;
    worker["pushes"] = each.pushes;
    worker["waiting_for_workers_s"] = seconds(each.held_ns);
    workers.append(worker);
  }
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
  py::class_<ps::Mode>(module, "ServerMode", "How a push takes effect, and who waits for whom.")
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

  py::class_<PsReducer, Reducer, std::shared_ptr<PsReducer>>(module, "PsReducer",
                                                             "To the servers, which step.")
      .def(py::init([](ps::Mode mode, bool ahead, bool force) {
             return make_ps_reducer({.mode = mode, .ahead = ahead, .force = force});
           }),
           py::kw_only(), py::arg("mode"), py::arg("ahead"), py::arg("force"));
  py::class_<PsDifferences, std::shared_ptr<PsDifferences>>(
      module, "PsDifferences", "Of a step that the worker makes, to the servers.")
      .def(py::init([](ps::Mode mode) { return make_ps_differences(mode); }), py::kw_only(),
           py::arg("mode"))
      .def("add_parameters", &PsDifferences::add_parameters, py::arg("named_parameters"),
           Released())
      .def("begin", &PsDifferences::begin, Released())
      .def("push", &PsDifferences::push, Released());

  module.def("server_count", &server_count, "0 in a World, and before init().");
  module.def(
      "lost_server", [] { return servers("lost_server")->lost_server(); },
      "The one whose end has ended this worker's training; None so far.");
  module.def(
      "pull_newest",
      [](int root_rank, bool all_ranks, const std::string& what) {
        pull_newest(root_rank, all_ranks, what);
      },
      py::arg("root_rank"), py::arg("all_ranks"), py::arg("what"), Released(),
      "What broadcasting parameters means with servers.");
  module.def("server_average", &server_average, py::arg("name"), py::arg("value"), Released());
  module.def("server_stats", [] {
    const auto client = servers("ps.stats");
    std::vector<ps::Stats> all;
    {
      const py::gil_scoped_release released;
      all = unwrap(client->stats());
    }
    py::dict stats;
    stats["worker"] = as_dict(client->own_stats());
    py::list rows;
    for (const ps::Stats& each : all) rows.append(as_dict(each));
    stats["servers"] = rows;
    return stats;
  });
}

}  // namespace ciranda
