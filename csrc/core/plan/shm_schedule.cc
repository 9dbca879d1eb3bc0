#include "core/plan/shm_schedule.h"

#include <algorithm>

#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kSliceUnit = 64;  // slices and rounds end on cache lines (and on elements)

std::uint64_t whole_parts(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

StagedSchedule::StagedSchedule(StagedShape shape, std::uint64_t slot_bytes)
    : shape_(std::move(shape)) {
  const auto ranks = static_cast<std::uint64_t>(shape_.ranks);
  CIRANDA_ASSERT(ranks >= 1 && slot_bytes >= kSliceUnit * ranks);
  // A round fills its whole slot, even if one round is then enough. More rounds would make the
  // ranks' work overlap. But data that a core has just written moves slowly from its first-level
  // cache into another core's, and slices too large for that cache have already left it.
  const std::uint64_t whole_slot = slot_bytes / kSliceUnit * kSliceUnit;
  std::uint64_t longest = 0;
  switch (shape_.kind) {
    case OpKind::kAllreduce:
    case OpKind::kBroadcast:
      longest = shape_.payload_bytes;
      round_bytes_ = whole_slot;
      break;
    case OpKind::kReducescatter:
      CIRANDA_ASSERT(shape_.offsets.size() == ranks + 1);
      for (Rank r = 0; r < shape_.ranks; ++r) {
        longest = std::max(longest, part_begin(r + 1) - part_begin(r));
      }
      // A slot holds one piece for every rank.
      round_bytes_ = slot_bytes / ranks / kSliceUnit * kSliceUnit;
      break;
    case OpKind::kAllgather:
    case OpKind::kAlltoall:
      for (Rank r = 0; r < shape_.ranks; ++r) longest = std::max(longest, sent_bytes(r));
      round_bytes_ = whole_slot;
      break;
    default:
      break;  // no data
  }
  rounds_ = longest == 0 ? 0 : whole_parts(longest, round_bytes_);
}

std::uint64_t StagedSchedule::sent_bytes(Rank rank) const {
  const auto r = static_cast<std::size_t>(rank);
  if (shape_.kind == OpKind::kAllgather) return shape_.offsets[r + 1] - shape_.offsets[r];
  return shape_.offsets[r * (static_cast<std::size_t>(shape_.ranks) + 1) +
                        static_cast<std::size_t>(shape_.ranks)];
}

void StagedSchedule::round(Rank rank, std::uint64_t index, StagedRound& out) const {
  CIRANDA_ASSERT(index < rounds_);
  CIRANDA_ASSERT(rank >= 0 && rank < shape_.ranks);
  out.copy_in.clear();
  out.reduce.reset();
  out.copy_out_after_reduce = false;
  out.copy_out.clear();
  switch (shape_.kind) {
    case OpKind::kAllreduce:
      return allreduce(rank, index, out);
    case OpKind::kReducescatter:
      return reducescatter(rank, index, out);
    default:
      return exchange(rank, index, out);
  }
}

void StagedSchedule::allreduce(Rank rank, std::uint64_t index, StagedRound& out) const {
  const std::uint64_t begin = index * round_bytes_;
  const std::uint64_t bytes = std::min(round_bytes_, shape_.payload_bytes - begin);
  const bool alone = shape_.ranks == 1;
  if (alone || shape_.payload_bytes <= kOnePhaseBytes) {
    if (!alone) out.copy_in.push_back({.user_offset = begin, .slot_offset = 0, .bytes = bytes});
    out.reduce = {.slot_offset = 0,
                  .user_in_offset = begin,
                  .user_out_offset = begin,
                  .publish = false,
                  .bytes = bytes};
    return;
  }
  const std::uint64_t units = whole_parts(bytes, kSliceUnit);
  const auto slice_begin = [&](Rank r) {
    return std::min(bytes, units * static_cast<std::uint64_t>(r) /
                               static_cast<std::uint64_t>(shape_.ranks) * kSliceUnit);
  };
  const std::uint64_t own_begin = slice_begin(rank);
  const std::uint64_t own_end = slice_begin(rank + 1);
  // Only this rank reads its own slice of its input, so that piece stays where it is.
  if (own_begin > 0) {
    out.copy_in.push_back({.user_offset = begin, .slot_offset = 0, .bytes = own_begin});
  }
  if (own_end < bytes) {
    out.copy_in.push_back(
        {.user_offset = begin + own_end, .slot_offset = own_end, .bytes = bytes - own_end});
  }
  out.reduce = {.slot_offset = own_begin,
                .user_in_offset = begin + own_begin,
                .user_out_offset = begin + own_begin,
                .publish = true,
                .bytes = own_end - own_begin};
  out.copy_out_after_reduce = true;
  for (Rank peer = 0; peer < shape_.ranks; ++peer) {
    const std::uint64_t from = slice_begin(peer);
    const std::uint64_t to = slice_begin(peer + 1);
    if (peer == rank || from == to) continue;
    out.copy_out.push_back(
        {.from = peer, .slot_offset = from, .user_offset = begin + from, .bytes = to - from});
  }
}

void StagedSchedule::reducescatter(Rank rank, std::uint64_t index, StagedRound& out) const {
  const std::uint64_t done = index * round_bytes_;  // of each rank's part, in earlier rounds
  for (Rank owner = 0; owner < shape_.ranks; ++owner) {
    const std::uint64_t part = part_begin(owner + 1) - part_begin(owner);
    if (part <= done) continue;
    const std::uint64_t bytes = std::min(round_bytes_, part - done);
    const std::uint64_t slot_offset = static_cast<std::uint64_t>(owner) * round_bytes_;
    const std::uint64_t user_offset = part_begin(owner) + done;
    if (owner == rank) {
      out.reduce = {.slot_offset = slot_offset,
                    .user_in_offset = user_offset,
                    .user_out_offset = done,
                    .publish = false,
                    .bytes = bytes};
    } else {
      out.copy_in.push_back(
          {.user_offset = user_offset, .slot_offset = slot_offset, .bytes = bytes});
    }
  }
}

// broadcast, allgather, alltoall: senders stream their input through their slots, and receivers
// copy their parts out.
void StagedSchedule::exchange(Rank rank, std::uint64_t index, StagedRound& out) const {
  const std::uint64_t window_begin = index * round_bytes_;
  const std::uint64_t window_end = window_begin + round_bytes_;
  const std::size_t row = static_cast<std::size_t>(shape_.ranks) + 1;
  std::uint64_t received = 0;  // alltoall: the output holds the senders' parts in rank order
  for (Rank sender = 0; sender < shape_.ranks; ++sender) {
    if (shape_.kind == OpKind::kBroadcast && sender != shape_.root) continue;
    const auto s = static_cast<std::size_t>(sender);
    // Input bytes of the sender that this rank takes, and their place in the output.
    std::uint64_t take_begin = 0;
    std::uint64_t take_end = 0;
    std::uint64_t output_begin = 0;
    std::uint64_t input_bytes = 0;
    if (shape_.kind == OpKind::kBroadcast) {
      input_bytes = take_end = shape_.payload_bytes;
    } else if (shape_.kind == OpKind::kAllgather) {
      input_bytes = take_end = sent_bytes(sender);
      output_begin = shape_.offsets[s];
    } else {
      input_bytes = sent_bytes(sender);
      take_begin = shape_.offsets[s * row + static_cast<std::size_t>(rank)];
      take_end = shape_.offsets[s * row + static_cast<std::size_t>(rank) + 1];
      output_begin = received;
      received += take_end - take_begin;
    }
    if (sender == rank && window_begin < input_bytes) {
      out.copy_in.push_back({.user_offset = window_begin,
                             .slot_offset = 0,
                             .bytes = std::min(window_end, input_bytes) - window_begin});
    }
    const std::uint64_t from = std::max(take_begin, window_begin);
    const std::uint64_t to = std::min(take_end, window_end);
    if (from >= to) continue;
    out.copy_out.push_back({.from = sender,
                            .slot_offset = sender == rank ? from : from - window_begin,
                            .user_offset = output_begin + (from - take_begin),
                            .bytes = to - from});
  }
}

}  // namespace ciranda
