// What could break: a part that misses a push that belongs to the checkpoint, or has one that does
// not; one that is never closed.
#include "core/ps/decide/checkpoint_barrier.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/ps/decide/saved_protocol.h"
#include "ps/decide/server_protocols.h"

namespace ciranda::ps {
namespace {

// A server's parts, made as they are read.
class Parts final : public CheckpointKeeper {
 public:
  explicit Parts(ServerProtocol& protocol) : protocol_(protocol) {}
  std::optional<Checkpoint> announce() override {
    if (!may_announce) return std::nullopt;
    return ++announced;
  }
  void begin(Checkpoint checkpoint) override {
    begun.push_back(checkpoint);
    std::vector<std::byte> note;
    protocol_.save(note);
    part_ = make_shard(decode_saved_protocol(note).value()).value();
    const auto from = protocol_.arrays();
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::ranges::copy(from[i], part_->arrays()[i].begin());
    }
  }
  void add(const Change& change, const Journal::Data& data) override {
    std::vector<std::byte> all;
    for (const auto& piece : data) all.insert(all.end(), piece.begin(), piece.end());
    const Status repeated = part_->repeat(change, all);
    ASSERT_TRUE(repeated.ok()) << repeated.error().text;
  }
  void close() override { closed.push_back(begun.back()); }
  void withdraw(Checkpoint checkpoint) override {
    EXPECT_EQ(checkpoint, closed.back());
    closed.pop_back();
  }

  // The first parameter of the part.
  float parameter() const { return *reinterpret_cast<const float*>(part_->arrays()[0].data()); }

  bool may_announce = true;
  Checkpoint announced = 0;
  std::vector<Checkpoint> begun, closed;

 private:
  ServerProtocol& protocol_;
  std::unique_ptr<Shard> part_;
};

class CheckpointBarrierTest : public testing::ServerProtocols {
 protected:
  void begin(int workers, Mode mode = {}, std::uint64_t pushes = 0) {
    start(workers, mode);
    options_.checkpoint_pushes = pushes;
    protocol_ = std::make_unique<ServerProtocol>(options_);
    parts_ = std::make_unique<Parts>(*protocol_);
    protocol_->keep_checkpoints(parts_.get(), 0);
    for (Worker worker = 0; worker < workers; ++worker) {
      callers_.push_back(join(worker));
      if (worker > 0) answer<Ready>(callers_.back());
      seq_.push_back(0);
    }
    answer<Ready>(callers_[0]);
  }
  void push_of_worker(std::size_t worker, float gradient) {
    push(callers_[worker], static_cast<Worker>(worker), ++seq_[worker], gradient);
  }
  void mark(std::size_t worker, Checkpoint checkpoint) {
    say(callers_[worker], Mark{.checkpoint = checkpoint});
  }

