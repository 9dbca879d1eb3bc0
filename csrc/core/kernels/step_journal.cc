#include "core/kernels/step_journal.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>

#include "core/base/assert.h"
#include "core/kernels/variants.h"
#include "core/wire/types.h"

namespace ciranda::kernels {
namespace {

constexpr std::size_t kLineBytes = 64;

// The compiler keeps the order of the stores, see UpdateLoop::save().
void note(std::uint64_t& word, std::uint64_t value) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::atomic_ref(word).store(value, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

std::uint64_t noted(std::uint64_t& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

}  // namespace

// Where a rank is: in `step`, all pieces of its chunk before a byte are updated. `at` is twice that
// byte, plus one if the old values of the piece that begins there are saved: it may be torn.
struct alignas(kLineBytes) StepJournal::Place {
  std::uint64_t step;
  std::uint64_t at;
};

// The marks, the places, and the saved values: of each rank one piece of each array.
std::size_t StepJournal::memory_bytes(const Shape& shape) {
  return saved_offset(shape) + static_cast<std::size_t>(shape.ranks) * saved_bytes(shape);
}

std::size_t StepJournal::places_offset(const Shape& shape) {
  const std::size_t chunks = (shape.bytes + kChunkBytes - 1) / kChunkBytes;
  return (chunks * sizeof(std::uint64_t) + kLineBytes - 1) / kLineBytes * kLineBytes;
}

std::size_t StepJournal::saved_offset(const Shape& shape) {
  return places_offset(shape) + static_cast<std::size_t>(shape.ranks) * sizeof(Place);
}

// Returns the bytes that one rank saves at a time.
std::size_t StepJournal::saved_bytes(const Shape& shape) {
  return (1 + static_cast<std::size_t>(shape.states)) * kSavedBytes;
}

StepJournal::StepJournal(std::byte* memory, const Shape& shape, const Variant* variant)
    : memory_(memory), shape_(shape), variant_(variant != nullptr ? variant : &chosen_variant()) {
  CIRANDA_ASSERT(memory != nullptr && shape.bytes > 0);
  CIRANDA_ASSERT(shape.ranks > 0 && shape.ranks <= kLocalRanksMax && shape.states >= 0);
}

std::uint64_t& StepJournal::mark(std::uint64_t chunk) const {
  CIRANDA_ASSERT(chunk < shape_.bytes && chunk % kChunkBytes == 0);
  return reinterpret_cast<std::uint64_t*>(memory_)[chunk / kChunkBytes];
}

StepJournal::Place& StepJournal::place(int rank) const {
  CIRANDA_ASSERT(rank >= 0 && rank < shape_.ranks);
  return reinterpret_cast<Place*>(memory_ + places_offset(shape_))[rank];
}

std::byte* StepJournal::saved_by(int rank) const {
  return memory_ + saved_offset(shape_) + static_cast<std::size_t>(rank) * saved_bytes(shape_);
}

std::uint64_t StepJournal::next_step() const {
  return noted(mark(0)) + 1;
}

bool StepJournal::begun(std::uint64_t step) const {
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    if (noted(place(rank).step) == step) return true;
  }
  return false;
}

bool StepJournal::done(std::uint64_t step) const {
  for (std::uint64_t chunk = 0; chunk < shape_.bytes; chunk += kChunkBytes) {
    if (!chunk_done(step, chunk)) return false;
  }
  return true;
}

bool StepJournal::chunk_done(std::uint64_t step, std::uint64_t chunk) const {
  return noted(mark(chunk)) == step;
}

StepJournal::Work StepJournal::begin(int rank, std::uint64_t step, std::uint64_t chunk) const {
  CIRANDA_ASSERT(step > 0 && noted(mark(chunk)) == step - 1);
  const Work work(*this, rank, step, chunk);
  work.note_place(2 * chunk);
  return work;
}

// Of all ranks that have worked on the chunk, each of which has gone on where the one before was
// killed, the last one is the furthest.
StepJournal::Work StepJournal::resume(int rank, std::uint64_t step, std::uint64_t chunk) const {
  std::uint64_t furthest = 2 * chunk;
  const std::byte* saved = nullptr;
  for (int other = 0; other < shape_.ranks; ++other) {
    if (noted(place(other).step) != step) continue;
    const std::uint64_t at = noted(place(other).at);
    if (at / 2 < chunk || at / 2 >= chunk + kChunkBytes || at < furthest) continue;
    furthest = at;
    saved = at % 2 == 1 ? saved_by(other) : nullptr;
  }
  Work work(*this, rank, step, chunk);
  work.from_ = furthest / 2;
  work.saved_ = saved;
  return work;
}

StepJournal::Work::Work(const StepJournal& journal, int rank, std::uint64_t step,
                        std::uint64_t chunk)
    : journal_(journal), rank_(rank), step_(step), chunk_(chunk), from_(chunk) {}

void StepJournal::Work::update(const UpdateRule& rule, const UpdateArgs& args,
                               std::uint64_t offset) {
  CIRANDA_ASSERT(args.gradient_outputs.empty());
  CIRANDA_ASSERT(args.states.size() == static_cast<std::size_t>(journal_.shape_.states));
  const std::size_t element_bytes = dtype_bytes(args.dtype);
  const std::uint64_t end = offset + args.count * element_bytes;
  CIRANDA_ASSERT(offset >= chunk_ && end <= chunk_ + kChunkBytes);
  if (from_ <= offset) {
    if (from_ == offset) restore(args, end - offset);
    return save_and_update(rule, args, offset);
  }
  if (from_ >= end) return;
  const std::size_t done = from_ - offset;
  std::array<const std::byte*, kLocalRanksMax> gradients;
  std::array<std::byte*, kLocalRanksMax> parameters;
  std::array<std::byte*, std::size(kAdamStates)> states;
  const auto moved = [done](auto* array) { return array + done; };
  std::ranges::transform(args.gradients, gradients.begin(), moved);
  std::ranges::transform(args.parameters, parameters.begin(), moved);
  std::ranges::transform(args.states, states.begin(), moved);
  UpdateArgs rest = args;
  rest.gradients = std::span(gradients).first(args.gradients.size());
  rest.parameters = std::span(parameters).first(args.parameters.size());
  rest.states = std::span(states).first(args.states.size());
  rest.count -= done / element_bytes;
  restore(rest, end - from_);
  save_and_update(rule, rest, from_);
}

// Puts the old values of a torn piece back, if there is one. Restores one copy of the parameters:
// the update reads that one and writes all.
void StepJournal::Work::restore(const UpdateArgs& args, std::uint64_t bytes) const {
  if (saved_ == nullptr) return;
  const std::size_t piece = std::min<std::uint64_t>(kSavedBytes, bytes);
  const std::byte* from = saved_;
  std::memcpy(args.parameters[0], from, piece);
  for (std::byte* state : args.states) std::memcpy(state, from += kSavedBytes, piece);
}

void StepJournal::Work::save_and_update(const UpdateRule& rule, const UpdateArgs& args,
                                        std::uint64_t offset) const {
  note_place(2 * offset);
  const Saving saving{
      .at = &journal_.place(rank_).at, .begin = offset, .values = journal_.saved_by(rank_)};
  Updating updating = kernels::updating(rule, args);
  updating.saving = &saving;
  journal_.variant_->loops->update(updating);
}

// Moves the place before it says of which step it is, since `at` means nothing in an older step.
void StepJournal::Work::note_place(std::uint64_t at) const {
  Place& place = journal_.place(rank_);
  note(place.at, at);
  note(place.step, step_);
}

void StepJournal::Work::end() {
  note(journal_.mark(chunk_), step_);
}

}  // namespace ciranda::kernels
