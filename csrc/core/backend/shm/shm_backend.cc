#include "core/backend/shm/shm_backend.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/backend/reduce_args.h"
#include "core/base/assert.h"
#include "core/kernels/step_journal.h"

namespace ciranda {
namespace {

// Calls fn(member, offset within the member, offset from `begin`, bytes) for each member that
// contains some of the payload bytes [begin, begin + bytes). `starts` holds each member's first
// byte.
template <typename Fn>
void for_each_run(const std::vector<std::uint64_t>& starts, std::uint64_t begin,
                  std::uint64_t bytes, Fn&& fn) {
  auto next = std::upper_bound(starts.begin(), starts.end(), begin);
  CIRANDA_ASSERT(next != starts.begin());  // the first member begins at 0
  auto member = static_cast<std::size_t>(next - starts.begin()) - 1;
  for (std::uint64_t done = 0; done < bytes; ++member) {
    const std::uint64_t at = begin + done - starts[member];
    const std::uint64_t member_end = member + 1 < starts.size() ? starts[member + 1] : UINT64_MAX;
    const std::uint64_t run = std::min(bytes - done, member_end - (begin + done));
    if (run > 0) fn(member, at, done, run);
    done += run;
  }
}

// A chunk of the step of an elastic job is marked in the journal as a whole.
static_assert(ShmBackend::kChunkBytes % kernels::StepJournal::kChunkBytes == 0);

constexpr std::uint64_t kChunkMask = (std::uint64_t{1} << ClaimWord::kChunkBits) - 1;

// Returns how many chunks of `operation` a word counts. The word of a newer operation means all.
std::uint64_t chunks_counted(std::uint64_t word, std::uint64_t operation, std::uint64_t chunks) {
  const std::uint64_t of = word >> ClaimWord::kChunkBits;
  if (of == operation) return word & kChunkMask;
  return of > operation ? chunks : 0;
}

}  // namespace

ShmBackend::ShmBackend(GroupRegion region, PeerBells bells, int self, std::vector<Rank> locals)
    : region_(region),
      bells_(std::move(bells)),
      self_(self),
      ranks_(static_cast<int>(locals.size())),
      locals_(std::move(locals)) {
  CIRANDA_ASSERT(ranks_ == region_.members() && self_ >= 0 && self_ < ranks_);
  CIRANDA_ASSERT(std::is_sorted(locals_.begin(), locals_.end()));
}

void ShmBackend::start(Execution&& execution) {
  if (execution.op.in_arena) {
    Claimed& op = claimed_.emplace_back();
    op.execution = std::move(execution);
    op.operation = ++operations_started_;  // from 1: zeroed words belong to no operation
    op.chunks = (op.execution.arena_bytes + kChunkBytes - 1) / kChunkBytes;
    CIRANDA_ASSERT(op.chunks <= kChunkMask);
    const std::size_t buckets = op.execution.arena.size();
    CIRANDA_ASSERT(buckets <= static_cast<std::size_t>(ranks_));
    CIRANDA_ASSERT(op.chunks == 0 || buckets > 0);  // a rank that has joined has no bucket
    return;
  }
  if (spare_.empty()) spare_.emplace_back();
  staged_.splice(staged_.end(), spare_, spare_.begin());
  Staged& op = staged_.back();
  op.execution = std::move(execution);
  const Rank root = op.execution.op.root;
  CIRANDA_ASSERT(!op.execution.buffers.empty());
  CIRANDA_ASSERT(op.execution.op.kind != OpKind::kBroadcast || (root >= 0 && root < ranks_));
  op.in_begin.clear();
  op.out_begin.clear();
  std::uint64_t in_bytes = 0;
  std::uint64_t out_bytes = 0;
  for (const Buffer& buffer : op.execution.buffers) {
    op.in_begin.push_back(in_bytes);
    op.out_begin.push_back(out_bytes);
    in_bytes += buffer.in_bytes;
    out_bytes += buffer.out_bytes;
  }
  op.schedule = StagedSchedule({.kind = op.execution.op.kind,
                                .ranks = ranks_,
                                .root = root,
                                .payload_bytes = in_bytes,
                                .offsets = std::move(op.execution.offsets)},
                               kStagingSlotBytes);
  op.first_round = rounds_started_;
  op.copied_in = op.reduced = op.copied_out = 0;
  rounds_started_ += op.schedule.rounds();
}

bool ShmBackend::advance() {
  bool moved = false;
  while (!staged_.empty()) {
    Staged& op = staged_.front();
    moved |= advance_staged(op);
    if (op.copied_out < op.schedule.rounds()) break;
    const Done done = std::move(op.execution.done);
    spare_.splice(spare_.begin(), staged_, staged_.begin());
    moved = true;
    done({}, nullptr);
  }
  for (auto op = claimed_.begin(); op != claimed_.end();) {
    // The board of this operation may still count the chunks of an unfinished older one.
    if (op->operation >= claimed_.front().operation + kClaimBoards) break;
    moved |= advance_claimed(*op);
    if (!claimed_complete(*op)) {
      ++op;
      continue;
    }
    const auto done = std::move(op->execution.done);
    op = claimed_.erase(op);
    moved = true;
    done({}, nullptr);
  }
  return moved;
}

void ShmBackend::blocked_on(std::vector<Rank>& out) const {
  if (staged_.empty()) return;  // some rank works on each unfinished claimed chunk
  const Staged& op = staged_.front();
  const std::uint64_t need_out = op.first_round + op.copied_in;
  for (Rank rank = 0; rank < ranks_; ++rank) {
    if (rank == self_) continue;
    const GroupFlags& flags = region_.flags(rank);
    const bool slot_in_use =
        op.copied_in < op.schedule.rounds() &&
        flags.copied_out.load(std::memory_order_acquire) + kStagingSlots <= need_out;
    const std::uint64_t next = op.first_round + op.reduced;
    const bool no_input =
        op.reduced < op.copied_in && flags.copied_in.load(std::memory_order_acquire) <= next;
    const bool no_result =
        op.copied_out < op.reduced &&
        flags.reduced.load(std::memory_order_acquire) <= op.first_round + op.copied_out;
    if (slot_in_use || no_input || no_result) {
      out.push_back(locals_[static_cast<std::size_t>(rank)]);
    }
  }
}

void ShmBackend::abort(const Error& why) {
  std::vector<Done> cancelled;
  for (Staged& op : staged_) cancelled.push_back(std::move(op.execution.done));
  for (Claimed& op : claimed_) cancelled.push_back(std::move(op.execution.done));
  staged_.clear();
  claimed_.clear();
  for (const auto& done : cancelled) done(why, nullptr);
}

// ---------------------------------------------------------------------------------------------
// Private memory through staging slots

bool ShmBackend::advance_staged(Staged& op) {
  CIRANDA_ASSERT(op.copied_out <= op.reduced && op.reduced <= op.copied_in &&
                 op.copied_in <= op.schedule.rounds());
  bool moved = false;
  // Later stages run first: their data was just reduced and is still in the cache.
  for (bool step = true; step; moved |= step) step = copy_out(op) || reduce(op) || copy_in(op);
  return moved;
}

bool ShmBackend::copy_in(Staged& op) {
  if (op.copied_in == op.schedule.rounds()) return false;
  const std::uint64_t round = op.first_round + op.copied_in;
  if (round >= kStagingSlots && !all_reached(&GroupFlags::copied_out, round - kStagingSlots + 1)) {
    return false;
  }
  op.schedule.round(self_, op.copied_in, round_);
  std::byte* slot = region_.slot(self_, round);
  for (const CopyIn& copy : round_.copy_in) {
    CIRANDA_ASSERT(copy.slot_offset + copy.bytes <= kStagingSlotBytes);
    for_each_run(
        op.in_begin, copy.user_offset, copy.bytes,
        [&](std::size_t member, std::uint64_t at, std::uint64_t done, std::uint64_t bytes) {
          kernels::copy(slot + copy.slot_offset + done, op.execution.buffers[member].in + at,
                        bytes);
        });
  }
  ++op.copied_in;
  publish(&GroupFlags::copied_in, round + 1);
  return true;
}

bool ShmBackend::reduce(Staged& op) {
  if (op.reduced == op.copied_in) return false;
  const std::uint64_t round = op.first_round + op.reduced;
  if (!all_reached(&GroupFlags::copied_in, round + 1)) return false;
  op.schedule.round(self_, op.reduced, round_);
  if (round_.reduce && round_.reduce->bytes > 0) {
    const ReduceSlice& slice = *round_.reduce;
    CIRANDA_ASSERT(slice.slot_offset + slice.bytes <= kStagingSlotBytes);
    const FusedOp& fused = op.execution.op;
    const kernels::ReduceArgs args = reduce_args(fused, ranks_);
    // A reducescatter has one member, and its output starts at another offset than its input.
    const std::uint64_t shift = slice.user_in_offset - slice.user_out_offset;
    for_each_run(
        op.in_begin, slice.user_in_offset, slice.bytes,
        [&](std::size_t member, std::uint64_t at, std::uint64_t done, std::uint64_t bytes) {
          const Buffer& buffer = op.execution.buffers[member];
          std::array<const std::byte*, kLocalRanksMax> inputs;
          for (Rank rank = 0; rank < ranks_; ++rank) {
            inputs[static_cast<std::size_t>(rank)] =
                rank == self_ ? buffer.in + at
                              : region_.slot(rank, round) + slice.slot_offset + done;
          }
          const std::array<std::byte*, 2> outputs = {
              buffer.out + (at - shift), region_.slot(self_, round) + slice.slot_offset + done};
          kernels::reduce(args, {inputs.data(), static_cast<std::size_t>(ranks_)},
                          {outputs.data(), slice.publish ? 2u : 1u},
                          bytes / dtype_bytes(fused.dtype));
        });
  }
  ++op.reduced;
  publish(&GroupFlags::reduced, round + 1);
  return true;
}

bool ShmBackend::copy_out(Staged& op) {
  if (op.copied_out == op.reduced) return false;
  const std::uint64_t round = op.first_round + op.copied_out;
  op.schedule.round(self_, op.copied_out, round_);
  if (round_.copy_out_after_reduce && !all_reached(&GroupFlags::reduced, round + 1)) return false;
  for (const CopyOut& copy : round_.copy_out) {
    CIRANDA_ASSERT(copy.from == self_ || copy.slot_offset + copy.bytes <= kStagingSlotBytes);
    for_each_run(
        op.out_begin, copy.user_offset, copy.bytes,
        [&](std::size_t member, std::uint64_t at, std::uint64_t done, std::uint64_t bytes) {
          const Buffer& buffer = op.execution.buffers[member];
          // A copy from this rank's own input. Only broadcast has several members, and its offsets
          // agree.
          const std::byte* from =
              copy.from == self_
                  ? buffer.in + (op.execution.buffers.size() > 1 ? at : copy.slot_offset + done)
                  : region_.slot(copy.from, round) + copy.slot_offset + done;
          if (from != buffer.out + at) kernels::copy(buffer.out + at, from, bytes);
        });
  }
  ++op.copied_out;
  publish(&GroupFlags::copied_out, round + 1);
  return true;
}

bool ShmBackend::all_reached(std::atomic<std::uint64_t> GroupFlags::*counter,
                             std::uint64_t value) const {
  for (Rank rank = 0; rank < ranks_; ++rank) {
    if (rank == self_) continue;
    if ((region_.flags(rank).*counter).load(std::memory_order_acquire) < value) return false;
  }
  return true;
}

void ShmBackend::publish(std::atomic<std::uint64_t> GroupFlags::*counter, std::uint64_t value) {
  (region_.flags(self_).*counter).store(value, std::memory_order_release);
  bells_.ring_those(locals_);
}

// ---------------------------------------------------------------------------------------------
// Data in the arena

bool ShmBackend::advance_claimed(Claimed& op) {
  bool moved = false;
  while (const auto chunk = claim_chunk(op)) {
    const std::uint64_t begin = *chunk * kChunkBytes;
    CIRANDA_ASSERT(begin < op.execution.arena_bytes);  // by claim_chunk()
    const std::uint64_t bytes = std::min(kChunkBytes, op.execution.arena_bytes - begin);
    const std::size_t ranks = op.execution.arena.size();  // ranks that have not joined
    CIRANDA_ASSERT(ranks + op.execution.op.joined.size() >= static_cast<std::size_t>(ranks_));
    moved = true;
    if (op.execution.work) {
      op.execution.work(begin, bytes, op.execution.arena);
      finish_chunk(op);
      continue;
    }
    std::array<const std::byte*, kLocalRanksMax> inputs;
    std::array<std::byte*, kLocalRanksMax> outputs;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      inputs[rank] = outputs[rank] = op.execution.arena[rank] + begin;
    }
    kernels::reduce(reduce_args(op.execution.op, ranks_), {inputs.data(), ranks},
                    {outputs.data(), ranks}, bytes / dtype_bytes(op.execution.op.dtype));
    finish_chunk(op);
  }
  return moved;
}

