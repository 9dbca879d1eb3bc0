#include "core/transport/local/control_block.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/base/assert.h"
#include "core/base/clock.h"

namespace ciranda {
namespace {

constexpr std::size_t kAlignment = 4096;  // each part starts on a page

struct BlockParts {
  std::size_t mark, failure, flags, life_marks, log, world, end;
};

BlockParts parts(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const auto align = [](std::size_t offset) {
    return (offset + kAlignment - 1) / kAlignment * kAlignment;
  };
  BlockParts at{};
  at.failure = sizeof(std::atomic<std::uint64_t>);
  at.flags = align(at.failure + sizeof(FailureRecord));
  at.life_marks = at.flags + n * sizeof(RankFlags);
  at.log = align(at.life_marks + n * sizeof(LifeMark));
  at.world = align(at.log + ShmLog::memory_bytes(ranks));
  at.end = at.world + GroupRegion::memory_bytes(ranks);
  return at;
}

}  // namespace

std::size_t ControlBlock::memory_bytes(int ranks) {
  return parts(ranks).end;
}

std::size_t ControlBlock::ready_bytes(int ranks) {
  return parts(ranks).world + GroupRegion::counter_bytes(ranks);
}

ControlBlock::ControlBlock(std::byte* memory, int ranks) : ranks_(ranks), memory_(memory) {
  CIRANDA_ASSERT(ranks >= 1 && ranks <= kLocalRanksMax);
  const BlockParts at = parts(ranks);
  mark_ = reinterpret_cast<std::atomic<std::uint64_t>*>(memory + at.mark);
  failure_ = reinterpret_cast<FailureRecord*>(memory + at.failure);
  flags_ = reinterpret_cast<RankFlags*>(memory + at.flags);
  life_marks_ = reinterpret_cast<LifeMark*>(memory + at.life_marks);
  log_offset_ = at.log;
  world_offset_ = at.world;
}

// The first caller on the host sets the mark.
std::uint64_t ControlBlock::mark() const {
  const std::uint64_t own = monotonic_ns() ^ (static_cast<std::uint64_t>(::getpid()) << 42);
  std::uint64_t given = 0;
  return mark_->compare_exchange_strong(given, own) ? own : given;
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
  // A writer that dies half way leaves kWriting for ever; then this rank uses its own reason.
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
