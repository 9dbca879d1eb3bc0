#include <ciranda/torch.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>

#include "bindings/bindings.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/tensor/error.h"
#include "core/base/thread.h"
#include "core/engine/run/backends.h"
#include "core/kernels/reduce.h"

namespace ciranda {

namespace py = pybind11;
using Released = py::call_guard<py::gil_scoped_release>;

namespace {

// Number of threads that show where Python is. It must be 0 when the interpreter ends: that ends
// such threads by pthread_exit(), which terminates the process if it passes through C++ frames.
std::atomic<int> showing{0};  // NOLINT

void stop_showing() {
  showing.fetch_sub(1);
  showing.notify_all();
}

// Uses a new thread, because the program may hold the GIL for long, or end meanwhile.
void show_where_in_python() {
  showing.fetch_add(1);
  auto thread = start_thread("ciranda-where", [] {
    if (Py_IsInitialized() != 0) {
      const py::gil_scoped_acquire gil;
      try {
        py::module_::import("ciranda.torch.where").attr("show")();
      } catch (py::error_already_set& problem) {
        problem.discard_as_unraisable("ciranda.torch.where");
      }
    }
    stop_showing();
  });
  if (!thread) return stop_showing();
  thread.value().detach();
}

void shutdown_and_stop_showing() {
  shutdown();  // from now on no peer asks where this rank is
  if (in_forked_child()) return;
  for (int still = showing.load(); still > 0; still = showing.load()) showing.wait(still);
}

int raise_kept(void* kept) {
  const std::unique_ptr<py::error_already_set> exception(static_cast<py::error_already_set*>(kept));
  exception->restore();
  return -1;
}

// Returns true if Python may look for signals in the middle of a call: if the program has set no
// handlers. A handler that saves a model would find an optimizer in the middle of its step; it runs
// when the call returns. torch's handler for SIGCHLD is allowed, since it only raises.
//
// Calls only builtins, because the handlers would run in Python code.
bool may_look_for_signals() {
  static const py::handle module = py::module_::import("_signal").release();
  const py::object handler_of = module.attr("getsignal");
  if (!handler_of(SIGINT).is(module.attr("default_int_handler"))) return false;
  for (int number = 1; number < NSIG; ++number) {
    if (number == SIGINT || number == SIGCHLD) continue;
    if (PyCallable_Check(handler_of(number).ptr()) != 0) return false;
  }
  return true;
}

// Returns true if a signal's handler has raised. Only Python's main thread runs handlers; other
// threads return false. The exception is raised when the call returns to Python.
bool interrupted_in_python() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return false;
  const py::gil_scoped_acquire gil;
  if (!may_look_for_signals() || PyErr_CheckSignals() == 0) return false;
  auto exception = std::make_unique<py::error_already_set>();
  if (Py_AddPendingCall(raise_kept, exception.get()) == 0) (void)exception.release();
  return true;
}

}  // namespace