  std::unique_ptr<Parts> parts_;
  std::vector<ServerProtocol::Caller> callers_;
  std::vector<std::uint64_t> seq_;
};

TEST_F(CheckpointBarrierTest, HasWhatCameBeforeEachWorkersMarkAndNothingElse) {
  begin(2);
  push_of_worker(0, 1);
  mark(0, 1);
  push_of_worker(0, 10);   // behind it
  push_of_worker(1, 100);  // late
  push_of_worker(1, 200);
  EXPECT_TRUE(parts_->closed.empty());
  mark(1, 1);
  EXPECT_EQ(parts_->closed, std::vector<Checkpoint>{1});
  push_of_worker(1, 1'000);
  EXPECT_FLOAT_EQ(parts_->parameter(), -301);
}

TEST_F(CheckpointBarrierTest, OfARoundThePushesThatBelongToItAreARound) {
  begin(3, {.kind = ModeKind::kSync});
  mark(0, 1);
  push_of_worker(0, 60);  // behind it
  push_of_worker(1, 30);
  push_of_worker(2, 90);
  mark(1, 1);
  mark(2, 1);
  EXPECT_FLOAT_EQ(parts_->parameter(), -60);  // the mean of the two
}

TEST_F(CheckpointBarrierTest, WaitsForNobodyWhoIsGone) {
  begin(2);
  mark(0, 1);
  EXPECT_TRUE(parts_->closed.empty());
  hang_up(callers_[1]);
  EXPECT_EQ(parts_->closed, std::vector<Checkpoint>{1});
  mark(0, 2);
  EXPECT_EQ(parts_->closed, (std::vector<Checkpoint>{1, 2}));
}

TEST_F(CheckpointBarrierTest, WaitsForWhoComesWhileItIsOpen) {
  begin(3);
  hang_up(callers_[2]);
  mark(0, 1);
  callers_[2] = join(2, 2);
  mark(1, 1);
  EXPECT_TRUE(parts_->closed.empty());
  mark(2, 1);
  EXPECT_EQ(parts_->closed, std::vector<Checkpoint>{1});
}

// It was lost, or has come late, and others wait for its mark.
TEST_F(CheckpointBarrierTest, IsNoneWhereAPushThatBelongsToItComesAfterItWasClosed) {
  begin(2);
  push_of_worker(1, 1);
  hang_up(callers_[1]);
  mark(0, 1);
  callers_[1] = join(1, 2);
  push(callers_[1], 1, 1, 1);  // which was decided before
  EXPECT_EQ(parts_->closed, std::vector<Checkpoint>{1});
  push_of_worker(1, 1);
  EXPECT_TRUE(parts_->closed.empty());
  mark(1, 1);
  mark(0, 2);
  mark(1, 2);
  push_of_worker(1, 1);
  EXPECT_EQ(parts_->closed, std::vector<Checkpoint>{2});
}

TEST_F(CheckpointBarrierTest, ANewerOneTakesThePlaceOfOneThatIsOpen) {
  begin(2);
  mark(0, 1);
  mark(1, 2);
  EXPECT_EQ(parts_->begun, (std::vector<Checkpoint>{1, 2}));
  mark(0, 2);
  EXPECT_EQ(parts_->closed, std::vector<Checkpoint>{2});
}

TEST_F(CheckpointBarrierTest, HasNoPartOfOneThatWasBegunBeforeItsServer) {
  begin(1);
  protocol_->keep_checkpoints(parts_.get(), 4);
  mark(0, 4);
  EXPECT_TRUE(parts_->begun.empty());
  mark(0, 5);
  EXPECT_EQ(parts_->closed, std::vector<Checkpoint>{5});
}

TEST_F(CheckpointBarrierTest, ALastOneIsMadeWhenAllHaveLeft) {
  begin(2);
  push_of_worker(0, 1);
  say(callers_[0], Leave{});
  say(callers_[1], Leave{.checkpoint = 3});  // that one was announced, and is closed by that
  EXPECT_EQ(parts_->closed, std::vector<Checkpoint>{3});
  protocol_->end_checkpoints();
  EXPECT_EQ(parts_->closed, (std::vector<Checkpoint>{3, 4}));
  EXPECT_FLOAT_EQ(parts_->parameter(), -1);
}

TEST_F(CheckpointBarrierTest, ThereIsNoneWhereNobodyHasDeclared) {
  start(1);
  parts_ = std::make_unique<Parts>(*protocol_);
  protocol_->keep_checkpoints(parts_.get(), 0);
  say(enter(0), Leave{});
  protocol_->end_checkpoints();
  EXPECT_TRUE(parts_->begun.empty());
}

TEST_F(CheckpointBarrierTest, IsAnnouncedAfterSoManyPushesAndToWhoComes) {
  begin(1, {}, 2);
  push_of_worker(0, 1);
  EXPECT_EQ(answer<Ack>(callers_[0]).checkpoint, 0u);
  push_of_worker(0, 1);
  EXPECT_EQ(answer<Ack>(callers_[0]).checkpoint, 1u);
  push_of_worker(0, 1);
  EXPECT_EQ(answer<Ack>(callers_[0]).checkpoint, 1u);
  parts_->may_announce = false;
  push_of_worker(0, 1);
  EXPECT_EQ(answer<Ack>(callers_[0]).checkpoint, 1u);
  parts_->may_announce = true;
  push_of_worker(0, 1);
  EXPECT_EQ(answer<Ack>(callers_[0]).checkpoint, 2u);
  hang_up(callers_[0]);
  EXPECT_EQ(answer<Ready>(join(0, 2)).checkpoint, 2u);
}

TEST_F(CheckpointBarrierTest, AServerThatComesBackAnnouncesWhenTheNextIsDue) {
  begin(1, {}, 2);
  push_of_worker(0, 1);
  push_of_worker(0, 1);
  std::vector<std::byte> saved;
  protocol_->save(saved);
  protocol_ = std::make_unique<ServerProtocol>(options_);
  ASSERT_TRUE(protocol_->restore(saved, now_ns_).ok());
  parts_ = std::make_unique<Parts>(*protocol_);
  protocol_->keep_checkpoints(parts_.get(), parts_->announced = 1);
  callers_[0] = join(0, 2);
  answer<Ready>(callers_[0]);
  push_of_worker(0, 1);
  EXPECT_EQ(answer<Ack>(callers_[0]).checkpoint, 1u);
  push_of_worker(0, 1);
  EXPECT_EQ(answer<Ack>(callers_[0]).checkpoint, 2u);
}

TEST_F(CheckpointBarrierTest, IsAnnouncedAfterSoLong) {
  start(1);
  options_.checkpoint_ns = 50;
  options_.lease_ns = 1'000'000;
  protocol_ = std::make_unique<ServerProtocol>(options_);
  parts_ = std::make_unique<Parts>(*protocol_);
  protocol_->keep_checkpoints(parts_.get(), 0);
  callers_.push_back(join(0));
  answer<Ready>(callers_[0]);
  seq_.push_back(0);
  push_of_worker(0, 1);
  EXPECT_EQ(answer<Ack>(callers_[0]).checkpoint, 0u);
  pass(50);
  push_of_worker(0, 1);
  EXPECT_EQ(answer<Ack>(callers_[0]).checkpoint, 1u);
}

}  // namespace
}  // namespace ciranda::ps
