#include "ciranda/torch/api/elastic_membership.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "ciranda/torch/elastic/recovery.h"
#include "ciranda/torch/process/default_world.h"
#include "ciranda/torch/process/rank_optimizer.h"

namespace ciranda::elastic {
namespace {

constexpr std::uint64_t kLookMs = 200;
constexpr int kLooksMax = 5 * 900;  // the launcher gives up earlier, and ends this process

bool has_said_ready = false;  // NOLINT: a process joins one job, once

void wait_for_call() {
  for (int look = 0; look < kLooksMax; ++look) {
    leave_if_released();
    if (is_called()) return;
    unwrap(elastic_member()->wait(kLookMs));
  }
  throw Exception({.code = ErrorCode::kTimeout,
                   .text = "elastic: a rank was lost, and the launcher has not named the ranks "
                           "that go on; its output says what it waits for"});
}

// Tells the launcher if the loss is that of a rank which has left its World. Either the launcher
// has called it to another one, or its program has ended before that of this rank.
void tell_if_left(const State::Impl& state, const Error* loss) {
  if (loss == nullptr || loss->code != ErrorCode::kRankLeft) return;
  tell_who_left(loss->rank, static_cast<std::uint64_t>(state.progress.blocks));
}

// Gives all ranks of this World the newest state.
void synchronize(State::Impl& state, Takeover takeover) {
  const auto among = default_communicator();
  const member::RecoveryPlan plan =
      agree_on_recovery(*among, {.holds_state = state.holds, .moment = state.progress.moment});
  state.transfer(plan, among->engine->rank(), takeover);
  state.holds = true;
}

void enter_next_epoch(State::Impl& state, Takeover takeover) {
  state.check_registered();
  const std::vector<RankOptimizer*> optimizers = RankOptimizer::all();
  for (RankOptimizer* each : optimizers) each->leave_ranks();
  begin_epoch(unwrap(elastic_member()->newest()).epoch.value());
  synchronize(state, takeover);
  for (RankOptimizer* each : optimizers) each->train_anew();
  check(elastic_member()->say(member::Formed{
      .epoch = own_epoch(), .step = static_cast<std::uint64_t>(state.progress.blocks)}));
}

}  // namespace

bool in_elastic_job() {
  return elastic_member() != nullptr;
}

bool is_loss(const Exception& error) {
  switch (error.error().code) {
    case ErrorCode::kRankLost:
    case ErrorCode::kRankLeft:
    case ErrorCode::kShutdown:
      return in_elastic_job();
    default:
      return false;
  }
}

bool is_called() {
  const std::shared_ptr<Member> member = elastic_member();
  if (member == nullptr) return false;
  const auto newest = unwrap(member->newest()).epoch;
  return newest && newest->number > own_epoch();
}

void leave_if_released() {
  const std::shared_ptr<Member> member = elastic_member();
  if (member != nullptr && unwrap(member->newest()).over) std::exit(EXIT_SUCCESS);
}

void join(State::Impl& state) {
  if (state.holds) return;
  state.end_call();  // what newcomers begin with, until a call has ended
  if (!in_elastic_job()) return synchronize(state, Takeover::kWhole);
  if (std::exchange(has_said_ready, true)) {
    throw Exception({.code = ErrorCode::kInvalidArgument,
                     .text = "elastic: a process has one state, from its first loop to its end; "
                             "register what this one has in the first one"});
  }
  check(elastic_member()->say(member::Ready{}));
  recover(state);
}

void recover(State::Impl& state, const Error* loss, Takeover takeover) {
  tell_if_left(state, loss);
  for (;;) {
    wait_for_call();
    try {
      return enter_next_epoch(state, takeover);
    } catch (const Exception& error) {
      if (!is_loss(error)) throw;  // else another change, while the ranks met
      tell_if_left(state, &error.error());
    }
  }
}

void finish(State::Impl& state) {
  if (!state.holds || !in_elastic_job()) return;
  state.arrive();
  const std::shared_ptr<Member> member = elastic_member();
  const member::EpochNumber since = own_epoch();
  const auto end = [&] {
    check(member->say(member::AtEnd{.since = since}));
    leave_ranks();  // whoever needs this one for a step then gets an error
  };
  end();
  while (!unwrap(member->newest()).over) {
    if (is_called()) {
      recover(state);
      end();
    }
    unwrap(member->wait(kLookMs));
  }
}

}  // namespace ciranda::elastic
