#include "core/backend/ring/ring_backend.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// A staged operation has at most 2^kRoundBits rounds, each with its own number.
constexpr int kRoundBits = 20;

Collective collective_of(const Execution& execution, std::uint64_t payload_bytes, int ranks) {
  const FusedOp& op = execution.op;
  Collective what{.kind = op.kind, .participants = ranks, .offsets = execution.offsets};
  if (what.offsets.empty()) what.payload_bytes = payload_bytes;
  if (op.kind == OpKind::kBroadcast) what.root = op.root;
  if (op.wire_dtype) what.narrowing = dtype_bytes(op.dtype) / dtype_bytes(*op.wire_dtype);
  return what;
}

Grain grain_of(const FusedOp& op, const RingOptions& options) {
  Grain grain = options.grain;
  if (op.streams > 0) grain.channels = std::min<int>(op.streams, options.streams_max);
  return grain;
}

// Returns bytes [begin, begin + bytes) of the buffers, counted as if these lay side by side.
Buffers part_of(const Buffers& buffers, std::uint64_t begin, std::uint64_t bytes) {
  Buffers parts;
  std::uint64_t at = 0;
  for (const Buffer& buffer : buffers) {
    const std::uint64_t from = std::clamp(begin, at, at + buffer.in_bytes) - at;
    const std::uint64_t to = std::clamp(begin + bytes, at, at + buffer.in_bytes) - at;
    at += buffer.in_bytes;
    if (from < to) parts.push_back({buffer.in + from, buffer.out + from, to - from, to - from});
  }
  return parts;
}

}  // namespace

RingBackend::RingBackend(RemoteMesh& mesh, ControlBlock control, PeerBells bells, int local_rank,
                         HostMemory memory, RingOptions options)
    : mesh_(mesh),
      control_(control),
      bells_(std::move(bells)),
      local_rank_(local_rank),
      memory_(std::move(memory)),
      options_(options),
      exchange_(mesh.links, options.authenticates) {
  CIRANDA_ASSERT(mesh_.local_ranks()[static_cast<std::size_t>(local_rank_)] == mesh_.self);
  CIRANDA_ASSERT(options_.stage_bytes_max > 0 && options_.stage_bytes_max % 64 == 0);
}

void RingBackend::start(Execution&& execution) {
  const bool has_copies =
      execution.op.kind == OpKind::kAllreduce || execution.op.kind == OpKind::kBroadcast;
  const std::shared_ptr<const RingMembers>& members = members_of(*execution.op.group);
  const bool staged =
      has_copies && !execution.op.in_arena && members->hosts.size() < members->flat.size();
  std::uint64_t number = execution.number << kRoundBits;
  if (!staged) return add(std::move(execution), members, number, /*staged=*/false);
  const std::uint64_t payload_bytes = bytes_of(execution.buffers);
  for (std::uint64_t begin = 0;; begin += options_.stage_bytes_max, ++number) {
    const std::uint64_t bytes = std::min(options_.stage_bytes_max, payload_bytes - begin);
    const bool last = begin + bytes == payload_bytes;
    CIRANDA_ASSERT(number >> kRoundBits == execution.number);  // no more rounds than numbers
    Execution round{.op = execution.op, .buffers = part_of(execution.buffers, begin, bytes)};
    round.done = last ? std::move(execution.done) : [](const Status&, const auto&) {};
    add(std::move(round), members, number, /*staged=*/true);
    if (last) return;
  }
}

const std::shared_ptr<const RingMembers>& RingBackend::members_of(const Group& group) {
  std::shared_ptr<const RingMembers>& members = members_[group.id];
  if (!members) members = std::make_shared<RingMembers>(group, mesh_.self, mesh_.local_ranks());
  return members;
}

void RingBackend::add(Execution execution, const std::shared_ptr<const RingMembers>& members,
                      std::uint64_t number, bool staged) {
  // Numbers rise, so that one number tells the peers how far this rank is.
  CIRANDA_ASSERT(number > crossed_);
  CIRANDA_ASSERT(operations_.empty() || number > operations_.back().number());
  const bool in_arena = execution.op.in_arena;
  const std::uint64_t payload_bytes =
      in_arena ? execution.arena_bytes : bytes_of(execution.buffers);
  const Grain grain = grain_of(execution.op, options_);
  HierarchicalPlan plan(collective_of(execution, payload_bytes, members->size()),
                        in_arena || staged ? members->hosts : members->flat, members->self,
                        options_.link, grain);
  RingOperation& op =
      operations_.emplace_back(std::move(execution), std::move(plan), members, number, staged);
  exchange_.call_peers(op);
  op.take_data();
}

