#include "core/negotiate/stall.h"

#include <algorithm>
#include <map>

#include "core/base/assert.h"
#include "core/negotiate/wording.h"

namespace ciranda {
namespace {

constexpr std::size_t kNamesShown = 2;  // of operations that wait for the same ranks

struct Cause {
  std::uint64_t since_tick = 0;
  std::vector<const StalledOp*> ops;
};

std::string names_of(const Cause& cause) {
  std::string text;
  for (std::size_t i = 0; i < std::min(cause.ops.size(), kNamesShown); ++i) {
    const RequestSpec& spec = *cause.ops[i]->spec;
    const bool same_kind = i > 0 && cause.ops[i - 1]->spec->kind == spec.kind && !spec.name.empty();
    std::string label = op_label(spec, cause.ops[i]->occurrence);
    if (same_kind) label.erase(0, op_kind_name(spec.kind).size() + 1);
    text += (i > 0 ? ", " : "") + label;
  }
  if (cause.ops.size() > kNamesShown)
    text += " and " + std::to_string(cause.ops.size() - kNamesShown) + " more";
  return text;
}

}  // namespace

std::optional<std::string> stall_report(const std::vector<StalledOp>& waiting, std::uint64_t now,
                                        std::uint64_t threshold_ticks,
                                        std::uint64_t ticks_per_second) {
  CIRANDA_ASSERT(ticks_per_second > 0);
  std::map<std::vector<Rank>, Cause> causes;
  for (const StalledOp& op : waiting) {
    CIRANDA_ASSERT(!op.missing.empty() && op.spec != nullptr);
    if (op.since_tick > now || now - op.since_tick < threshold_ticks) continue;
    Cause& cause = causes[op.missing];
    cause.since_tick =
        cause.ops.empty() ? op.since_tick : std::min(cause.since_tick, op.since_tick);
    cause.ops.push_back(&op);
  }
  if (causes.empty()) return std::nullopt;

  std::string text;
  for (const auto& [missing, cause] : causes) {
    const std::string ranks = rank_list(missing);
    text += "waiting for " + ranks + " for " +
            std::to_string((now - cause.since_tick) / ticks_per_second) + " s: " + names_of(cause) +
            "; " + ranks + (missing.size() == 1 ? " has" : " have") + " not submitted " +
            (cause.ops.size() == 1 ? "it" : "them") + ".\n";
  }
  text.pop_back();
  return text + " Check that every rank runs the same steps.";
}

std::optional<Crossing> find_crossing(const std::vector<StalledOp>& waiting, Rank self,
                                      std::string_view scope) {
  const auto lacks = [](const StalledOp& op, Rank rank) {
    return std::binary_search(op.missing.begin(), op.missing.end(), rank);
  };
  for (const StalledOp& theirs : waiting) {
    if (!lacks(theirs, self) || !theirs.spec->name.starts_with(scope)) continue;
    for (const StalledOp& mine : waiting) {
      if (mine.spec->group != theirs.spec->group || !mine.spec->name.starts_with(scope)) continue;
      if (lacks(mine, self)) continue;
      const auto other = std::find_if(mine.missing.begin(), mine.missing.end(),
                                      [&](Rank rank) { return !lacks(theirs, rank); });
      if (other == mine.missing.end()) continue;
      return Crossing{.other = *other, .mine = mine.spec->name, .theirs = theirs.spec->name};
    }
  }
  return std::nullopt;
}

}  // namespace ciranda
