#include "ciranda/torch/gradient/shared_step_operations.h"

#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

std::vector<StepSlot> step_slots(const std::vector<GradientSlot>& slots) {
  std::vector<StepSlot> all;
  for (const GradientSlot& slot : slots) {
    all.push_back({.name = slot.name,
                   .parameter = slot.parameter,
                   .begin = slot.begin,
                   .end = slot.begin + slot.parameter.numel(),
                   .sizes = c10::DimVector(slot.memory.sizes()),
                   .strides = c10::DimVector(slot.memory.strides())});
  }
  return all;
}

}  // namespace

SharedStepOperations::SharedStepOperations(const std::shared_ptr<const Communicator>& among,
                                           ArenaGradients& memory,
                                           const std::vector<GradientSlot>& slots,
                                           bool share_parameters, bool journaled)
    : memory_(memory),
      shared_(among, memory.spec()->name + "/step", memory.dtype(), memory.elements(),
              step_slots(slots), share_parameters, journaled),
      slots_(slots.size()) {}

// The counters are joined first, because the update ends with the mark that the chunk is done.
void SharedStepOperations::submit(SharedStep::Update update) {
  CIRANDA_ASSERT(shared_.prepared());
  const Spec& spec = this->spec(step_spec_, "/step", update.words);
  if (shared_.journaled()) in_flight_ = update;
  memory_.send(spec, [shared = &shared_, counters = &memory_.counters(),
                      work = shared_.work(std::move(update), used_anywhere())](
                         std::uint64_t begin, std::uint64_t bytes,
                         std::span<std::byte* const> arena) mutable {
    const SharedStep::Writing writing = shared->writing();
    if (!writing) return;
    counters->join(begin, begin + bytes, arena);
    work(begin, bytes, arena);
  });
}

void SharedStepOperations::submit_squares(SharedStep::Update update) {
  CIRANDA_ASSERT(shared_.prepared());
  const Spec& spec = this->spec(squares_spec_, "/squares", update.words);
  memory_.send(spec, shared_.squares_work(std::move(update), used_anywhere()));
}

void SharedStepOperations::submit_objection(bool squares) {
  memory_.send(spec(squares ? squares_spec_ : step_spec_, squares ? "/squares" : "/step",
                    "not before the ranks have talked"),
               [](std::uint64_t, std::uint64_t, std::span<std::byte* const>) {});
}

void SharedStepOperations::count() {
  CIRANDA_ASSERT(memory_.handle() != nullptr && memory_.handle()->done());
  count(memory_.handle()->joined());
}

void SharedStepOperations::count(const std::vector<Rank>& joined) {
  for (std::size_t i = 0; i < slots_; ++i) {
    if (memory_.counters().dense_anywhere(i)) shared_.count(i);
  }
  shared_.count_for(joined);
  in_flight_.reset();
}

void SharedStepOperations::withdraw() {
  if (in_flight_) shared_.withdraw();
  in_flight_.reset();
}

void SharedStepOperations::complete() {
  CIRANDA_ASSERT(in_flight_);
  shared_.complete(
      *in_flight_, used_anywhere(),
      [this](std::uint64_t begin, std::uint64_t bytes, std::span<std::byte* const> arena) {
        memory_.counters().join(begin, begin + bytes, arena);
      });
}

void SharedStepOperations::count_completed() {
  CIRANDA_ASSERT(in_flight_);
  count(shared_.absent());
}

SharedStep::Used SharedStepOperations::used_anywhere() const {
  return [counters = &memory_.counters()](std::size_t slot, std::span<std::byte* const> arena) {
    return counters->dense_in(arena, slot);
  };
}

// Returns `latest`, renewed if the rule has changed.
const SharedStepOperations::Spec& SharedStepOperations::spec(Spec& latest, const char* suffix,
                                                             const std::string& words) const {
  if (!latest || latest->rule != words) {
    RequestSpec spec = *memory_.spec();
    spec.name += suffix;
    spec.rule = words;
    spec.tensors = {{spec.tensors[0].dtype, {memory_.elements()}}};
    latest = std::make_shared<const RequestSpec>(std::move(spec));
  }
  return latest;
}

}  // namespace ciranda
