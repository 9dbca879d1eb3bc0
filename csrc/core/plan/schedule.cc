#include "core/plan/schedule.h"

#include <algorithm>

#include "core/base/assert.h"
#include "core/plan/ring.h"
#include "core/plan/short_messages.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kUnit = 64;  // a cache line, and a whole number of elements of any type
constexpr std::uint64_t kSegmentsMax = 65536;  // of a stripe; larger stripes get longer segments
static_assert(2ull * kRanksMax * kSegmentsMax <= UINT32_MAX, "steps are counted in 32 bits");

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}

// Returns piece `index` of `pieces`, which are as equal as whole units allow.
Range cut(Range range, std::uint64_t pieces, std::uint64_t index) {
  CIRANDA_ASSERT(index < pieces);
  const std::uint64_t units = divide_up(range.bytes, kUnit);
  const auto at = [&](std::uint64_t i) {
    return std::min(range.bytes, units * i / pieces * kUnit);
  };
  return {range.begin + at(index), at(index + 1) - at(index)};
}

std::uint64_t longest_cut(std::uint64_t bytes, std::uint64_t pieces) {
  return divide_up(divide_up(bytes, kUnit), pieces) * kUnit;
}

std::uint64_t longest_block(const Collective& collective, Algorithm algorithm) {
  const auto participants = static_cast<std::size_t>(collective.participants);
  if (collective.offsets.empty()) {
    const bool shared = collective.kind == OpKind::kAllreduce && algorithm == Algorithm::kRing;
    return longest_cut(collective.payload_bytes, shared ? participants : 1);
  }
  std::uint64_t longest = 0;
  for (std::size_t row = 0; row < collective.offsets.size(); row += participants + 1) {
    for (std::size_t i = row; i < row + participants; ++i) {
      longest = std::max(longest, collective.offsets[i + 1] - collective.offsets[i]);
    }
  }
  return longest;
}

std::vector<std::uint64_t> receive_offsets(const Collective& collective, int self) {
  std::vector<std::uint64_t> begins;
  const auto row = static_cast<std::size_t>(collective.participants) + 1;
  std::uint64_t at = 0;
  for (auto part = static_cast<std::size_t>(self); part < collective.offsets.size(); part += row) {
    begins.push_back(at);
    at += collective.offsets[part + 1] - collective.offsets[part];
  }
  return begins;
}

std::size_t offsets_wanted(const Collective& collective) {
  const auto row = static_cast<std::size_t>(collective.participants) + 1;
  switch (collective.kind) {
    case OpKind::kAllgather:
    case OpKind::kReducescatter:
      return row;
    case OpKind::kAlltoall:
      return row * (row - 1);
    default:
      return 0;
  }
}

}  // namespace

Range Layout::block(int index) const {
  CIRANDA_ASSERT(index >= 0 && index < collective.participants);
  const auto i = static_cast<std::size_t>(index);
  if (collective.kind == OpKind::kAllreduce) {
    return cut(whole(), static_cast<std::uint64_t>(collective.participants), i);
  }
  CIRANDA_ASSERT(i + 1 < collective.offsets.size());
  return {collective.offsets[i], collective.offsets[i + 1] - collective.offsets[i]};
}

Range Layout::stripe(Range block, int channel) const {
  return cut(block, static_cast<std::uint64_t>(channels), static_cast<std::uint64_t>(channel));
}

Range Layout::segment(Range block, int channel, std::uint32_t index) const {
  return cut(stripe(block, channel), segments, index);
}

Turn Layout::turn(std::uint32_t index) const {
  return {.index = index,
          .round = static_cast<int>(index / segments),
          .segment = index % segments,
          .round_ago = index < segments ? 0 : index + 1 - segments};
}