void bind_world(py::module_& module) {
  set_show_where(show_where_in_python);
  set_interrupted(interrupted_in_python);
  module.def("init", &init_default_world, py::arg("with_comm") = false, Released(),
             "Meets the other ranks. Blocks until all ranks have joined.");
  module.def("shutdown", &shutdown_and_stop_showing, Released(),
             "Leaves the other ranks and ends the World.");
  module.def("is_initialized", &is_initialized);
  module.def("in_forked_child", &in_forked_child);
  module.def("rank", &rank);
  module.def("size", &size);
  module.def("local_rank", &local_rank);
  module.def("local_size", &local_size);
  module.def("cross_rank", &cross_rank);
  module.def("cross_size", &cross_size);
  module.def("hosts", &ranks_of_hosts, "Returns the ranks of each host, ascending.");
  module.def(
      "hosts_are_trusted",
      [] {
        const Config& config = default_world()->config();
        return config.rank_info.cross_size == 1 || config.remote.tls || config.trusted_network;
      },
      "True if this rank may run code that other ranks send: all ranks are on this host, or the "
      "network between the hosts is encrypted or declared trusted.");
  module.def(
      "starter", [] { return default_world()->config().starter; },
      "Returns the name of the starter whose environment variables told this rank's place.");
  module.def(
      "cpu_operations",
      [] { return std::string(backend_name(default_world()->engine()->backend_choice().cpu)); },
      "Returns the backend that runs operations on CPU tensors.");
  module.def(
      "autotune",
      [] {
        const AutotuneConfig& autotune = default_world()->config().autotune;
        py::dict result;
        result["on"] = autotune.on;
        result["wire_dtype"] = autotune.wire_dtype;
        result["log"] = autotune.log;
        result["warmup_samples"] = autotune.warmup_samples;
        result["steps_per_sample"] = autotune.steps_per_sample;
        return result;
      },
      "Returns the settings of autotuning from the environment.");
  module.def(
      "streams", [] { return default_world()->config().engine.ring.grain.channels; },
      "Returns CIRANDA_STREAMS, which is the same on every rank.");
  module.def(
      "pace",
      [] {
        const Pace pace = default_world()->engine()->pace();
        return std::pair(pace.overlap, pace.spin_ns / 1000);
      },
      "Returns the current values of CIRANDA_OVERLAP and CIRANDA_SPIN_MICROSECONDS.");
  module.def(
      "set_pace",
      [](bool overlap, std::uint32_t spin_us) {
        default_world()->engine()->set_pace({.overlap = overlap, .spin_ns = spin_us * 1000});
      },
      py::arg("overlap"), py::arg("spin_us"),
      "Sets CIRANDA_OVERLAP and CIRANDA_SPIN_MICROSECONDS of this rank from now on.");
  module.def(
      "joins", [] { return default_world()->engine()->joins(); },
      "Returns the number of joins that all ranks have finished.");
  module.def(
      "backends",
      [] {
        py::list rows;
        for (const BackendFacts& facts : backend_facts()) {
          py::dict row;
          row["name"] = std::string(backend_name(facts.id));
          row["built"] = facts.built;
          row["available"] = facts.available;
          row["version"] = facts.version;
          row["path"] = facts.path;
          row["why_not"] = facts.why_not;
          rows.append(row);
        }
        return rows;
      },
      "Returns the backends of this build and this machine. Needs no World.");
  module.def(
      "stats",
      [] {
        const EngineStats stats = default_world()->engine()->stats();
        py::dict result;
        result["waiting_s"] = static_cast<double>(stats.waiting_ns) * 1e-9;
        result["communicating_s"] = static_cast<double>(stats.communicating_ns) * 1e-9;
        result["operations"] = stats.operations;
        result["bytes"] = stats.bytes;
        return result;
      },
      "Returns the seconds in blocking calls and the bytes moved since init().");
  module.def(
      "pending",
      [] {
        std::vector<PendingOperation> pending;
        {
          const py::gil_scoped_release released;
          pending = default_world()->engine()->pending();
        }
        py::list result;
        for (const PendingOperation& operation : pending) {
          py::dict row;
          row["op"] = std::string(op_kind_name(operation.kind));
          row["name"] = operation.name;
          row["missing_ranks"] = operation.missing;
          result.append(row);
        }
        return result;
      },
      "Returns the unfinished operations of this rank, with the ranks that had not submitted "
      "them.");
  module.def(
      "abort", [](const std::string& reason) { default_world()->engine()->abort(reason); },
      py::arg("reason"), Released(), "Ends the job for every rank with this reason.");
  module.def(
      "start_timeline",
      [](const std::string& path, bool mark_cycles) {
        check(default_world()->timeline().start(path, mark_cycles));
      },
      py::arg("path"), py::arg("mark_cycles"), Released());
  module.def(
      "stop_timeline", [] { check(default_world()->timeline().stop()); }, Released());
  module.def("instruction_set", &kernels::instruction_set);
}

}  // namespace ciranda
