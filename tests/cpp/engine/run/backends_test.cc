#include "core/engine/run/backends.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>

namespace ciranda::testing {
namespace {

// In the place of shared memory: does one execution in each advance().
class OneAtATime final : public Backend {
 public:
  bool supports(const FusedOp& op) const override { return op.dtype != DType::kFloat64; }
  void start(Execution&& execution) override { queue_.push_back(std::move(execution.done)); }
  bool advance() override {
    ++looks_;
    if (queue_.empty()) return false;
    const Done done = std::move(queue_.front());
    queue_.pop_front();
    done({}, nullptr);
    return true;
  }
  bool idle() const override { return queue_.empty(); }
  void blocked_on(std::vector<Rank>& out) const override {
    if (!idle()) out.push_back(7);
  }
  void abort(const Error& why) override {
    for (const Done& done : std::exchange(queue_, {})) done(why, nullptr);
  }
  const Error* broken() const override { return broken_ ? &*broken_ : nullptr; }
  std::uint64_t look_again_ns() const override { return idle() && !looks_again_ ? 0 : 5000; }

  bool will_wake() const override { return will_wake_; }

  bool will_wake_ = false;
  bool looks_again_ = false;
  int looks_ = 0;
  std::optional<Error> broken_;

 private:
  std::deque<Done> queue_;
};

class BackendsTest : public ::testing::Test {
 protected:
  BackendsTest() {
    auto shm = std::make_unique<OneAtATime>();
    shm_ = shm.get();
    backends_ = std::make_unique<Backends>(std::move(shm), nullptr, BackendContext{});
  }

  void start(DType dtype = DType::kFloat32) {
    Execution execution{.op = {.dtype = dtype}};
    execution.done = [this](const Status& status, const auto&) { done_.push_back(status); };
    backends_->start(std::move(execution));
  }

  OneAtATime* shm_ = nullptr;
  std::unique_ptr<Backends> backends_;
  std::vector<Status> done_;
};

TEST_F(BackendsTest, AdvanceWhatHasBeenStarted) {
  EXPECT_TRUE(backends_->needs().idle);
  EXPECT_FALSE(backends_->advance());
  start();
  start();
  EXPECT_FALSE(backends_->needs().idle);
  EXPECT_EQ(backends_->needs().look_again_ns, 5000u);
  std::vector<Rank> blockers;
  backends_->blocked_on(blockers);
  EXPECT_EQ(blockers, std::vector<Rank>{7});
  EXPECT_TRUE(backends_->advance());
  EXPECT_EQ(done_.size(), 1u);
  EXPECT_TRUE(backends_->advance());
  EXPECT_TRUE(backends_->needs().idle);
  EXPECT_EQ(backends_->needs().look_again_ns, 0u);
  ASSERT_EQ(done_.size(), 2u);
  EXPECT_TRUE(done_[0].ok() && done_[1].ok());
}

TEST_F(BackendsTest, LookAgainAtWhatHasNothingToDo) {
  shm_->looks_again_ = true;
  EXPECT_FALSE(backends_->needs().none());
  EXPECT_FALSE(backends_->advance());
  EXPECT_EQ(shm_->looks_, 1);
  shm_->looks_again_ = false;
  EXPECT_TRUE(backends_->needs().none());
  EXPECT_FALSE(backends_->advance());
  EXPECT_EQ(shm_->looks_, 1);
}

TEST_F(BackendsTest, LetWaitersSleepWhileTheyWillBeWoken) {
  shm_->will_wake_ = true;
  EXPECT_FALSE(backends_->needs().will_wake());
  start();
  EXPECT_TRUE(backends_->needs().will_wake());
  shm_->will_wake_ = false;
  EXPECT_FALSE(backends_->needs().will_wake());
}

TEST_F(BackendsTest, RefuseWhatTheBackendDoesNotSupport) {
  start(DType::kFloat64);
  EXPECT_TRUE(backends_->needs().idle);
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_EQ(done_[0].error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(
      done_[0].error().text,
      "native cannot run this allreduce of float64 by Sum; convert the tensor, or choose another "
      "backend");
}

TEST_F(BackendsTest, EndEverythingWithTheFailure) {
  start();
  start();
  backends_->abort({.code = ErrorCode::kRankLost, .text = "gone"});
  EXPECT_TRUE(backends_->needs().idle);
  ASSERT_EQ(done_.size(), 2u);
  EXPECT_EQ(done_[0].error().text, "gone");
  EXPECT_EQ(done_[1].error().text, "gone");
}

TEST_F(BackendsTest, TellWhichIsBroken) {
  EXPECT_EQ(backends_->broken(), nullptr);
  shm_->broken_ = Error{.code = ErrorCode::kSystem, .text = "torn"};
  ASSERT_NE(backends_->broken(), nullptr);
  EXPECT_EQ(backends_->broken()->text, "torn");
}

TEST(Available, SaysWhatTheRegistrySays) {
  for (const BackendFacts& facts : backend_facts()) {
    const Status status = Backends::available(facts.id);
    EXPECT_EQ(status.ok(), facts.available);
    EXPECT_EQ(status.ok() ? "" : status.error().text, facts.why_not);
  }
}

}  // namespace
}  // namespace ciranda::testing
