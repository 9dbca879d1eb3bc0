// What could break: a task that is lost or done twice since a server, a worker or the coordinator
// was lost, or an answer that is held for ever.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ps/io/service.h"

namespace ciranda::ps {
namespace {

using testing::declare;
using testing::expect_parameters;
using testing::kSizes;
using testing::kWays;
using testing::model_of;
using testing::name_of;
using testing::push;

class Tasks : public testing::ServiceAnywhere {
 protected:
  static constexpr int kPushes = 3;  // of each task

  void start(int workers) {
    has_coordinator_ = true;
    start_servers(2, workers);
    coordinator_ = connect(workers);
  }
  // Does tasks until nothing is left to do; the second push of the first task may be its last.
  void work(Worker worker, bool dies = false) {
    auto client = connect(worker, ++lives_[static_cast<std::size_t>(worker)]);
    ASSERT_TRUE(declare(*client, model_, 0.0f).ok());
    std::string done;
    for (;;) {
      const auto given = client->tasks().take(/*failed=*/false, done);
      ASSERT_TRUE(given.ok()) << given.error().text;
      if (given.value().task == 0) return;
      for (int i = 1; i <= kPushes; ++i) {
        ASSERT_TRUE(push(*client, model_, 1.0f).ok());
        if (dies && i == 2) return;
      }
      done = "did " + given.value().call;
    }
  }
  void schedule(TaskId first, TaskId last) {
    for (TaskId task = first; task <= last; ++task) {
      const auto scheduled = coordinator_->tasks().schedule("call " + std::to_string(task), 1);
      ASSERT_TRUE(scheduled.ok()) << scheduled.error().text;
      ASSERT_EQ(scheduled.value(), task);
    }
  }
  void await(TaskId tasks) {
    for (TaskId task = 1; task <= tasks; ++task) {
      const auto told = coordinator_->tasks().ask({.task = task, .waits = true});
      ASSERT_TRUE(told.ok()) << told.error().text;
      EXPECT_EQ(told.value().text, "did call " + std::to_string(task));
    }
  }
  // As a worker that has no tasks.
  void expect_pushes(Worker worker, TaskId tasks) {
    const auto client = connect(worker);
    ASSERT_TRUE(declare(*client, model_, 0.0f).ok());
    expect_parameters(*client, model_, -static_cast<float>(tasks * kPushes));
  }

  const Model model_ = model_of(kSizes);
  std::unique_ptr<Client> coordinator_;
  std::vector<Life> lives_ = std::vector<Life>(4);
};
INSTANTIATE_TEST_SUITE_P(Ways, Tasks, kWays, name_of);

TEST_P(Tasks, AreDoneOnceThoughAWorkerIsLost) {
  constexpr TaskId kTasks = 40;
  start(4);
  schedule(1, kTasks);
  std::vector<std::thread> workers;
  workers.emplace_back([&] { work(0); });
  workers.emplace_back([&] { work(1); });
  workers.emplace_back([&] {
    work(2, /*dies=*/true);
    work(2);
  });
  await(kTasks);
  expect_pushes(3, kTasks);
  ASSERT_TRUE(coordinator_->tasks().close().ok());
  for (std::thread& worker : workers) worker.join();
}

TEST_P(Tasks, AreFoundByACoordinatorThatIsStartedAgain) {
  start(2);
  std::thread worker([&] { work(0); });
  schedule(1, 5);
  await(2);
  const auto before = std::move(coordinator_);
  coordinator_ = connect(2, 2);
  EXPECT_EQ(before->tasks().ask({.task = 1}).error().text,
            "server 0: the coordinator has been restarted");
  schedule(1, 5);
  await(5);
  expect_pushes(1, 5);
  ASSERT_TRUE(coordinator_->tasks().close().ok());
  worker.join();
}

TEST_P(Tasks, AreFoundAfterServersWereKilled) {
  for (const Durability durability : {Durability::kLog, Durability::kMemory}) {
    SCOPED_TRACE(static_cast<int>(durability));
    keep_state(durability);
    lives_.assign(4, 0);
    start(3);
    std::vector<std::thread> workers;
    for (Worker worker = 0; worker < 2; ++worker) {
      workers.emplace_back([&, worker] { work(worker); });
    }
    schedule(1, 10);
    await(10);  // whoever has done the last is waiting, or about to
    restart_server(0, End::kKilled);
    schedule(11, 20);
    await(20);
    restart_server(1, End::kKilled);
    restart_server(0, End::kKilled);
    ASSERT_TRUE(coordinator_->tasks().close().ok());
    for (std::thread& worker : workers) worker.join();
    if (durability == Durability::kLog) expect_pushes(2, 20);
    coordinator_.reset();
    stop_servers();
    std::filesystem::remove_all(state_of(0));
    std::filesystem::remove_all(state_of(1));
  }
}

TEST_P(Tasks, VectorsAreThoseOfAllServersAndComeBackWithThem) {
  keep_state(Durability::kLog);
  start(1);
  const auto client = connect(0);
  ASSERT_TRUE(declare(*client, model_, 1.0f).ok());
  ASSERT_TRUE(push(*client, model_, 2.0f, 1).ok());
  expect_parameters(*client, model_, 1.0f);
  const auto twos = coordinator_->tasks().work({.dots = {{0, 1}}});
  ASSERT_TRUE(twos.ok()) << twos.error().text;
  EXPECT_GE(twos.value()[0], 2.0 * 40'021);
  restart_server(1, End::kKilled);
  ASSERT_TRUE(push(*client, model_, 1.0f, 1).ok());
  restart_server(0, End::kKilled);
  const auto moved = coordinator_->tasks().work(
      {.sums = {{.into = 0, .terms = {{0, 1.0}, {1, 2.0}}}}, .dots = {{0, 1}}});
  ASSERT_TRUE(moved.ok()) << moved.error().text;
  EXPECT_EQ(moved.value()[0], 7.0 * 3.0 / 2.0 * twos.value()[0]);
  ASSERT_TRUE(client->parameters().pull().ok());
  expect_parameters(*client, model_, 7.0f);
  coordinator_.reset();
}

TEST_P(Tasks, TextsThatAreTooLongAreRefused) {
  start(1);
  const std::string large(kTaskTextBytesMax + 1, 'x');
  EXPECT_EQ(coordinator_->tasks().schedule(large, 1).error().code, ErrorCode::kLimit);
  ASSERT_TRUE(coordinator_->tasks().schedule("call 1", 1).ok());
  const auto client = connect(0);
  ASSERT_TRUE(client->tasks().take(false, "").ok());
  EXPECT_EQ(client->tasks().take(false, large).error().code, ErrorCode::kLimit);
  EXPECT_EQ(coordinator_->tasks().ask({.task = 1}).value().done, false);
}

}  // namespace
}  // namespace ciranda::ps
