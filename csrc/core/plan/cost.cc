#include "core/plan/cost.h"

#include <algorithm>
#include <bit>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// bytes * 1000 / rate, without overflow for any payload (limits: types.h).
std::uint64_t ns(std::uint64_t bytes, std::uint64_t bytes_per_us) {
  CIRANDA_ASSERT(bytes_per_us >= 1);
  return bytes / bytes_per_us * 1000 + bytes % bytes_per_us * 1000 / bytes_per_us;
}

std::uint64_t moved_bytes(const Collective& collective) {
  const std::vector<std::uint64_t>& offsets = collective.offsets;
  const auto row = static_cast<std::size_t>(collective.participants) + 1;
  if (offsets.empty()) return collective.payload_bytes;
  std::uint64_t most = 0;
  for (std::size_t begin = 0; begin < offsets.size(); begin += row) {
    most = std::max(most, offsets[begin + row - 1] - offsets[begin]);
  }
  return most;
}

}  // namespace

std::uint64_t predict_ns(const Collective& collective, Algorithm algorithm, const LinkSpeed& link,
                         const Grain& grain) {
  const auto n = static_cast<std::uint64_t>(collective.participants);
  if (n == 1) return 0;
  const std::uint64_t bytes = moved_bytes(collective);
  const std::uint64_t a = link.latency_ns;
  const auto moving_ns = [&](std::uint64_t of_payload) {
    return ns(of_payload / collective.narrowing, link.bytes_per_us);
  };
  const std::uint64_t move = moving_ns(bytes);
  const std::uint64_t reduce = ns(bytes, link.reduced_bytes_per_us);
  const std::uint64_t others_move = moving_ns(bytes - bytes / n);
  const std::uint64_t others_reduce = ns(bytes - bytes / n, link.reduced_bytes_per_us);
  const auto log2_down = static_cast<std::uint64_t>(std::bit_width(n) - 1);
  const auto log2_up = static_cast<std::uint64_t>(std::bit_width(n - 1));
  const bool ring = algorithm == Algorithm::kRing;
  switch (collective.kind) {
    case OpKind::kAllreduce:
      if (ring) return 2 * (n - 1) * a + 2 * others_move + others_reduce;
      if (log2_up == log2_down) return log2_down * (a + move + reduce);
      return log2_down * (a + move + reduce) + 2 * (a + move) + reduce;
    case OpKind::kReducescatter:
      return (n - 1) * a + others_move + others_reduce;
    case OpKind::kBroadcast: {
      if (!ring) return log2_up * (a + move);
      const auto channels = static_cast<std::uint64_t>(grain.channels);
      const std::uint64_t segment_bytes = std::min(bytes, grain.segment_bytes * channels);
      return (n - 1) * a + move + (n - 2) * moving_ns(segment_bytes);
    }
    case OpKind::kAllgather:
      return (ring ? (n - 1) * a : a) + others_move;
    case OpKind::kAlltoall:
      return a + others_move;
    case OpKind::kBarrier:
      return log2_up * a;
    default:
      break;
  }
  CIRANDA_ASSERT(false);  // not a collective
  return 0;
}

Algorithm choose_algorithm(const Collective& collective, const LinkSpeed& link,
                           const Grain& grain) {
  const auto predict = [&](Algorithm algorithm) {
    return predict_ns(collective, algorithm, link, grain);
  };
  bool short_wins = true;
  switch (collective.kind) {
    case OpKind::kReducescatter:
      short_wins = false;
      break;
    case OpKind::kAllgather:
      short_wins = link.latency_ns * static_cast<std::uint64_t>(collective.participants - 1) >
                   ns(moved_bytes(collective), link.bytes_per_us);
      break;
    case OpKind::kAllreduce:
    case OpKind::kBroadcast:
      short_wins = predict(Algorithm::kShort) <= predict(Algorithm::kRing);
      break;
    default:
      break;
  }
  return short_wins ? Algorithm::kShort : Algorithm::kRing;
}

}  // namespace ciranda
