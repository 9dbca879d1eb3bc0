// What could break: a task that nobody does, that is done twice although nobody was lost, or whose
// outcome a coordinator that was started again does not find.
#include "core/ps/decide/ledger.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace ciranda::ps {
namespace {

using Assignments = std::vector<Ledger::Assignment>;

void schedule(Ledger& ledger, TaskId first, TaskId last, int copies = 1) {
  for (TaskId task = first; task <= last; ++task) {
    const Status scheduled = ledger.schedule(task, "call " + std::to_string(task), copies);
    ASSERT_TRUE(scheduled.ok()) << scheduled.error().text;
  }
}

bool finish(Ledger& ledger, Worker worker, TaskId task) {
  return ledger.finish(worker, task, {.text = "done"}).value();
}

// Nobody else has asked.
TaskId task_for(Ledger& ledger, Worker worker) {
  ledger.ask(worker);
  const Assignments assigned = ledger.assign();
  if (assigned.empty()) return 0;
  EXPECT_EQ(assigned[0].to, worker);
  return assigned[0].task;
}

TEST(Ledger, GivesTasksInTheirOrderToWhoAsks) {
  Ledger ledger(3);
  ledger.ask(2);
  EXPECT_EQ(ledger.assign(), Assignments{});
  schedule(ledger, 1, 3);
  EXPECT_EQ(ledger.assign(), (Assignments{{2, 1, "call 1"}}));
  EXPECT_EQ(ledger.assign(), Assignments{}) << "each is told once";
  EXPECT_EQ(task_for(ledger, 0), 2u);
  EXPECT_TRUE(finish(ledger, 2, 1));
  EXPECT_EQ(task_for(ledger, 2), 3u);
  EXPECT_EQ(task_for(ledger, 1), 0u);
  EXPECT_EQ(ledger.settled(), 1u);
  EXPECT_EQ(ledger.outcome(1)->text, "done");
  EXPECT_EQ(ledger.outcome(2), nullptr);
  EXPECT_EQ(ledger.outcome(4), nullptr);
}

TEST(Ledger, SaysThatNothingIsLeftOnceAllIsDone) {
  Ledger ledger(2);
  schedule(ledger, 1, 1);
  EXPECT_EQ(task_for(ledger, 0), 1u);
  ledger.ask(1);
  ASSERT_TRUE(ledger.close(1).ok());
  EXPECT_EQ(ledger.assign(), Assignments{}) << "worker 0 may be lost yet";
  EXPECT_TRUE(finish(ledger, 0, 1));
  ledger.ask(0);
  EXPECT_EQ(ledger.assign(), (Assignments{{0, 0, ""}, {1, 0, ""}}));
}

TEST(Ledger, GivesToAnotherWhatAWorkerHasLeft) {
  Ledger ledger(3);
  schedule(ledger, 1, 3);
  EXPECT_EQ(task_for(ledger, 0), 1u);
  EXPECT_EQ(task_for(ledger, 1), 2u);
  ledger.leave(0);
  EXPECT_EQ(task_for(ledger, 2), 1u) << "before those that nobody has had";
  EXPECT_EQ(task_for(ledger, 1), 2u) << "who asks again has not heard the answer";
  EXPECT_TRUE(finish(ledger, 0, 1)) << "it was not gone: its outcome is as good";
  EXPECT_FALSE(finish(ledger, 2, 1));
  EXPECT_EQ(task_for(ledger, 2), 3u);
  EXPECT_FALSE(finish(ledger, 0, 1)) << "a repeated message";
}

TEST(Ledger, WhatWasDoneAfterItWasGivenBackIsGivenToNobody) {
  Ledger ledger(2);
  schedule(ledger, 1, 2);
  EXPECT_EQ(task_for(ledger, 0), 1u);
  ledger.leave(0);
  EXPECT_TRUE(finish(ledger, 0, 1));
  EXPECT_EQ(task_for(ledger, 1), 2u);
}

TEST(Ledger, GivesASecondWorkerWhatTakesLongOnceThereIsNothingElse) {
  Ledger ledger(4);
  schedule(ledger, 1, 2, 2);
  schedule(ledger, 3, 3, 1);
  EXPECT_EQ(task_for(ledger, 0), 1u);
  EXPECT_EQ(task_for(ledger, 1), 2u);
  EXPECT_EQ(task_for(ledger, 2), 3u);
  EXPECT_EQ(task_for(ledger, 3), 1u);
  EXPECT_TRUE(finish(ledger, 3, 1));
  EXPECT_EQ(task_for(ledger, 3), 2u);
  EXPECT_TRUE(finish(ledger, 1, 2));
  EXPECT_EQ(task_for(ledger, 1), 0u) << "the third is for one worker at a time";
  ledger.leave(3);
  EXPECT_EQ(ledger.assign(), Assignments{}) << "its task is done";
}

TEST(Ledger, ACoordinatorThatComesBackSchedulesTheSame) {
  Ledger ledger(1);
  schedule(ledger, 1, 2);
  EXPECT_EQ(task_for(ledger, 0), 1u);
  EXPECT_TRUE(finish(ledger, 0, 1));
  schedule(ledger, 1, 3);
  EXPECT_EQ(ledger.scheduled(), 3u);
  EXPECT_EQ(ledger.outcome(1)->text, "done");
  EXPECT_EQ(task_for(ledger, 0), 2u);
  const Status other = ledger.schedule(2, "another", 1);
  EXPECT_EQ(other.error().code, ErrorCode::kMismatch);
  EXPECT_EQ(other.error().text,
            "task 2 is 'another', but was 'call 2' before the coordinator was restarted; its "
            "program must schedule the same tasks in the same order");
  EXPECT_EQ(ledger.close(2).error().code, ErrorCode::kMismatch);
  EXPECT_TRUE(ledger.close(3).ok());
  EXPECT_TRUE(ledger.close(3).ok());
}

TEST(Ledger, RefusesWhatCannotBe) {
  Ledger ledger(1);
  schedule(ledger, 1, 1);
  EXPECT_EQ(ledger.schedule(3, "x").error().text, "task 3 was scheduled, but the next task is 2");
  EXPECT_FALSE(ledger.schedule(0, "x").ok());
  EXPECT_FALSE(ledger.schedule(2, "x", 0).ok());
  EXPECT_EQ(ledger.schedule(2, std::string(kTaskTextBytesMax + 1, 'x')).error().text,
            "task 2 has arguments of 65537 bytes; the limit is 65536");
  EXPECT_TRUE(ledger.schedule(2, std::string(kTaskTextBytesMax, 'x')).ok());
  EXPECT_EQ(ledger.finish(0, 3, {}).error().text,
            "worker 0 has done task 3, which was not scheduled");
  ASSERT_TRUE(ledger.close(2).ok());
  EXPECT_EQ(ledger.schedule(3, "x").error().text,
            "task 3 was scheduled after the coordinator had ended its schedule");
}

// Workers come, go, and answer late, in any order: at the end each task has one outcome, and was
// given again only where somebody had left it, or a copy was asked for.
TEST(Ledger, EachTaskHasOneOutcomeWhateverWorkersDo) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int workers = 1 + static_cast<int>(random() % 4);
    const auto tasks = TaskId{random() % 20};
    const int copies = 1 + static_cast<int>(random() % 2);
    Ledger ledger(workers);
    std::map<Worker, TaskId> has;
    std::map<TaskId, int> counted;
    std::map<TaskId, int> given;
    std::map<TaskId, int> left;
    TaskId scheduled = 0;
    std::set<Worker> told_to_end;
    for (int turn = 0; turn < 10'000 && std::ssize(told_to_end) < workers; ++turn) {
      const auto worker = static_cast<Worker>(random() % static_cast<unsigned>(workers));
      const bool late = turn > 5'000;  // faults cease
      switch (random() % (late ? 3 : 6)) {
        case 0:
          if (scheduled < tasks) {
            schedule(ledger, scheduled + 1, scheduled + 1, copies);
            ++scheduled;
          } else {
            ASSERT_TRUE(ledger.close(tasks).ok());
          }
          break;
        case 1:
          if (!has.contains(worker)) ledger.ask(worker);
          break;
        case 2:
          if (has.contains(worker)) {
            counted[has[worker]] += finish(ledger, worker, has[worker]) ? 1 : 0;
            has.erase(worker);
          }
          break;
        case 3:
          ledger.leave(worker);
          if (has.contains(worker)) ++left[has[worker]];
          has.erase(worker);
          break;
        case 4:
          if (scheduled > 0) {
            const TaskId again = 1 + random() % scheduled;
            schedule(ledger, again, again, copies);
          }
          break;
        default:
          if (random() % 8 == 0) {
            std::vector<std::byte> kept;
            ledger.save(kept);
            ledger = Ledger::restore(kept, workers).value();
            for (const auto& [_, task] : has) ++left[task];  // as far as the ledger knows
          }
      }
      for (const auto& [to, task, call] : ledger.assign()) {
        if (task == 0) {
          told_to_end.insert(to);
          continue;
        }
        has[to] = task;
        ++given[task];
        EXPECT_EQ(call, "call " + std::to_string(task));
        EXPECT_EQ(ledger.outcome(task), nullptr);
      }
    }
    EXPECT_EQ(std::ssize(told_to_end), workers);
    EXPECT_EQ(ledger.settled(), tasks);
    for (TaskId task = 1; task <= tasks; ++task) {
      EXPECT_EQ(counted[task], 1);
      EXPECT_LE(given[task], copies + left[task]);
    }
  }
}

