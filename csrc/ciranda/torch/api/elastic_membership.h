#pragma once

#include "ciranda/torch/api/elastic_state.h"
#include "ciranda/torch/tensor/error.h"

namespace ciranda::elastic {

// Brings the state of this process from World to World. Not thread-safe. Blocking.

// Returns true if the launcher may change the ranks of this job.
bool in_elastic_job();

// Returns true if the error says that the World has ended, in an elastic job.
bool is_loss(const Exception& error);

// Returns true if the launcher has named other ranks, whose World this process joins. Does not
// block.
bool is_called();

// Ends the program, by std::exit(), if the launcher lets this rank go because its host leaves. Only
// where a block would begin, or in recover(): then the others go on without it.
void leave_if_released();

// Joins the job if this process has not yet, once the launcher takes it in.
void join(State::Impl& state);

// Goes on with the ranks of the next epoch, once they have the newest state. `loss`: the error for
// which this rank leaves its World, if there is one.
void recover(State::Impl& state, const Error* loss = nullptr, Takeover takeover = Takeover::kWhole);

// Waits, in an elastic job, until all ranks are at the end of their programs, and helps those that
// are not.
void finish(State::Impl& state);

}  // namespace ciranda::elastic