Schedule::Schedule(Collective collective, int self, Algorithm algorithm, Grain grain)
    : layout_{.collective = std::move(collective), .self = self}, algorithm_(algorithm) {
  const Collective& what = layout_.collective;
  CIRANDA_ASSERT(self >= 0 && self < what.participants);
  CIRANDA_ASSERT(what.offsets.size() == offsets_wanted(what));
  CIRANDA_ASSERT(grain.channels >= 1 && grain.stripe_bytes_min >= 1);
  CIRANDA_ASSERT(grain.segment_bytes >= kUnit);
  CIRANDA_ASSERT(what.narrowing >= 1 && what.payload_bytes % what.narrowing == 0);
  const bool ring = algorithm == Algorithm::kRing;

  const std::uint64_t longest = longest_block(what, algorithm);
  const auto channels_max = static_cast<std::uint64_t>(grain.channels);
  layout_.channels = static_cast<int>(
      std::clamp<std::uint64_t>(longest / grain.stripe_bytes_min, 1, channels_max));
  const std::uint64_t stripe = longest_cut(longest, static_cast<std::uint64_t>(layout_.channels));
  layout_.segments = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      divide_up(stripe, grain.segment_bytes / kUnit * kUnit), 1, kSegmentsMax));
  layout_.segment_bytes = longest_cut(stripe, layout_.segments);
  if (what.kind == OpKind::kAlltoall) layout_.received = receive_offsets(what, self);

  if (longest == 0 && what.kind != OpKind::kBarrier) return;  // nothing to move: no steps
  const Extent extent = ring ? ring_extent(layout_) : short_extent(layout_);
  steps_ = extent.rounds * layout_.segments;
  chunks_ = extent.chunks * layout_.segments;
  scratch_bytes_ = extent.scratch_bytes;
}

Step Schedule::step(int channel, std::uint32_t index) const {
  CIRANDA_ASSERT(channel >= 0 && channel < layout_.channels && index < steps_);
  const bool ring = algorithm_ == Algorithm::kRing;
  return ring ? ring_step(layout_, channel, index) : short_step(layout_, channel, index);
}

bool exchanges(const Step& step) {
  const Send& send = step.send;
  const Piece& own = step.receive.own;
  return step.receive.apply != Apply::kCopy && send.to == step.receive.from &&
         send.piece.space == own.space && send.piece.begin == own.begin &&
         send.piece.bytes == own.bytes;
}

Piece Schedule::chunk(int channel, std::uint32_t index) const {
  CIRANDA_ASSERT(channel >= 0 && channel < layout_.channels && index < chunks_);
  const bool ring = algorithm_ == Algorithm::kRing;
  return ring ? ring_chunk(layout_, channel, index) : short_chunk(layout_, channel, index);
}

namespace {

std::string words(const Piece& piece) {
  constexpr const char* kPlaces[] = {"in", "out", "scratch"};
  return std::string(kPlaces[static_cast<std::size_t>(piece.space)]) + "[" +
         std::to_string(piece.begin) + "," + std::to_string(piece.begin + piece.bytes) + ")";
}

std::string after(const char* what, std::uint32_t count) {
  return count == 0 ? "" : std::string(", ") + what + ">=" + std::to_string(count);
}

std::string words(const Send& send) {
  if (send.piece.bytes == 0) return "-";
  return words(send.piece) + " to " + std::to_string(send.to) +
         after("receives", send.after_receives) + after("chunks", send.after_chunks);
}

std::string words(const Receive& receive) {
  if (receive.piece.bytes == 0) return "-";
  std::string value = "from " + std::to_string(receive.from);
  if (receive.apply == Apply::kReduceOwnFirst) value = words(receive.own) + " + " + value;
  if (receive.apply == Apply::kReduceReceivedFirst) value += " + " + words(receive.own);
  return words(receive.piece) + " = " + value + (receive.completes ? ", complete" : "") +
         after("sends", receive.after_sends) + after("chunks", receive.after_chunks);
}

}  // namespace

std::string to_string(const Schedule& schedule) {
  const Layout& layout = schedule.layout();
  std::string text(op_kind_name(layout.collective.kind));
  text += schedule.algorithm() == Algorithm::kRing ? ", ring" : ", short";
  text += ", participant " + std::to_string(layout.self) + " of " +
          std::to_string(layout.collective.participants);
  if (layout.collective.narrowing > 1) {
    text += ", messages of 1/" + std::to_string(layout.collective.narrowing) + " the bytes";
  }
  text += "\n";
  for (int channel = 0; channel < schedule.channels(); ++channel) {
    for (std::uint32_t i = 0; i < schedule.steps(); ++i) {
      const Step step = schedule.step(channel, i);
      text += std::to_string(channel) + "." + std::to_string(i) + " | " + words(step.send) + " | " +
              words(step.receive) + "\n";
    }
  }
  return text;
}

}  // namespace ciranda