// What it has taken in, it takes back.
TEST(Ledger, WhatIsTooMuchFailsAndTheLedgerComesBack) {
  constexpr std::size_t kMax = 1'000;
  Ledger ledger(1, kMax);
  for (TaskId task = 1; task <= 10; ++task) {
    ASSERT_TRUE(ledger.schedule(task, std::string(20, 'x')).ok());
  }
  for (TaskId task = 1; task <= 10; ++task) {
    ASSERT_TRUE(ledger.finish(0, task, {.failed = false, .text = std::string(100, 'y')}).value());
  }
  EXPECT_EQ(ledger.failed(), (std::vector<TaskId>{7, 8, 9, 10}));
  EXPECT_NE(
      ledger.outcome(7)->text.find("the results of this job's tasks take more than 1000 bytes"),
      std::string::npos);
  EXPECT_FALSE(ledger.schedule(11, "").ok());
  std::vector<std::byte> kept;
  ledger.save(kept);
  const auto again = Ledger::restore(kept, 1, kMax);
  ASSERT_TRUE(again.ok()) << again.error().text;
  for (TaskId task = 1; task <= 10; ++task) {
    EXPECT_EQ(*again.value().outcome(task), *ledger.outcome(task));
  }
}

TEST(Ledger, IsKept) {
  Ledger ledger(2);
  schedule(ledger, 1, 3, 2);
  EXPECT_EQ(task_for(ledger, 0), 1u);
  EXPECT_EQ(task_for(ledger, 1), 2u);
  ASSERT_TRUE(ledger.finish(1, 2, {.failed = true, .text = "no data"}).ok());
  std::vector<std::byte> kept;
  ledger.save(kept);

  Ledger again = Ledger::restore(kept, 2).value();
  EXPECT_EQ(again.scheduled(), 3u);
  EXPECT_EQ(again.settled(), 0u);
  EXPECT_EQ(*again.outcome(2), (TaskOutcome{.failed = true, .text = "no data"}));
  schedule(again, 1, 3, 2);
  EXPECT_EQ(task_for(again, 1), 1u);
  EXPECT_TRUE(finish(again, 0, 1)) << "who had it before may have done it";
  EXPECT_EQ(again.settled(), 2u);
  EXPECT_EQ(task_for(again, 0), 3u);

  for (std::size_t size = 0; size < kept.size(); ++size) {
    EXPECT_EQ(Ledger::restore(std::span(kept).first(size), 2).error().code, ErrorCode::kMalformed);
  }
  kept.push_back(std::byte{0});
  EXPECT_EQ(Ledger::restore(kept, 2).error().code, ErrorCode::kMalformed);
}

}  // namespace
}  // namespace ciranda::ps
