#include "core/ps/decide/decided_pushes.h"

#include <algorithm>
#include <bit>

namespace ciranda::ps {

void DecidedPushes::skip_to(Worker worker, std::uint64_t seq) {
  Member& member = at(worker);
  member.latest = std::max(member.latest, seq);
}

void DecidedPushes::decide(Worker worker, std::uint64_t seq, Outcome outcome) {
  Member& member = at(worker);
  CIRANDA_ASSERT(seq == member.latest + 1);  // I21
  member.latest = seq;
  member.pushes += outcome == Outcome::kDuplicate ? 0 : 1;
  count(outcome);
}

void DecidedPushes::count_staleness(std::uint64_t staleness) {
  const std::size_t bin = staleness < 4 ? static_cast<std::size_t>(staleness)
                                        : static_cast<std::size_t>(std::bit_width(staleness)) + 1;
  ++counters_.staleness[std::min(bin, counters_.staleness.size() - 1)];
}

void DecidedPushes::repeat(const Push& push, Outcome outcome) {
  skip_to(push.worker, push.seq);
  (void)parts_.add(push.of);
  at(push.worker).pushes += outcome == Outcome::kDuplicate ? 0 : 1;
  count(outcome);
}

void DecidedPushes::save(Writer& out) const {
  for (const std::uint64_t outcomes : counters_.outcomes) out.varint(outcomes);
  parts_.save(out);
}

void DecidedPushes::restore(Reader& in) {
  for (std::uint64_t& outcomes : counters_.outcomes) {
    outcomes = in.varint("shard.outcomes", UINT64_MAX);
  }
  parts_.restore(in);
}

}  // namespace ciranda::ps
