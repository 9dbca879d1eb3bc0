#include "core/negotiate/wording.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "core/base/assert.h"
#include "core/wire/pair.h"

namespace ciranda {
namespace {

constexpr std::size_t kRangesShown = 8;                    // ranges of ranks in one list
constexpr std::size_t kValuesShown = 8;                    // different values of one attribute
constexpr std::size_t kValueBytesMax = kRuleBytesMax + 2;  // the longest: an update rule, quoted
static_assert(kDimsMax * 15 + 16 <= kValueBytesMax, "dtype and dimensions of 13 digits");
static_assert(kValuesShown * (kRangesShown * 11 + 24 + kValueBytesMax) + 3 * kNameBytesMax <
                  kErrorTextBytesMax,
              "a mismatch with the longest values fits an error text");

std::string number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// One attribute of a spec, as a mismatch names it. `value` returns "" if the spec has none.
struct Attribute {
  const char* differ;  // "<label>: <differ>: …"
  const char* same;    // "submit <same> on every rank"
  std::string (*value)(const RequestSpec& spec);
  std::string (*shown)(const RequestSpec& spec) = value;  // a shorter text, if a value may be long
};

const Attribute kAttributes[] = {
    {"numbers of tensors differ", "the same tensors",
     [](const RequestSpec& spec) {
       return std::to_string(spec.tensors.size()) +
              (spec.tensors.size() == 1 ? " tensor" : " tensors");
     }},
    {"ops differ", "the same op",
     [](const RequestSpec& spec) { return "op " + std::string(reduce_op_name(spec.op)); }},
    {"root ranks differ", "the same root rank",
     [](const RequestSpec& spec) { return "root rank " + std::to_string(spec.root); }},
    {"prescale factors differ", "the same prescale factor",
     [](const RequestSpec& spec) { return "prescale factor " + number(spec.prescale); }},
    {"postscale factors differ", "the same postscale factor",
     [](const RequestSpec& spec) { return "postscale factor " + number(spec.postscale); }},
    {"kinds of memory differ", "only arena tensors, or only other tensors,",
     [](const RequestSpec& spec) {
       return std::string(spec.in_arena ? "tensors in the arena" : "tensors outside the arena");
     }},
    {"bytes in the arena differ", "the same tensors in the same order",
     [](const RequestSpec& spec) { return std::to_string(spec.arena_bytes) + " bytes"; }},
    {"wire dtypes differ", "the same wire dtype (compression, CIRANDA_WIRE_DTYPE)",
     [](const RequestSpec& spec) {
       return spec.wire_dtype ? "wire dtype " + std::string(dtype_name(*spec.wire_dtype))
                              : std::string("no wire dtype");
     }},
    {"numbers of streams differ", "the same number of streams",
     [](const RequestSpec& spec) {
       return spec.streams == 0 ? std::string("CIRANDA_STREAMS") : std::to_string(spec.streams);
     }},
    {"backends differ",
     "the same kind of tensor (CPU or GPU), with the same CIRANDA_CPU_OPERATIONS",
     [](const RequestSpec& spec) {
       const bool native = spec.backend == BackendId::kNative;
       return "backend " + std::string(native ? "auto" : backend_name(spec.backend));
     }},
    {"update rules differ", "the same update rule",
     [](const RequestSpec& spec) {
       return spec.rule.empty() ? std::string("no update") : "'" + spec.rule + "'";
     }},
    {"process sets differ", "the same ranks",
     [](const RequestSpec& spec) {
       std::string all;
       for (const Rank rank : spec.members) all += std::to_string(rank) + " ";
       return all;
     },
     [](const RequestSpec& spec) { return rank_list(spec.members); }},
    {"process sets to remove differ", "the same process set",
     [](const RequestSpec& spec) { return "process set " + std::to_string(spec.removes); }},
};

// The submitted specs, ascending by rank, without ranks that have joined.
using SpecByRank = std::vector<std::pair<Rank, const RequestSpec*>>;

SpecByRank specs_of(const PendingOp& op) {
  SpecByRank specs;
  for (std::size_t index = 0; index < op.contributions.size(); ++index) {
    if (op.contributions[index]) specs.emplace_back(op.group().ranks[index], op.spec.get());
  }
  for (const auto& other : op.disagreements) {
    const auto before = [](const auto& entry, Rank rank) { return entry.first < rank; };
    const auto at = std::lower_bound(specs.begin(), specs.end(), other.rank, before);
    CIRANDA_ASSERT(at != specs.end() && at->first == other.rank);  // it contributed
    at->second = other.spec.get();
  }
  return specs;
}

// Returns "ranks 0, 2 have A, rank 1 has B", ordered by the lowest rank of each value; empty if all
// ranks agree.
template <typename Value, typename Shown>
std::string values_by_rank(const SpecByRank& specs, Value value, Shown shown) {
  struct Same {
    std::string value;
    const RequestSpec* spec;
    std::vector<Rank> ranks;
  };
  std::vector<Same> groups;
  for (const auto& [rank, spec] : specs) {
    std::string text = value(*spec);
    auto same = std::find_if(groups.begin(), groups.end(),
                             [&](const Same& group) { return group.value == text; });
    if (same == groups.end()) same = groups.insert(same, {std::move(text), spec, {}});
    same->ranks.push_back(rank);
  }
  if (groups.size() < 2) return {};
  std::string text;
  for (std::size_t i = 0; i < std::min(groups.size(), kValuesShown); ++i) {
    const std::vector<Rank>& ranks = groups[i].ranks;
    text += (i > 0 ? ", " : "") + rank_list(ranks) + (ranks.size() == 1 ? " has " : " have ") +
            shown(*groups[i].spec);
  }
  if (groups.size() > kValuesShown)
    text += " and " + std::to_string(groups.size() - kValuesShown) + " more values";
  return text;
}

// Returns the mismatch of the first tensor that differs, with both dtype and shape; empty if all
// tensors agree.
std::string tensor_mismatch(const SpecByRank& specs, const std::string& label) {
  const RequestSpec& first = *specs.front().second;
  const std::size_t count = first.tensors.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto differs = [&](auto same) {
      return std::any_of(specs.begin(), specs.end(), [&](const auto& entry) {
        return !same(entry.second->tensors[i], first.tensors[i]);
      });
    };
    const bool dtypes = differs([](const auto& a, const auto& b) {
      return a.dtype == b.dtype && a.user_dtype == b.user_dtype;
    });
    const bool shapes = differs([](const auto& a, const auto& b) { return a.shape == b.shape; });
    if (!dtypes && !shapes) continue;
    const auto tensor = [&](const RequestSpec& spec) { return to_string(spec.tensors[i]); };
    const std::string member =
        count == 1 ? "" : ", tensor [" + std::to_string(i) + "] of " + std::to_string(count);
    const std::string what = dtypes && shapes ? "dtypes and shapes" : dtypes ? "dtypes" : "shapes";
    return label + member + ": " + what + " differ: " + values_by_rank(specs, tensor, tensor) +
           "; submit the same " +
           (dtypes && shapes ? "dtype and shape"
            : dtypes         ? "dtype"
                             : "shape") +
           " on every rank";
  }
  return {};
}

}  // namespace

