#include "ciranda/torch/step/optimizer_checks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <sstream>

#include "ciranda/torch/collective/collectives.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/step/shared_step.h"
#include "ciranda/torch/tensor/error.h"
#include "ciranda/torch/tensor/tensor_memory.h"
#include "ciranda/torch/tensor/tensor_view.h"
#include "core/base/assert.h"

namespace ciranda {
namespace {

[[noreturn]] void refuse(const std::string& why, ErrorCode code = ErrorCode::kInvalidArgument) {
  throw Exception({.code = code, .text = "DistributedOptimizer: " + why});
}

std::string joined(c10::IntArrayRef numbers) {
  std::string text;
  for (const std::int64_t number : numbers) {
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  }
  return text;
}

// Returns "'fc.weight' float32[3, 2], strides (2, 1), trained". Leaves out the number of a GPU,
// which may differ between ranks.
std::string describe(const std::string& name, const at::Tensor& parameter) {
  const c10::ScalarType type = parameter.scalar_type();
  const auto known = find_dtype(type);
  const std::string dtype(known ? dtype_name(*known) : c10::toString(type));
  return "'" + name + "' " + dtype + "[" + joined(parameter.sizes()) + "], strides (" +
         joined(parameter.strides()) + "), " + (parameter.requires_grad() ? "trained" : "frozen") +
         (parameter.is_cpu() ? "" : ", on " + c10::DeviceTypeName(parameter.device().type(), true));
}

std::optional<std::string> obstacle_of(const at::Tensor& parameter) {
  if (!parameter.is_cpu()) {
    return "is on " + parameter.device().str() +
           ", but ranks share the step of CPU parameters only";
  }
  if (parameter.layout() != c10::Layout::Strided) return "is not dense";
  const auto dtype = find_dtype(parameter.scalar_type());
  if (!dtype || !is_floating(*dtype)) {
    if (!parameter.requires_grad()) return std::nullopt;  // base weights, which nobody steps
    return "is not of a floating dtype";
  }
  if (SharedStep::can_move_along(parameter)) return std::nullopt;
  return SharedStep::why_immovable(parameter);
}

// Returns "name\tplace\t" for each parameter in memory that other processes may see, such as other
// ranks.
std::string shared_places(const NamedParameters& parameters, bool shares_step) {
  std::string places;
  std::optional<Mappings> mappings;  // made when needed
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.is_cpu() || !parameter.has_storage()) continue;
    // Memory of ours may be one copy for all ranks (share_parameters); a shared step writes to it
    // once.
    if (is_ours(parameter) ? shares_step : seen_by_tensors_alone(parameter)) continue;
    if (!mappings) mappings.emplace();
    const std::string place = mappings->shared_place(parameter.const_data_ptr());
    if (!place.empty()) places += name + '\t' + place + '\t';
  }
  return places;
}

// Throws if two ranks have a parameter in the same memory, since both would step it.
void refuse_common_places(const std::vector<std::string>& by_rank, const Group& members) {
  std::map<std::string, Rank> rank_at;
  for (std::size_t index = 0; index < by_rank.size(); ++index) {
    std::istringstream places(by_rank[index]);
    for (std::string name, place;
         std::getline(places, name, '\t') && std::getline(places, place, '\t');) {
      const auto [at, is_new] = rank_at.emplace(place, members.ranks[index]);
      if (is_new || at->second == members.ranks[index]) continue;
      refuse(
          "parameter '" + name + "' lies in memory that ranks " + std::to_string(at->second) +
          " and " + std::to_string(members.ranks[index]) +
          " share (share_memory(), a model that was given to processes, a shared file), and each "
          "rank would step it; give each rank its own copy before: model = copy.deepcopy(model)");
    }
  }
}

// Returns every member's lines, in the members' order.
std::vector<std::vector<std::string>> gather_lines(const Communicator& among,
                                                   const std::vector<std::string>& mine,
                                                   const std::string& name) {
  std::string text;
  for (const std::string& line : mine) text += line + '\n';
  const auto bytes = static_cast<std::int64_t>(text.size());
  const at::Tensor sent = at::empty({bytes}, c10::ScalarType::Byte);
  std::memcpy(sent.mutable_data_ptr(), text.data(), text.size());
  std::vector<std::vector<std::string>> all;
  for (const at::Tensor& received : allgather_bytes(among, sent, name)) {
    std::istringstream theirs(std::string(
        reinterpret_cast<const char*>(received.const_data_ptr<std::uint8_t>()), received.nbytes()));
    all.emplace_back();
    for (std::string line; std::getline(theirs, line);) all.back().push_back(line);
  }
  return all;
}

}  // namespace

NamedParameters names_of(const std::vector<at::Tensor>& owned, const NamedParameters& named) {
  std::set<std::string> names;
  std::set<std::string> twice;
  std::map<const void*, const std::string*> name_of;
  for (const auto& [name, parameter] : named) {
    if (!names.insert(name).second) twice.insert(name);
    name_of.emplace(parameter.unsafeGetTensorImpl(), &name);
  }
  if (!twice.empty()) {
    std::string list;
    for (const std::string& name : twice) list += (list.empty() ? "" : ", ") + name;
    refuse("parameter names occur twice: " + list);
  }
  std::set<const void*> ours;
  for (const at::Tensor& parameter : owned) ours.insert(parameter.unsafeGetTensorImpl());
  const auto unnamed = std::count_if(ours.begin(), ours.end(),
                                     [&](const void* key) { return !name_of.contains(key); });
  if (unnamed > 0) {
    refuse(std::to_string(unnamed) + " of the optimizer's " + std::to_string(owned.size()) +
           " parameters have no name in named_parameters; pass model.named_parameters() of every "
           "model it trains");
  }
  NamedParameters result;
  for (const auto& [name, parameter] : named) {
    if (ours.erase(parameter.unsafeGetTensorImpl()) > 0) result.emplace_back(name, parameter);
  }
  CIRANDA_ASSERT(ours.empty());  // I15: each parameter has one name
  return result;
}