bool RingBackend::advance() {
  bool moved = take_links();
  while (!operations_.empty() && !broken_) {
    RingOperation& op = operations_.front();
    if (op.waits_for_stages()) moved |= advance_stage(op);
    if (op.waits_for_stages() || broken_) break;
    moved |= advance_channels(op);
    if (broken_ || !has_crossed(op) || !all_crossed(op)) break;
    finish_front();
    moved = true;
  }
  return moved;
}

bool RingBackend::advance_stage(RingOperation& op) {
  const bool moved = fill_stage(op);
  if (broken_) return true;
  std::vector<std::byte*> stages;
  int root = kNobody;
  const RingMembers& members = op.members();
  for (std::size_t place = 0; place < members.here.size(); ++place) {
    const RankFlags& flags = control_.flags(members.locals[place]);
    if (flags.staged.load(std::memory_order_acquire) < op.number()) return moved;
    const ArenaRef ref{.segment = flags.stage_segment.load(std::memory_order_relaxed),
                       .offset = flags.stage_offset.load(std::memory_order_relaxed)};
    auto stage = memory_.resolve(members.locals[place], ref, op.private_bytes());
    if (!stage) return fail(stage.error());
    if (stage.value() == nullptr) return moved;
    stages.push_back(stage.value());
    if (members.here[place] == op.op().root) root = static_cast<int>(place);
  }
  op.take_stages(std::move(stages), root);
  return true;
}

// The stage is free, because the operation before is done on all its members on this host.
bool RingBackend::fill_stage(const RingOperation& op) {
  RankFlags& own = control_.flags(local_rank_);
  if (own.staged.load(std::memory_order_relaxed) == op.number()) return false;
  if (stage_.data == nullptr || stage_.bytes < op.private_bytes()) {
    auto stage = memory_.allocate(std::bit_ceil(op.private_bytes()));
    if (!stage) return fail(stage.error());
    stage_ = std::move(stage).value();
  }
  CIRANDA_ASSERT(stage_.data != nullptr && stage_.bytes >= op.private_bytes());
  const FusedOp& what = op.op();
  if (what.kind != OpKind::kBroadcast || what.root == op.members().self)
    op.copy_to_stage(stage_.data);
  own.stage_segment.store(stage_.ref.segment, std::memory_order_relaxed);
  own.stage_offset.store(stage_.ref.offset, std::memory_order_relaxed);
  own.staged.store(op.number(), std::memory_order_release);
  bells_.ring_those(op.members().locals);
  return true;
}

bool RingBackend::advance_channels(RingOperation& op) {
  if (has_crossed(op)) return false;
  CIRANDA_ASSERT(!op.waits_for_stages());
  bool moved = false;
  for (RingChannel& channel : op.channels()) {
    const auto progress = exchange_.advance(op, channel);
    if (!progress) return fail(progress.error());
    moved |= progress.value();
  }
  if (!op.is_through()) return moved;
  crossed_ = op.number();
  control_.flags(local_rank_).crossed.store(crossed_, std::memory_order_release);
  bells_.ring_those(op.members().locals);
  return true;
}

// The other members on the host read this rank's memory and write to it until their channels are
// done.
bool RingBackend::all_crossed(const RingOperation& op) const {
  if (!op.is_shared()) return true;
  for (const int local : op.members().locals) {
    if (control_.flags(local).crossed.load(std::memory_order_acquire) < op.number()) return false;
  }
  return true;
}

void RingBackend::finish_front() {
  CIRANDA_ASSERT(crossed_ == operations_.front().number());  // one after the other
  const Done done = operations_.front().finish();
  operations_.pop_front();
  done({}, nullptr);
}

void RingBackend::blocked_on(std::vector<Rank>& out) const {
  if (operations_.empty()) return;
  const RingOperation& op = operations_.front();
  if (!op.waits_for_stages() && !has_crossed(op)) return;
  for (const int local : op.members().locals) {
    const RankFlags& flags = control_.flags(local);
    const auto& counter = has_crossed(op) ? flags.crossed : flags.staged;
    const bool behind = counter.load(std::memory_order_acquire) < op.number();
    if (local != local_rank_ && behind) out.push_back(local);
  }
}

void RingBackend::abort(const Error& why) {
  for (RingOperation& op : std::exchange(operations_, {})) op.fail(why);
}

void RingBackend::watched(std::vector<Watched>& out) const {
  if (operations_.empty()) return;
  mesh_.links.watched(out);
  const RingOperation& op = operations_.front();
  if (!op.waits_for_stages() && !has_crossed(op)) exchange_.watched(op, out);
}

bool RingBackend::take_links() {
  auto taken = mesh_.links.advance();
  return taken ? taken.value() : fail(taken.error());
}

bool RingBackend::fail(Error why) {
  broken_ = std::move(why);
  return true;
}

}  // namespace ciranda
