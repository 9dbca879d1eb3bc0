// What could break: a stranger or an old process that is believed, the wrong worker's parameters as
// the first, a worker that waits for one that is gone.
#include "core/ps/desk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ps/desks.h"
#include "ps/models.h"

namespace ciranda::ps {
namespace {

using testing::exact_rule;
using testing::kLeaseNs;
using testing::model_of;

constexpr Mode kSsp{.kind = ModeKind::kSsp};

class DeskTest : public testing::Desks {};

TEST_F(DeskTest, OnlyWhoFitsMayEnter) {
  start(2, {}, /*servers=*/3);
  const auto refused = [&](auto change) {
    Enter message = entry(1);
    change(message);
    const Desk::Caller caller = call();
    say(caller, message);
    EXPECT_TRUE(hung_up_on(caller));
    return refusal(caller);
  };
  EXPECT_EQ(refused([](Enter& message) { message.version = 9; }),
            "worker 1 speaks version 9 of the servers' protocol, server 0 version 7; install the "
            "same ciranda for both");
  EXPECT_EQ(refused([](Enter& message) { message.job_id = "b"; }),
            "worker 1 is of job 'b', server 0 of job 'job'");
  EXPECT_EQ(refused([](Enter& message) { message.workers = 3; }),
            "worker 1 was told of 3 workers and 3 servers, server 0 of 2 and 3");
  EXPECT_EQ(refused([](Enter& message) { message.servers = 1; }),
            "worker 1 was told of 2 workers and 1 servers, server 0 of 2 and 3");
  EXPECT_NE(refused([](Enter& message) { message.server = 1; }), "");
  EXPECT_EQ(
      refused([](Enter& message) { message.worker = 2; }),
      "there is no worker 2, only 0 to 1; servers of a job with a coordinator are started with "
      "--coordinator");
  EXPECT_EQ(refused([](Enter& message) { message.worker = 3; }),
            "there is no worker 3, only 0 to 1");
  enter(1);
}

TEST_F(DeskTest, WorkersOfTwoJobsDoNotShareServersThatWereStartedByHand) {
  start(2);
  Desk::Caller caller = -1;
  const auto try_to_enter = [&](Worker worker, const Origin& origin, Life life = 1) {
    Enter message = entry(worker, life);
    message.origin = origin;
    caller = call();
    say(caller, message);
    return hung_up_on(caller) ? refusal(caller) : "";
  };
  const Origin first{.job = "29500", .host = 1, .process = 10, .starter = 9};
  EXPECT_EQ(try_to_enter(0, first), "");
  // Neither beside those who are here, nor in the place of one of them.
  for (const Worker worker : {0, 1}) {
    EXPECT_EQ(
        try_to_enter(worker, {.job = "29501"}, /*life=*/2),
        "worker " + std::to_string(worker) +
            " seems to be of another job than worker 0, which is here: '29501', not '29500'; "
            "give each job servers of its own, or, where they are one job, set CIRANDA_JOB_ID "
            "to one name for all its workers");
  }
  EXPECT_NE(try_to_enter(1, {.job = "29500", .host = 1, .process = 21, .starter = 20})
                .find("which another process has started"),
            std::string::npos);
  // Of one starter, of worker 0 itself, of another host, of nobody knows where.
  Life life = 1;
  for (const Origin& origin :
       {Origin{.job = "29500", .host = 1, .process = 11, .starter = 9},
        Origin{.job = "29500", .host = 1, .process = 11, .starter = 10},
        Origin{.job = "29500", .host = 2, .process = 11, .starter = 20}, Origin()}) {
    EXPECT_EQ(try_to_enter(1, origin, life++), "");
    hang_up(caller);
  }
}

TEST_F(DeskTest, WhoIsGoneOrSilentKeepsNoOtherJobAway) {
  start(1);
  Enter first = entry(0, 1);
  first.origin.job = "a";
  Desk::Caller caller = call();
  say(caller, first);
  answer<Welcome>(caller);
  pass(2 * kLeaseNs);
  Enter second = entry(0, 2);
  second.origin.job = "b";
  caller = call();
  say(caller, second);
  answer<Welcome>(caller);
  hang_up(caller);
  Enter third = entry(0, 3);
  third.origin.job = "c";
  caller = call();
  say(caller, third);
  answer<Welcome>(caller);
}

TEST_F(DeskTest, AMessageOutOfOrderIsHungUpOn) {
  start(2);
  const auto refused = [&](Desk::Caller caller, Message message) {
    say(caller, std::move(message));
    EXPECT_TRUE(hung_up_on(caller));
    return refusal(caller);
  };
  EXPECT_EQ(refused(call(), Pull{}), "the first packet of a connection has to be Enter");
  EXPECT_EQ(refused(enter(0, 1), entry(0, 2)), "worker 0 enters twice");
  EXPECT_EQ(refused(enter(0, 2), Pull{}), "worker 0 has not declared its parameters");
  const Desk::Caller waiting = enter(1);
  declare(waiting, 0.0f);
  EXPECT_TRUE(waits(waiting));  // for worker 0's parameters
  EXPECT_EQ(refused(waiting, push_of(1, 1)), "worker 1 has not declared its parameters");
  auto joined = [&, life = Life{2}]() mutable {
    const Desk::Caller caller = join(0, ++life);
    answer<Ready>(caller);
    return caller;
  };
  EXPECT_EQ(refused(joined(), push_of(1, 1)), "worker 0 pushes for another");
  EXPECT_EQ(refused(joined(), push_of(0, 7)), "a push of worker 0 has the number 7 after 0");
  EXPECT_EQ(refused(joined(), Declare{}),
            "worker 0 has declared its parameters already; servers hold those of one model");
  EXPECT_EQ(refused(joined(), Ready{}), "a worker sent what only servers send");
  EXPECT_EQ(refused(joined(), FetchState{}), "there is no such state");
  EXPECT_EQ(refused(joined(), FetchState{.table = 2}), "there is no such state");

  const Desk::Caller garbled = joined();
  Desk::Answers answers;
  desk_->refuse(garbled, {.code = ErrorCode::kMalformed, .text = "no message"}, now_ns_, answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].hangs_up);
}

TEST_F(DeskTest, AnOlderLifeIsNeverHeardAgain) {
  start(1);
  const Desk::Caller first = join(0, 3);
  answer<Ready>(first);
  push(first, 0, 1);
  answer<Ack>(first);
  const Desk::Caller same = call();
  say(same, entry(0, 3));
  EXPECT_EQ(refusal(same), "worker 0 is there already; give each process a number of its own");

  const Desk::Caller second = call();
  say(second, entry(0, 4));
  EXPECT_EQ(answer<Welcome>(second).decided, 1u);
  EXPECT_EQ(refusal(first), "worker 0 has been started anew");
  push(first, 0, 2);  // was on its way
  EXPECT_TRUE(waits(first));
  const Desk::Caller older = call();
  say(older, entry(0, 2));
  EXPECT_EQ(refusal(older), "worker 0 has been started anew since this process was");

  declare(second, 50.0f, /*decided=*/2);  // another server has decided one more
  EXPECT_EQ(answer<Ready>(second).version, 1u);
  EXPECT_EQ(parameter(second), -1.0f);
  push(second, 0, 3);
  EXPECT_EQ(answer<Ack>(second).outcome, Outcome::kApplied);
}

TEST_F(DeskTest, TheFirstParametersAreThoseOfTheLowestWorkerThatHasNotLeft) {
  start(3);
  const Desk::Caller two = enter(2);
  const Desk::Caller one = enter(1);
  declare(two, 2.0f);
  declare(one, 1.0f);
  EXPECT_TRUE(waits(one) && waits(two));
  Desk::Caller zero = enter(0);
  hang_up(zero);  // is not to leave: it may come back
  EXPECT_TRUE(waits(one) && waits(two));
  zero = enter(0, 2);
  say(zero, Leave{});
  answer<Ready>(one);
  answer<Ready>(two);
  EXPECT_EQ(parameter(two), 1.0f);
  zero = enter(0, 3);
  declare(zero, 9.0f);
  answer<Ready>(zero);
  EXPECT_EQ(parameter(zero), 1.0f);
}

TEST_F(DeskTest, WhoDeclaresSomethingElseIsRefused) {
  start(2);
  const Desk::Caller first = join(0);
  answer<Ready>(first);
  auto refused = [&, life = Life{0}](const Model& model) mutable {
    const Desk::Caller caller = enter(1, ++life);
    say(caller, Declare{}, model);
    return refusal(caller);
  };
  Model other = model_;
  other.tables[1].slots[0].shape = {18};
  EXPECT_EQ(refused(other),
            "worker 1 trains something else than those before it: parameter 'p2' is [18] instead "
            "of [17]");
  EXPECT_EQ(refused({}), "parameters of 0 kinds of dtype and update rule; servers hold 1 to 64");
  without_memory_ = true;
  EXPECT_EQ(refused(model_), "no memory");
  without_memory_ = false;
  push(first, 0, 1);  // the desk lives on
  EXPECT_EQ(answer<Ack>(first).outcome, Outcome::kApplied);
}

TEST_F(DeskTest, WhoIsGoneKeepsNobody) {
  start(3, kSsp);
  const Desk::Caller two = enter(2);
  say(two, Leave{});  // before anybody has declared
  const Desk::Caller one = join(1);
  const Desk::Caller zero = join(0);
  answer<Ready>(zero);
  answer<Ready>(one);
  push(zero, 0, 1);
  EXPECT_TRUE(waits(zero));
  hang_up(one);
  EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
  push(one, 1, 1);  // was on its way
  EXPECT_TRUE(waits(one));
  EXPECT_EQ(desk_->shard()->version(), 1u);
}

TEST_F(DeskTest, WhoIsGoneBeforeAnybodyHasDeclaredKeepsNobody) {
  start(2, kSsp);
  hang_up(enter(1));
  const Desk::Caller zero = join(0);
  answer<Ready>(zero);
  push(zero, 0, 1);
  EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
}

TEST_F(DeskTest, WhoIsSilentBeforeItHasDeclaredKeepsNobody) {
  for (const bool is_first : {true, false}) {
    start(2, kSsp);
    const Desk::Caller one = is_first ? enter(1) : -1;
    pass(kLeaseNs);
    const Desk::Caller zero = join(0);
    answer<Ready>(zero);
    const Desk::Caller late = is_first ? one : enter(1);
    pass(kLeaseNs - 1);
    say(zero, Beat{});
    pass(1);
    push(zero, 0, 1);
    EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
    declare(late, 0.0f);
    answer<Ready>(late);
    push(zero, 0, 2);
    EXPECT_TRUE(waits(zero));
    push(late, 1, 1);
    EXPECT_EQ(answer<Ack>(late).clock, 1u);
    push(late, 1, 2);
    EXPECT_EQ(answer<Ack>(zero).version, 4u);
  }
}

TEST_F(DeskTest, WhoIsSilentForALeaseKeepsNobody) {
  start(2, kSsp);
  EXPECT_EQ(desk_->next_lease_ns(), UINT64_MAX);
  const Desk::Caller zero = join(0);
  const Desk::Caller one = join(1);
  answer<Ready>(zero);
  answer<Ready>(one);
  EXPECT_EQ(desk_->next_lease_ns(), now_ns_ + kLeaseNs);
  push(zero, 0, 1);
  pass(kLeaseNs / 2);
  say(zero, Beat{});
  EXPECT_EQ(desk_->next_lease_ns(), now_ns_ + kLeaseNs / 2);
  pass(kLeaseNs / 2 - 1);
  EXPECT_TRUE(waits(zero));
  pass(1);
  EXPECT_EQ(answer<Ack>(zero).outcome, Outcome::kApplied);
  say(one, Beat{});  // counts again
  push(zero, 0, 2);
  EXPECT_TRUE(waits(zero));
  push(one, 1, 1);
  EXPECT_EQ(answer<Ack>(one).version, 3u);
  EXPECT_TRUE(waits(zero));
  push(one, 1, 2);
  EXPECT_EQ(answer<Ack>(one).version, 4u);
  EXPECT_EQ(answer<Ack>(zero).version, 4u);
}

TEST_F(DeskTest, TheJobEndsWhenAllHaveLeft) {
  start(2);
  const Desk::Caller zero = enter(0);
  say(zero, Leave{});
  EXPECT_FALSE(desk_->all_have_left());
  const Desk::Caller one = enter(1);
  hang_up(one);
  EXPECT_FALSE(desk_->all_have_left());
  say(enter(1, 2), Leave{});
  EXPECT_TRUE(desk_->all_have_left());
}

}  // namespace
}  // namespace ciranda::ps