std::string obstacle_to_sharing(bool demanded, std::optional<std::string> obstacle,
                                const NamedParameters& parameters,
                                std::int64_t auto_parameters_min) {
  std::int64_t count = 0;
  for (const auto& [name, parameter] : parameters) {
    count += parameter.numel();
    if (obstacle) continue;
    if (const auto why = obstacle_of(parameter)) obstacle = "parameter '" + name + "' " + *why;
  }
  if (demanded || obstacle) return obstacle.value_or("");
  if (default_world()->engine()->backend_choice().cpu != BackendId::kNative) {
    return "CIRANDA_CPU_OPERATIONS chose another backend, which cannot share the step";
  }
  if (count < auto_parameters_min) {
    return std::to_string(count) + " parameters are too few to gain from a shared step";
  }
  return "";
}

namespace {

std::string first_obstacle(const std::vector<std::string>& by_rank, const Group& members) {
  CIRANDA_ASSERT(by_rank.size() == members.ranks.size());  // I16: every member is heard
  const auto first = std::find_if(by_rank.begin(), by_rank.end(),
                                  [](const std::string& line) { return !line.empty(); });
  if (first == by_rank.end()) return "";
  if (first->starts_with("on rank ")) return *first;  // the ranks agreed on it before
  const bool alike = std::all_of(by_rank.begin(), by_rank.end(),
                                 [&](const std::string& line) { return line == *first; });
  const Rank rank = members.ranks[static_cast<std::size_t>(first - by_rank.begin())];
  return alike ? *first : "on rank " + std::to_string(rank) + " " + *first;
}

}  // namespace

// Gathers by sums, to which ranks that have joined add zeros.
std::vector<std::string> texts_of_ranks(const Communicator& among, const std::string& mine,
                                        const std::string& name, const Engine::Look& look) {
  const auto own = static_cast<std::size_t>(among.group->index_of(among.engine->rank()));
  const at::Tensor sizes = at::zeros({among.group->size()}, c10::ScalarType::Long);
  std::span<std::int64_t> size_of(sizes.mutable_data_ptr<std::int64_t>(),
                                  among.group->ranks.size());
  size_of[own] = static_cast<std::int64_t>(mine.size());
  allreduce(among, sizes, sizes, {.name = name + "/sizes", .op = ReduceOp::kSum}, look);
  std::vector<std::string> texts(size_of.size());
  const std::int64_t total = std::accumulate(size_of.begin(), size_of.end(), std::int64_t{0});
  if (total == 0) return texts;
  const at::Tensor bytes = at::zeros({total}, c10::ScalarType::Byte);
  auto* const all = reinterpret_cast<char*>(bytes.mutable_data_ptr<std::uint8_t>());
  std::memcpy(
      all + std::accumulate(size_of.begin(), size_of.begin() + static_cast<std::ptrdiff_t>(own),
                            std::int64_t{0}),
      mine.data(), mine.size());
  allreduce(among, bytes, bytes, {.name = name, .op = ReduceOp::kSum}, look);
  const char* next = all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank].assign(next, static_cast<std::size_t>(size_of[rank]));
    next += size_of[rank];
  }
  return texts;
}

std::string obstacle_of_a_rank(const Communicator& among, const std::string& mine,
                               const std::string& name) {
  return first_obstacle(texts_of_ranks(among, mine, name), *among.group);
}

std::string require_agreement(const Communicator& among, const std::string& name,
                              const std::string& options, const NamedParameters& parameters,
                              const std::string& obstacle) {
  if (among.group->size() == 1) return obstacle;
  std::vector<std::string> mine = {obstacle, shared_places(parameters, obstacle.empty()),
                                   "the options " + options};
  for (const auto& [label, parameter] : parameters) mine.push_back(describe(label, parameter));
  std::vector<std::vector<std::string>> all = gather_lines(among, mine, name + "/agree");
  std::vector<std::string> obstacles;
  std::vector<std::string> places;
  for (auto& theirs : all) {
    obstacles.push_back(theirs.at(0));
    places.push_back(theirs.at(1));
    theirs.erase(theirs.begin(), theirs.begin() + 2);
  }
  std::size_t rows = 0;
  for (const auto& theirs : all) rows = std::max(rows, theirs.size());
  for (std::size_t row = 0; row < rows; ++row) {
    const auto at = [&](std::size_t rank) {
      return row < all[rank].size() ? all[rank][row] : "nothing";
    };
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (at(rank) == at(0)) continue;
      const std::string where = row == 0 ? "the options" : "parameter " + std::to_string(row - 1);
      refuse("the ranks differ in " + where + ": rank " + std::to_string(among.group->ranks[0]) +
                 " has " + at(0) + ", rank " + std::to_string(among.group->ranks[rank]) + " has " +
                 at(rank) + "; make the same model and optimizer on every rank",
             ErrorCode::kMismatch);
    }
  }
  refuse_common_places(places, *among.group);
  return first_obstacle(obstacles, *among.group);
}

}  // namespace ciranda
