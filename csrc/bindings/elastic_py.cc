#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "ciranda/torch/elastic/recovery.h"
#include "ciranda/torch/gradient/digest.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/tensor/error.h"
#include "core/member/dealing.h"

namespace ciranda {

namespace py = pybind11;
using Released = py::call_guard<py::gil_scoped_release>;

namespace {

Member& own_member() {
  const auto member = elastic_member();
  if (member != nullptr) return *member;  // the process keeps it until its end
  throw Exception({.code = ErrorCode::kInvalidArgument,
                   .text = "this process is in no elastic job; start it by ciranda run --min-np"});
}

}  // namespace

void bind_elastic(py::module_& module) {
  using Order = Member::Order;
  py::class_<Order>(module, "Order", "What the arbiter of an elastic job has said last.")
      .def_property_readonly(
          "epoch", [](const Order& order) { return order.epoch ? order.epoch->number : 0; })
      .def_readonly("over", &Order::over);
  using Plan = member::RecoveryPlan;
  py::class_<Plan>(module, "RecoveryPlan", "From whom the ranks of an epoch get the state.")
      .def_readonly("source", &Plan::source)
      .def_readonly("behind", &Plan::behind)
      .def_readonly("newcomers", &Plan::newcomers);

  module.def(
      "in_elastic_job", [] { return !in_forked_child() && elastic_member() != nullptr; },
      "True if the launcher may change the ranks of this job.");
  module.def("own_epoch", &own_epoch, "The number of the epoch of this World; 0: alone.");
  module.def(
      "newest_order", [] { return unwrap(own_member().newest()); }, Released(),
      "Reads what the arbiter has said. Does not block.");
  module.def(
      "wait_for_order",
      [](std::uint64_t timeout_ms) { return unwrap(own_member().wait(timeout_ms)); },
      py::arg("timeout_ms"), Released(), "Blocks until the arbiter says something.");
  module.def(
      "say_ready", [] { check(own_member().say(member::Ready{})); }, Released());
  module.def(
      "say_formed",
      [](std::uint64_t step) {
        check(own_member().say(member::Formed{.epoch = own_epoch(), .step = step}));
      },
      py::arg("step"), Released());
  module.def(
      "say_at_end",
      [](member::EpochNumber since) { check(own_member().say(member::AtEnd{.since = since})); },
      py::arg("since"), Released());
  module.def(
      "begin_epoch",
      [] {
        const Order order = unwrap(own_member().newest());
        begin_epoch(order.epoch.value());
      },
      Released(), "Meets the members of the newest epoch in its World.");
  module.def("leave_ranks", &leave_ranks, Released(),
             "Leaves the other ranks; rank() and size() still tell of this World.");
  module.def("tell_who_left", &tell_who_left, py::arg("who"), py::arg("step"), Released(),
             "Tells the launcher that this rank needs a rank that has left this World.");
  module.def(
      "agree_on_recovery",
      [](bool holds_state, std::uint64_t moment) {
        return agree_on_recovery(*default_communicator(),
                                 {.holds_state = holds_state, .moment = moment});
      },
      py::arg("holds_state"), py::arg("moment"), Released());
  module.def("digest_of_values", &digest_of_values, py::arg("tensor"), Released(),
             "A digest of a tensor's values: equal values have equal digests. Waits for a GPU.");

  module.def(
      "samples_of_block",
      [](std::size_t samples, std::size_t done, std::size_t batch, std::size_t size,
         bool drop_last) {
        return member::samples_of_block(
            {.samples = samples, .batch = batch, .drop_last = drop_last}, done, size);
      },
      py::arg("samples"), py::arg("done"), py::arg("batch"), py::arg("size"), py::arg("drop_last"),
      "How many samples all ranks together train on in the next block; 0 at the end.");
  module.def(
      "share_of_block",
      [](std::size_t count, Rank rank, std::size_t size) {
        const member::Share share = member::share_of_block(count, rank, size);
        return std::pair(share.begin, share.end);
      },
      py::arg("count"), py::arg("rank"), py::arg("size"),
      "The rank's share of a block, as positions in the block.");
  module.def("seed_of_block", &member::seed_of_block, py::arg("seed"), py::arg("pass_number"),
             py::arg("done"), py::arg("rank"), "The seed of a rank's random numbers in a block.");
}

}  // namespace ciranda