// Claims from this rank's share first, then from the other ranks' shares.
std::optional<std::uint64_t> ShmBackend::claim_chunk(const Claimed& op) {
  const auto ranks = static_cast<std::uint64_t>(ranks_);
  const ClaimBoard board = region_.board(op.operation);
  for (std::uint64_t i = 0; i < ranks; ++i) {
    const std::uint64_t share = (static_cast<std::uint64_t>(self_) + i) % ranks;
    const std::uint64_t first = op.chunks * share / ranks;
    const std::uint64_t chunks = op.chunks * (share + 1) / ranks - first;
    std::atomic<std::uint64_t>& claimed = board.claimed[share].value;
    std::uint64_t word = claimed.load(std::memory_order_acquire);
    for (;;) {
      const std::uint64_t counted = chunks_counted(word, op.operation, chunks);
      if (counted >= chunks) break;
      const std::uint64_t next = (op.operation << ClaimWord::kChunkBits) | (counted + 1);
      if (claimed.compare_exchange_weak(word, next, std::memory_order_acq_rel)) {
        return first + counted;
      }
    }
  }
  return std::nullopt;
}

bool ShmBackend::claimed_complete(const Claimed& op) const {
  const std::uint64_t word =
      region_.board(op.operation).done->value.load(std::memory_order_acquire);
  return chunks_counted(word, op.operation, op.chunks) >= op.chunks;
}

void ShmBackend::finish_chunk(const Claimed& op) {
  std::atomic<std::uint64_t>& done = region_.board(op.operation).done->value;
  std::uint64_t word = done.load(std::memory_order_acquire);
  std::uint64_t counted = 0;
  do {
    // A newer operation cannot use this board before every chunk of this one is done.
    counted = chunks_counted(word, op.operation, op.chunks) + 1;
  } while (!done.compare_exchange_weak(word, (op.operation << ClaimWord::kChunkBits) | counted,
                                       std::memory_order_acq_rel));
  if (counted == op.chunks) bells_.ring_those(locals_);
}

}  // namespace ciranda
