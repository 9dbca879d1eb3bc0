#include "core/plan/ring.h"

#include <algorithm>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// Returns the participant `steps` places further around the ring; `steps` >= -participants - 1.
int around(const Layout& layout, int from, int steps) {
  const int n = layout.collective.participants;
  return (from + steps + 2 * n) % n;
}

// Returns the block that leaves in `round`. The block of the next round arrives in it.
int block_of(const Layout& layout, int round) {
  const int first =
      layout.collective.kind == OpKind::kReducescatter ? layout.self - 1 : layout.self;
  return around(layout, first, -(round % layout.collective.participants));
}

// allgather's input and reducescatter's output hold only this participant's part.
Piece own_part(const Layout& layout, Space place, Range range) {
  return {place, range.begin - layout.block(layout.self).begin, range.bytes};
}

Piece input(const Layout& layout, Range range) {
  if (layout.collective.kind == OpKind::kAllgather) return own_part(layout, Space::kInput, range);
  return {Space::kInput, range.begin, range.bytes};
}

Piece output(const Layout& layout, Range range) {
  if (layout.collective.kind == OpKind::kReducescatter) {
    return own_part(layout, Space::kOutput, range);
  }
  return {Space::kOutput, range.begin, range.bytes};
}

// Two scratch blocks take turns by round. A segment has the same place in each, whatever its
// length.
Piece scratch(const Layout& layout, Range range, int round, std::uint32_t segment) {
  const std::uint64_t place = static_cast<std::uint64_t>(round % 2) * layout.segments + segment;
  return {Space::kScratch, place * layout.segment_bytes, range.bytes};
}

// Copies this participant's own part, which no peer sends, from the input to the output.
Step keep(const Layout& layout, Range segment, std::uint32_t after_chunks) {
  return {
      .send = {.to = layout.self, .piece = input(layout, segment), .after_chunks = after_chunks},
      .receive = {.from = layout.self,
                  .piece = output(layout, segment),
                  .completes = reduces(layout.collective.kind)}};
}

Step chain_step(const Layout& layout, int channel, std::uint32_t index) {
  const Collective& what = layout.collective;
  const Turn turn = layout.turn(index);
  const Range range = layout.segment(layout.whole(), channel, turn.segment);
  const bool is_root = layout.self == what.root;
  if (turn.round == 1) return is_root ? keep(layout, range, 0) : Step{};
  const int next = around(layout, layout.self, 1);
  Step step;
  if (next != what.root) {
    const Space place = is_root ? Space::kInput : Space::kOutput;
    step.send = {.to = next,
                 .piece = {place, range.begin, range.bytes},
                 .after_receives = is_root ? 0 : index + 1};
  }
  if (!is_root) {
    step.receive = {.from = around(layout, layout.self, -1), .piece = output(layout, range)};
  }
  return step;
}

}  // namespace

Extent ring_extent(const Layout& layout) {
  const auto n = static_cast<std::uint32_t>(layout.collective.participants);
  const std::uint64_t scratch_rounds = n < 3 ? 0 : std::min(2u, n - 2);
  switch (layout.collective.kind) {
    case OpKind::kAllreduce:
      return {.rounds = std::max(1u, 2 * (n - 1)), .chunks = n};
    case OpKind::kReducescatter:
      return {.rounds = std::max(1u, n - 1),
              .chunks = n,
              .scratch_bytes = scratch_rounds * layout.segments * layout.segment_bytes};
    case OpKind::kAllgather:
      return {.rounds = n};
    case OpKind::kBroadcast:
      return {.rounds = 2};
    default:
      CIRANDA_ASSERT(false);  // alltoall and barrier have only the short form
      return {};
  }
}

Step ring_step(const Layout& layout, int channel, std::uint32_t index) {
  const OpKind kind = layout.collective.kind;
  if (kind == OpKind::kBroadcast) return chain_step(layout, channel, index);

  const int n = layout.collective.participants;
  const Turn turn = layout.turn(index);
  const int round = turn.round;
  const auto range_in = [&](int of_round) {
    return layout.segment(layout.block(block_of(layout, of_round)), channel, turn.segment);
  };
  const Range sent = range_in(round);
  if (n == 1) return keep(layout, sent, reduces(kind) ? index + 1 : 0);
  if (kind == OpKind::kAllgather && round == n - 1) {
    return keep(layout, layout.segment(layout.block(layout.self), channel, turn.segment), 0);
  }
  const Range received = range_in(round + 1);
  const bool reducing = reduces(kind) && round < n - 1;
  const bool completes = reducing && round == n - 2;
  const bool to_scratch = kind == OpKind::kReducescatter && !completes;

  Step step;
  step.send = {.to = around(layout, layout.self, 1),
               .piece = output(layout, sent),
               .after_receives = turn.round_ago};
  if (round == 0) {
    step.send.piece = input(layout, sent);
    step.send.after_chunks = reducing ? index + 1 : 0;
  } else if (kind == OpKind::kReducescatter) {
    step.send.piece = scratch(layout, sent, round - 1, turn.segment);
  }
  step.receive = {.from = around(layout, layout.self, -1),
                  .piece = to_scratch ? scratch(layout, received, round, turn.segment)
                                      : output(layout, received),
                  .completes = completes,
                  // The old bytes in the scratch arrived two rounds before and leave one round
                  // before.
                  .after_sends = to_scratch && round >= 2 ? turn.round_ago : 0};
  if (reducing) {
    step.receive.apply = Apply::kReduceReceivedFirst;
    step.receive.own = input(layout, received);
    step.receive.after_chunks = index + 1 + layout.segments;
  }
  return step;
}

Piece ring_chunk(const Layout& layout, int channel, std::uint32_t index) {
  const Turn turn = layout.turn(index);
  const Range block = layout.block(block_of(layout, turn.round));
  return input(layout, layout.segment(block, channel, turn.segment));
}

}  // namespace ciranda
