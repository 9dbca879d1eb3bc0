#include "core/engine/run/group_backends.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/backend/shm/shm_backend.h"
#include "core/base/assert.h"
#include "core/transport/local/group_region.h"
#include "core/wire/pair.h"

namespace ciranda {
namespace {

std::vector<Rank> all_locals(int size) {
  std::vector<Rank> locals(static_cast<std::size_t>(size));
  std::iota(locals.begin(), locals.end(), 0);
  return locals;
}

// Returns the local ranks of this host that are among `members`, ascending.
std::vector<Rank> locals_among(const std::vector<Rank>& members, const RankContext& rank) {
  std::vector<Rank> locals;
  for (int local = 0; local < rank.mesh.size; ++local) {
    if (std::binary_search(members.begin(), members.end(), rank.global(local))) {
      locals.push_back(local);
    }
  }
  return locals;
}

// Arena memory is aligned to less. All ranks map a segment at the start of a page, so an offset
// that is aligned for one of them is aligned for all.
std::size_t aligned(std::size_t offset) {
  constexpr std::size_t kUnit = GroupRegion::kAlignment;
  return (offset + kUnit - 1) / kUnit * kUnit;
}

std::size_t region_bytes(const std::vector<Rank>& locals) {
  return GroupRegion::memory_bytes(static_cast<int>(locals.size())) + GroupRegion::kAlignment;
}

}  // namespace

GroupBackends::GroupBackends(RankContext& rank, PeerWatch& peers, std::unique_ptr<RingBackend> ring,
                             MakeContext make)
    : rank_(rank),
      peers_(peers),
      make_(std::move(make)),
      ring_(std::move(ring)),
      world_(std::make_unique<ShmBackend>(rank.control.world(), rank.bells, rank.mesh.self,
                                          all_locals(rank.mesh.size)),
             ring_.get(), make_(*rank.groups.find(kWorldGroup)), rank.options.backends) {
  CIRANDA_ASSERT((ring_ == nullptr) == rank.one_host());
}

Result<ArenaBuffer> GroupBackends::provide_region(RankContext& rank,
                                                  const std::vector<Rank>& members) {
  const std::vector<Rank> locals = locals_among(members, rank);
  if (locals.empty() || locals.front() != rank.mesh.self) return ArenaBuffer{};
  auto buffer = rank.segments.allocate(region_bytes(locals));
  if (!buffer) return buffer.error();
  // The memory may have been another group's region.
  const std::size_t counters = GroupRegion::counter_bytes(static_cast<int>(locals.size()));
  std::memset(buffer.value().data, 0, counters + GroupRegion::kAlignment);
  return buffer;
}

Result<ArenaRef> GroupBackends::provide_region_of_pair(RankContext& rank, GroupId pair) {
  const MutexLock lock(rank.pair_regions_mutex);
  const auto [at, is_new] = rank.pair_regions.try_emplace(pair);
  if (is_new) {
    const auto [from, to] = pair_of(pair);
    auto region = provide_region(rank, {std::min(from, to), std::max(from, to)});
    if (!region) {
      rank.pair_regions.erase(at);
      return region.error();
    }
    at->second = std::move(region).value();
  }
  return at->second.ref;
}

Status GroupBackends::add(const Response& response, std::shared_ptr<void> lease) {
  if (!response.changed->contains(rank_.rank())) return {};
  return add_member_of(response.changed, response, std::move(lease));
}

Status GroupBackends::add_pair(const Response& response) {
  if (others_.contains(response.group->id)) return {};
  return add_member_of(response.group, response, nullptr);
}

Status GroupBackends::add_member_of(const std::shared_ptr<const Group>& group,
                                    const Response& response, std::shared_ptr<void> lease) {
  std::vector<Rank> locals = locals_among(group->ranks, rank_);
  CIRANDA_ASSERT(!locals.empty());  // this rank is a member
  const Rank owner = locals.front();
  const Contribution* provided = contribution_of(response, rank_.global(owner));
  CIRANDA_ASSERT(provided != nullptr);  // all members contribute to it
  const auto place = peers_.resolve(owner, provided->arena, region_bytes(locals));
  if (!place) return place.error();
  if (owner != rank_.mesh.self) lease = rank_.segments.lease(owner, provided->arena);
  const std::size_t begin = aligned(static_cast<std::size_t>(provided->arena.offset)) -
                            static_cast<std::size_t>(provided->arena.offset);
  CIRANDA_ASSERT(begin < GroupRegion::kAlignment);  // region_bytes() has room for it
  const GroupRegion region(place.value() + begin, static_cast<int>(locals.size()));
  const auto self =
      static_cast<int>(std::find(locals.begin(), locals.end(), rank_.mesh.self) - locals.begin());
  auto shm = std::make_unique<ShmBackend>(region, rank_.bells, self, std::move(locals));
  RingBackend* const ring =
      rank_.members_here(*group).size() < group->ranks.size() ? ring_.get() : nullptr;
  CIRANDA_ASSERT(!others_.contains(group->id));  // I19: no number is used twice
  others_.emplace(
      group->id,
      std::make_unique<Other>(
          Other{.backends = Backends(std::move(shm), ring, make_(*group), rank_.options.backends),
                .lease = std::move(lease)}));
  return {};
}

// Operations that were agreed before finish first.
void GroupBackends::remove(GroupId id) {
  const auto found = others_.find(id);
  if (found == others_.end()) return;  // this rank is not a member
  found->second->removed = true;
  if (ring_) ring_->forget(id);
  drop_removed();
}

void GroupBackends::drop_removed() {
  std::erase_if(others_,
                [](const auto& other) { return other.second->removed && !other.second->works; });
}

void GroupBackends::start(Execution&& execution) {
  CIRANDA_ASSERT(execution.op.group != nullptr && execution.number > 0 && execution.done);
  const GroupId id = execution.op.group->id;
  if (id == kWorldGroup) return world_.start(std::move(execution));
  const auto found = others_.find(id);
  CIRANDA_ASSERT(found != others_.end());  // I19: agreed, and this rank is a member
  Other& other = *found->second;
  if (!std::exchange(other.works, true)) working_.push_back(&other);
  other.backends.start(std::move(execution));
}

bool GroupBackends::advance() {
  bool moved = ring_ && ring_->advance();
  moved = world_.advance() || moved;
  for (Other* other : working_) moved = other->backends.advance() || moved;
  bool any_removed = false;
  std::erase_if(working_, [&](Other* other) {
    CIRANDA_ASSERT(other->works);  // so drop_removed() has left it alone
    other->works = !other->backends.needs().none() || other->backends.broken() != nullptr;
    any_removed = any_removed || (!other->works && other->removed);
    return !other->works;
  });
  if (any_removed) drop_removed();
  return moved;
}

DriverNeeds GroupBackends::needs() const {
  DriverNeeds needs = world_.needs();
  if (ring_) needs.add(needs_of(*ring_));
  for (const Other* other : working_) needs.add(other->backends.needs());
  return needs;
}

const Error* GroupBackends::broken() const {
  return first_broken([this](auto fn) { each(fn); });
}

void GroupBackends::blocked_on(std::vector<Rank>& out) const {
  each([&](const auto& backends) { backends.blocked_on(out); });
}

void GroupBackends::abort(const Error& why) {
  if (ring_) ring_->abort(why);
  world_.abort(why);
  for (const auto& [id, other] : others_) other->backends.abort(why);
}

void GroupBackends::abandon() noexcept {
  static_cast<void>(ring_.release());
  world_.abandon();
  for (auto& [id, other] : others_) other->backends.abandon();
}

}  // namespace ciranda