std::string rank_list(const std::vector<Rank>& ranks) {
  CIRANDA_ASSERT(!ranks.empty());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t shown = 0;
  for (std::size_t i = 0; i < ranks.size(); ++shown) {
    if (shown == kRangesShown) return text + " and " + std::to_string(ranks.size() - i) + " more";
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last == i + 1) last = i;  // two neighbours read better as "0, 1"
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string op_label(const RequestSpec& spec, std::uint32_t occurrence) {
  std::string text(op_kind_name(spec.kind));
  if (is_membership(spec.kind)) return text;
  text += spec.name.empty() ? std::string(" without a name") : " '" + spec.name + "'";
  if (spec.name.empty() || occurrence > 0) text += " (call " + std::to_string(occurrence) + ")";
  if (spec.group == kWorldGroup) return text;
  if (!is_pair(spec.group)) return text + " of process set " + std::to_string(spec.group);
  const auto [from, to] = pair_of(spec.group);
  return text + " from rank " + std::to_string(from) + " to rank " + std::to_string(to);
}

std::string mismatch_text(const PendingOp& op) {
  CIRANDA_ASSERT(!op.disagreements.empty());
  const SpecByRank specs = specs_of(op);
  const std::string label = op_label(*op.spec, op.occurrence);
  for (const Attribute& attribute : kAttributes) {
    const std::string values = values_by_rank(specs, attribute.value, attribute.shown);
    if (!values.empty())
      return label + ": " + attribute.differ + ": " + values + "; submit " + attribute.same +
             " on every rank";
  }
  std::string text = tensor_mismatch(specs, label);
  CIRANDA_ASSERT(!text.empty());  // the specs differ, so one of their attributes does
  return text;
}

std::string left_text(const RequestSpec& spec, std::uint32_t occurrence,
                      const std::vector<Rank>& departed) {
  return op_label(spec, occurrence) + ": " + rank_list(departed) +
         (departed.size() == 1 ? " has" : " have") +
         " shut down and will not take part; let every rank do the same steps before it ends";
}

std::string joined_text(const std::vector<Rank>& joined) {
  return rank_list(joined) + (joined.size() == 1 ? " has" : " have") +
         " joined, and only a barrier and an allreduce by Sum or Average go on without a rank; "
         "call other operations on every rank before join()";
}

std::string after_join_text(const RequestSpec& spec, std::uint32_t occurrence, Rank rank) {
  return op_label(spec, occurrence) + ": rank " + std::to_string(rank) +
         " has joined and takes no part until every rank has joined; submit the operation after "
         "join() has returned";
}

std::string no_group_text(const RequestSpec& spec, std::uint32_t occurrence) {
  return op_label(spec, occurrence) + ": there is no such process set; it may have been removed";
}

std::string no_member_text(const RequestSpec& spec, std::uint32_t occurrence, const Group& group,
                           Rank rank) {
  return op_label(spec, occurrence) + ": rank " + std::to_string(rank) + " is not a member; only " +
         rank_list(group.ranks) + " may submit it";
}

Error violation(Rank from, const std::string& what) {
  return {.code = ErrorCode::kMalformed,
          .text = "rank " + std::to_string(from) + ": " + what,
          .rank = from};
}

Error unknown_number_error(Rank from, CacheId id) {
  return violation(from,
                   "it used the number " + std::to_string(id) + ", which no operation ever had");
}

}  // namespace ciranda
