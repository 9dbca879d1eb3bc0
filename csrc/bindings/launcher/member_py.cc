#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/member/arbiter.h"

// A module of its own, so that the launcher decides who is a member without importing torch.

namespace py = pybind11;

namespace ciranda {
namespace {

constexpr double kNsPerSecond = 1e9;

enum class ActionKind { kStart, kKill, kSend, kNews, kGiveUp, kEnd };

// An Action whose fields Python reads by name.
struct ActionRow {
  ActionKind kind = ActionKind::kStart;
  member::Incarnation incarnation = 0;
  int slot = -1;
  member::HostNumber host = 0;
  member::HostNumber by = 0;
  py::bytes payload;
  std::optional<member::News> news;
  std::optional<member::EndReason> reason;
  std::uint64_t step = 0;
};

py::bytes as_bytes(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

ActionRow as_row(const member::Start& start) {
  return {.kind = ActionKind::kStart,
          .incarnation = start.incarnation,
          .slot = start.slot,
          .host = start.host};
}
ActionRow as_row(const member::Kill& kill) {
  return {.kind = ActionKind::kKill, .incarnation = kill.incarnation};
}
ActionRow as_row(const member::Send& send) {
  return {
      .kind = ActionKind::kSend, .incarnation = send.incarnation, .payload = as_bytes(send.bytes)};
}
ActionRow as_row(const member::News& news) {
  return {.kind = ActionKind::kNews, .incarnation = news.incarnation, .news = news};
}
ActionRow as_row(const member::GiveUp& order) {
  return {.kind = ActionKind::kGiveUp, .host = order.host, .by = order.by};
}
ActionRow as_row(const member::End& end) {
  return {.kind = ActionKind::kEnd,
          .incarnation = end.incarnation,
          .reason = end.reason,
          .step = end.step};
}

std::vector<ActionRow> as_rows(const member::Actions& actions) {
  std::vector<ActionRow> rows;
  rows.reserve(actions.size());
  for (const member::Action& action : actions) {
    rows.push_back(std::visit([](const auto& each) { return as_row(each); }, action));
  }
  return rows;
}

std::uint64_t as_ns(double seconds) {
  constexpr double kSecondsMax = 1e9;  // 30 years
  if (!(seconds >= 0)) throw py::value_error("a time-out is negative");
  return static_cast<std::uint64_t>(std::min(seconds, kSecondsMax) * kNsPerSecond);
}

// A process that stands still may have said its last beat almost kBeatNs before.
std::uint64_t lease_of(double standstill_s) {
  const std::uint64_t standstill_ns = as_ns(standstill_s);
  return standstill_ns == 0 ? 0 : standstill_ns + member::kBeatNs;
}

member::HostOptions host_options(int slots, std::string meet_at) {
  if (slots < 1) throw py::value_error("a host without slots");
  if (meet_at.size() > member::kMeetAtBytesMax) throw py::value_error("an address is too long");
  return {.slots = slots, .meet_at = std::move(meet_at)};
}

member::Arbiter make_arbiter(int np, int min_np, int max_np, int spares,
                             std::optional<int> reset_limit, double elastic_timeout_s,
                             double start_timeout_s, double lease_s,
                             const std::vector<std::pair<int, std::string>>& hosts,
                             std::vector<member::HostNumber> homes, bool hosts_may_join) {
  const bool is_ordered = 1 <= min_np && min_np <= np && np <= max_np && max_np <= kLocalRanksMax;
  if (!is_ordered || spares < 0 || spares > kLocalRanksMax - np) {
    throw py::value_error("not 1 <= min_np <= np <= max_np <= 256, 0 <= spares <= 256 - np");
  }
  if (reset_limit.value_or(0) < 0) throw py::value_error("reset_limit is negative");
  if (hosts_may_join && (hosts.empty() || spares > kLocalRanksMax - max_np)) {
    throw py::value_error("hosts may join, and there are none, or not max_np + spares <= 256");
  }
  const auto is_host = [&](member::HostNumber host) {
    return host < std::max<std::size_t>(1, hosts.size());
  };
  if (!std::ranges::all_of(homes, is_host)) throw py::value_error("a home that is no host");
  std::vector<member::HostOptions> options;
  for (const auto& [slots, meet_at] : hosts) options.push_back(host_options(slots, meet_at));
  return member::Arbiter({.np = np,
                          .min_np = min_np,
                          .max_np = max_np,
                          .spares = spares,
                          .reset_limit = reset_limit.value_or(-1),
                          .elastic_timeout_ns = as_ns(elastic_timeout_s),
                          .start_timeout_ns = as_ns(start_timeout_s),
                          .lease_ns = lease_of(lease_s),
                          .hosts = std::move(options),
                          .homes = std::move(homes),
                          .hosts_may_join = hosts_may_join});
}

member::ExitKind exit_kind(bool clean, bool by_signal) {
  if (by_signal) return member::ExitKind::kSignal;
  return clean ? member::ExitKind::kClean : member::ExitKind::kError;
}

std::vector<std::pair<member::Incarnation, Rank>> lost_of(const member::News& news) {
  std::vector<std::pair<member::Incarnation, Rank>> lost;
  for (const member::Lost& each : news.lost) lost.emplace_back(each.incarnation, each.rank);
  return lost;
}

void bind_actions(py::module_& module) {
  py::enum_<ActionKind>(module, "ActionKind")
      .value("start", ActionKind::kStart)
      .value("kill", ActionKind::kKill)
      .value("send", ActionKind::kSend)
      .value("news", ActionKind::kNews)
      .value("give_up", ActionKind::kGiveUp)
      .value("end", ActionKind::kEnd);
  py::enum_<member::EndReason>(module, "EndReason")
      .value("finished", member::EndReason::kFinished)
      .value("failed", member::EndReason::kFailed)
      .value("failed_at_start", member::EndReason::kFailedAtStart)
      .value("too_few_ranks", member::EndReason::kTooFewRanks)
      .value("no_state", member::EndReason::kNoState)
      .value("reset_limit", member::EndReason::kResetLimit)
      .value("stuck", member::EndReason::kStuck)
      .value("unfinished", member::EndReason::kUnfinished)
      .value("left_early", member::EndReason::kLeftEarly);
  py::enum_<member::NewsKind>(module, "NewsKind")
      .value("formed", member::NewsKind::kFormed)
      .value("waiting", member::NewsKind::kWaiting)
      .value("ended_late", member::NewsKind::kEndedLate)
      .value("bad_message", member::NewsKind::kBadMessage)
      .value("no_more_starts", member::NewsKind::kNoMoreStarts)
      .value("silent", member::NewsKind::kSilent);
  py::class_<member::News>(module, "News", "Something to tell the user.")
      .def_readonly("kind", &member::News::kind)
      .def_readonly("incarnation", &member::News::incarnation)
      .def_readonly("epoch", &member::News::epoch)
      .def_readonly("members", &member::News::members)
      .def_readonly("joined", &member::News::joined)
      .def_readonly("step", &member::News::step)
      .def_readonly("planned", &member::News::planned)
      .def_property_readonly("lost", &lost_of)
      .def_property_readonly("since_s", [](const member::News& news) {
        return static_cast<double>(news.since_ns) / kNsPerSecond;
      });
  py::class_<ActionRow>(module, "Action", "Something that the arbiter wants to be done.")
      .def_readonly("kind", &ActionRow::kind)
      .def_readonly("incarnation", &ActionRow::incarnation)
      .def_readonly("slot", &ActionRow::slot)
      .def_readonly("host", &ActionRow::host)
      .def_readonly("by", &ActionRow::by)
      .def_readonly("payload", &ActionRow::payload)
      .def_readonly("news", &ActionRow::news)
      .def_readonly("reason", &ActionRow::reason)
      .def_readonly("step", &ActionRow::step);
}

void bind_arbiter(py::module_& module) {
  using member::Arbiter;
  using OfHost = member::Actions (Arbiter::*)(member::HostNumber, std::uint64_t);
  const auto of_host = [](OfHost event) {
    return [event](Arbiter& arbiter, member::HostNumber host, std::uint64_t now) {
      return as_rows((arbiter.*event)(host, now));
    };
  };
  py::class_<Arbiter>(module, "Arbiter", "Decides who is a member of an elastic job, and when.")
      .def(py::init(&make_arbiter), py::kw_only(), py::arg("np"), py::arg("min_np"),
           py::arg("max_np"), py::arg("spares"), py::arg("reset_limit"),
           py::arg("elastic_timeout_s"), py::arg("start_timeout_s"), py::arg("lease_s"),
           py::arg("hosts") = std::vector<std::pair<int, std::string>>(),
           py::arg("homes") = std::vector<member::HostNumber>(), py::arg("hosts_may_join") = false)
      .def(
          "start", [](Arbiter& arbiter, std::uint64_t now) { return as_rows(arbiter.start(now)); },
          py::arg("now_ns"))
      .def(
          "exited",
          [](Arbiter& arbiter, member::Incarnation incarnation, bool clean, bool by_signal,
             std::uint64_t now) {
            return as_rows(arbiter.exited(incarnation, exit_kind(clean, by_signal), now));
          },
          py::arg("incarnation"), py::arg("clean"), py::arg("by_signal"), py::arg("now_ns"))
      .def(
          "said",
          [](Arbiter& arbiter, member::Incarnation incarnation, const py::bytes& data,
             std::uint64_t now) {
            const std::string_view text = data;
            return as_rows(arbiter.said(incarnation, std::as_bytes(std::span(text)), now));
          },
          py::arg("incarnation"), py::arg("data"), py::arg("now_ns"))
      .def("host_beats", of_host(&Arbiter::host_beats), py::arg("host"), py::arg("now_ns"))
      .def(
          "host_joins",
          [](Arbiter& arbiter, int slots, const std::string& meet_at, std::uint64_t now) {
            auto [count, at] = host_options(slots, meet_at);
            return as_rows(arbiter.host_joins(count, std::move(at), now));
          },
          py::arg("slots"), py::arg("meet_at"), py::arg("now_ns"))
      .def("host_leaves", of_host(&Arbiter::host_leaves), py::arg("host"), py::arg("now_ns"))
      .def("host_lost", of_host(&Arbiter::host_lost), py::arg("host"), py::arg("now_ns"))
      .def(
          "host_returned",
          [](Arbiter& arbiter, member::HostNumber host, std::string meet_at, std::uint64_t now) {
            return as_rows(arbiter.host_returned(host, std::move(meet_at), now));
          },
          py::arg("host"), py::arg("meet_at"), py::arg("now_ns"))
      .def(
          "tick", [](Arbiter& arbiter, std::uint64_t now) { return as_rows(arbiter.tick(now)); },
          py::arg("now_ns"))
      .def("deadline_ns", &Arbiter::deadline);
}

}  // namespace
}  // namespace ciranda

PYBIND11_MODULE(_member, module) {
  module.doc() = "Decides who is a member of an elastic job; the launcher uses it.";
  ciranda::bind_actions(module);
  ciranda::bind_arbiter(module);
  module.def(
      "over_message",
      [] { return ciranda::as_bytes(ciranda::member::encode(ciranda::member::Over{})); },
      "Returns the message that lets a process leave, for a job that ends without the arbiter.");
}
