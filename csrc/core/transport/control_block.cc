#include "core/transport/control_block.h"

#include <algorithm>
#include <cstring>

#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr std::size_t kAlignment = 4096;  // slots start on pages

struct Layout {
  std::size_t failure, flags, boards, log, staging, end;
};

Layout layout(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const auto align = [](std::size_t offset) {
    return (offset + kAlignment - 1) / kAlignment * kAlignment;
  };
  Layout at{};
  at.flags = align(at.failure + sizeof(FailureRecord));
  at.boards = align(at.flags + n * sizeof(RankFlags));
  at.log = align(at.boards + kClaimBoards * (n + 1) * sizeof(ClaimWord));
  at.staging = align(at.log + ShmLog::memory_bytes(ranks));
  at.end = at.staging + n * kStagingSlots * kStagingSlotBytes;
  return at;
}

}  // namespace

std::size_t ControlBlock::memory_bytes(int ranks) {
  return layout(ranks).end;
}

ControlBlock::ControlBlock(std::byte* memory, int ranks) : ranks_(ranks), memory_(memory) {
  CIRANDA_ASSERT(ranks >= 1 && ranks <= kLocalRanksMax);
  const Layout at = layout(ranks);
  failure_ = reinterpret_cast<FailureRecord*>(memory + at.failure);
  flags_ = reinterpret_cast<RankFlags*>(memory + at.flags);
  boards_ = reinterpret_cast<ClaimWord*>(memory + at.boards);
  log_offset_ = at.log;
  staging_offset_ = at.staging;
}

ClaimBoard ControlBlock::board(std::uint64_t operation) const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  ClaimWord* words = boards_ + operation % kClaimBoards * (ranks + 1);
  return {.claimed = words, .done = words + ranks};
}

std::byte* ControlBlock::slot(Rank rank, std::uint64_t round) const {
  CIRANDA_ASSERT(rank >= 0 && rank < ranks_);
  const std::size_t index = static_cast<std::size_t>(rank) * kStagingSlots + round % kStagingSlots;
  return memory_ + staging_offset_ + index * kStagingSlotBytes;
}

Error ControlBlock::fail(const Error& error) const {
  std::uint32_t expected = FailureRecord::kNone;
  if (failure_->state.compare_exchange_strong(expected, FailureRecord::kWriting)) {
    failure_->code = error.code;
    failure_->rank = error.rank;
    const std::size_t bytes = std::min(error.text.size(), sizeof failure_->text);
    std::memcpy(failure_->text, error.text.data(), bytes);
    failure_->text_bytes = static_cast<std::uint32_t>(bytes);
    failure_->state.store(FailureRecord::kWritten, std::memory_order_release);
    return error;
  }
  // A writer that dies half way leaves kWriting for ever; then our own reason is as good.
  return failed() ? failure() : error;
}

bool ControlBlock::failed() const {
  return failure_->state.load(std::memory_order_acquire) == FailureRecord::kWritten;
}

Error ControlBlock::failure() const {
  CIRANDA_ASSERT(failed());
  const std::size_t bytes = std::min<std::size_t>(failure_->text_bytes, sizeof failure_->text);
  return {
      .code = failure_->code, .text = std::string(failure_->text, bytes), .rank = failure_->rank};
}

}  // namespace ciranda
