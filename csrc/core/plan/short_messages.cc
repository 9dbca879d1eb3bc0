#include "core/plan/short_messages.h"

#include <bit>

#include "core/base/assert.h"

namespace ciranda {
namespace {

Piece at(Space place, Range range) {
  return {place, range.begin, range.bytes};
}

int log2_up(int n) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1)));
}

// Returns the largest power of two that is at most `participants`.
int doubling(int participants) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(participants)));
}

int doubling_rounds(int participants) {
  const int core = doubling(participants);
  return log2_up(core) + (core < participants ? 2 : 0);
}

// In recursive doubling the first `core` participants, a power of two, exchange in pairs ever
// farther apart. Participant core + i first hands its input to participant i, and gets the result
// last.
struct Fold {
  int self;
  int core;
  int participants;

  bool folds() const { return core < participants; }
  bool is_folded() const { return self >= core; }
  // Returns true if the fold has another side: other().
  bool has_other() const { return is_folded() || self + core < participants; }
  int other() const { return is_folded() ? self - core : self + core; }
};

Step fold_step(const Fold& fold, const Piece& input, const Piece& output, std::uint32_t chunks) {
  if (!fold.has_other()) return {};
  if (fold.is_folded()) {
    return {.send = {.to = fold.other(), .piece = input, .after_chunks = chunks}};
  }
  return {.receive = {.from = fold.other(),
                      .piece = output,
                      .apply = Apply::kReduceOwnFirst,
                      .own = input,
                      .after_chunks = chunks}};
}

Step unfold_step(const Fold& fold, const Piece& output, std::uint32_t after_receives) {
  if (!fold.has_other()) return {};
  if (fold.is_folded()) return {.receive = {.from = fold.other(), .piece = output}};
  return {.send = {.to = fold.other(), .piece = output, .after_receives = after_receives}};
}

Step doubling_step(const Layout& layout, int channel, const Turn& turn) {
  const int n = layout.collective.participants;
  const int self = layout.self;
  const Fold fold{.self = self, .core = doubling(n), .participants = n};
  const Range range = layout.segment(layout.whole(), channel, turn.segment);
  const Piece input = at(Space::kInput, range);
  const Piece output = at(Space::kOutput, range);
  const std::uint32_t chunks = turn.segment + 1;

  if (n == 1) {
    return {.send = {.to = self, .piece = input, .after_chunks = chunks},
            .receive = {.from = self, .piece = output, .completes = true}};
  }
  if (fold.folds() && turn.round == 0) return fold_step(fold, input, output, chunks);
  if (fold.folds() && turn.round == doubling_rounds(n) - 1) {
    return unfold_step(fold, output, turn.round_ago);
  }
  if (fold.is_folded()) return {};
  const int exchange = turn.round - (fold.folds() ? 1 : 0);
  const int partner = self ^ (1 << exchange);
  const bool untouched = exchange == 0 && !fold.has_other();
  const Piece own = untouched ? input : output;
  return {
      .send = {.to = partner,
               .piece = own,
               .after_receives = turn.round_ago,
               .after_chunks = chunks},
      .receive = {.from = partner,
                  .piece = output,
                  .apply = self < partner ? Apply::kReduceOwnFirst : Apply::kReduceReceivedFirst,
                  .own = own,
                  .completes = 2 << exchange == fold.core,
                  .after_sends = turn.index + 1,
                  .after_chunks = chunks}};
}

Step binomial_step(const Layout& layout, int channel, const Turn& turn) {
  const int n = layout.collective.participants;
  const int root = layout.collective.root;
  const int place = (layout.self - root + n) % n;  // counted from the root
  const Range range = layout.segment(layout.whole(), channel, turn.segment);
  const Piece source = at(place == 0 ? Space::kInput : Space::kOutput, range);
  const Piece output = at(Space::kOutput, range);
  const int reached = 1 << turn.round;

  Step step;
  if (reached >= n) {  // last round: the root copies its own input
    if (place != 0) return step;
    step.send = {.to = layout.self, .piece = source};
    step.receive = {.from = layout.self, .piece = output};
  } else if (place < reached) {
    if (place + reached >= n) return step;
    step.send = {
        .to = (layout.self + reached) % n, .piece = source, .after_receives = turn.round_ago};
  } else if (place < 2 * reached) {
    step.receive = {.from = (layout.self - reached + n) % n, .piece = output};
  }
  return step;
}

// The participant's own part goes last, without a message.
Step direct_step(const Layout& layout, int channel, const Turn& turn) {
  const Collective& what = layout.collective;
  const int n = what.participants;
  const int to = (layout.self + turn.round + 1) % n;
  const int from = (layout.self - turn.round - 1 + n) % n;
  const auto part = [&](std::size_t i) {
    return layout.segment({what.offsets[i], what.offsets[i + 1] - what.offsets[i]}, channel,
                          turn.segment);
  };
  Range sent, received;
  if (what.kind == OpKind::kAllgather) {
    sent = part(static_cast<std::size_t>(layout.self));
    sent.begin -= layout.block(layout.self).begin;
    received = part(static_cast<std::size_t>(from));
  } else {
    const auto row = static_cast<std::size_t>(n) + 1;
    const std::size_t arriving =
        static_cast<std::size_t>(from) * row + static_cast<std::size_t>(layout.self);
    sent = part(static_cast<std::size_t>(layout.self) * row + static_cast<std::size_t>(to));
    received = part(arriving);
    received.begin += layout.received[static_cast<std::size_t>(from)];
    received.begin -= what.offsets[arriving];
  }
  return {.send = {.to = to, .piece = at(Space::kInput, sent)},
          .receive = {.from = from, .piece = at(Space::kOutput, received)}};
}

Step dissemination_step(const Layout& layout, const Turn& turn) {
  const int n = layout.collective.participants;
  const int distance = 1 << turn.round;
  return {.send = {.to = (layout.self + distance) % n,
                   .piece = {Space::kScratch, 0, 1},
                   .after_receives = turn.round_ago},
          .receive = {.from = (layout.self - distance + n) % n, .piece = {Space::kScratch, 1, 1}}};
}

}  // namespace

Extent short_extent(const Layout& layout) {
  const int n = layout.collective.participants;
  const auto rounds = [](int count) { return static_cast<std::uint32_t>(count); };
  switch (layout.collective.kind) {
    case OpKind::kAllreduce:
      return {.rounds = n == 1 ? 1 : rounds(doubling_rounds(n)), .chunks = 1};
    case OpKind::kBroadcast:
      return {.rounds = rounds(log2_up(n) + 1)};
    case OpKind::kAllgather:
    case OpKind::kAlltoall:
      return {.rounds = rounds(n)};
    case OpKind::kBarrier:
      return {.rounds = rounds(log2_up(n)), .scratch_bytes = 2};
    default:
      break;
  }
  CIRANDA_ASSERT(false);  // reducescatter has only the ring; other kinds are no collectives
  return {};
}

Step short_step(const Layout& layout, int channel, std::uint32_t index) {
  const Turn turn = layout.turn(index);
  switch (layout.collective.kind) {
    case OpKind::kAllreduce:
      return doubling_step(layout, channel, turn);
    case OpKind::kBroadcast:
      return binomial_step(layout, channel, turn);
    case OpKind::kBarrier:
      return dissemination_step(layout, turn);
    default:
      return direct_step(layout, channel, turn);
  }
}

Piece short_chunk(const Layout& layout, int channel, std::uint32_t index) {
  return at(Space::kInput, layout.segment(layout.whole(), channel, index));
}

}  // namespace ciranda
