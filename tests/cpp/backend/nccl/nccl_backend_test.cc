// What could break: the order of stream and host, errors that come late, and ends that hang. The
// ranks are driven by one thread, so whatever blocks never ends.
#include "core/backend/nccl/nccl_backend.h"

#include "backend/nccl/ranks.h"
#include "core/base/clock.h"

namespace ciranda::testing {
namespace {

constexpr NcclOptions kHasty = {
    .connect_ns_max = 50'000'000, .look_ns = 1'000'000, .farewell_ns = 50'000'000};

class Nccl : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(nccl_->breaches(), std::vector<std::string>{});
    EXPECT_EQ(nccl_->alive(), 0);
  }

  // Every rank has `count` times its number + 1.
  static std::vector<std::vector<float>> tensors(int size, std::size_t count = 1000) {
    std::vector<std::vector<float>> made;
    for (int rank = 0; rank < size; ++rank) {
      made.emplace_back(count, static_cast<float>(rank + 1));
    }
    return made;
  }

  // Starts one allreduce a rank, and drives until all of it is through.
  static void expect_sum(Ranks& ranks) {
    const int size = ranks.size();
    auto data = tensors(size);
    std::vector<Outcome> outcomes(data.size());
    start(ranks, data, outcomes);
    ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
    for (std::size_t rank = 0; rank < data.size(); ++rank) {
      ASSERT_TRUE(outcomes[rank].through());
      EXPECT_EQ(data[rank],
                std::vector<float>(data[rank].size(), static_cast<float>(size * (size + 1) / 2)));
    }
  }

  static void start(Ranks& ranks, std::vector<std::vector<float>>& data,
                    std::vector<Outcome>& outcomes) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      ranks[rank].start(allreduce({&data[at]}, ranks.streams[at], outcomes[at]));
    }
  }

  static bool all_done(const std::vector<Outcome>& outcomes) {
    return std::all_of(outcomes.begin(), outcomes.end(),
                       [](const Outcome& outcome) { return outcome.status.has_value(); });
  }

  std::shared_ptr<MockNccl> nccl_ = std::make_shared<MockNccl>();
};

TEST_F(Nccl, SumsOnOneAndOnSeveralRanks) {
  for (const int size : {1, 2, 3, 8}) {
    Ranks ranks(nccl_, size);
    expect_sum(ranks);
    expect_sum(ranks);
    EXPECT_TRUE(ranks[0].idle());
  }
}

TEST_F(Nccl, IsDoneWhileTheDeviceHasNotBegun) {
  auto data = tensors(2);
  Ranks ranks(nccl_, 2);
  expect_sum(ranks);
  for (auto& stream : ranks.streams) stream->hold();
  std::vector<Outcome> outcomes(2);
  start(ranks, data, outcomes);
  ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
  EXPECT_FALSE(outcomes[0].finished->passed().value());
  EXPECT_EQ(data[0][0], 1.0f);
  for (auto& stream : ranks.streams) stream->release();
  ASSERT_TRUE(outcomes[0].through());
  EXPECT_EQ(data[0][0], 3.0f);
  ASSERT_TRUE(outcomes[1].through());
}

TEST_F(Nccl, IsDoneWithoutASleepWhereNcclIsQuick) {
  auto data = tensors(2);
  Ranks ranks(nccl_, 2, {.queue_ns = 10'000'000'000});  // quick by the machine's own measure
  expect_sum(ranks);
  std::vector<Outcome> outcomes(2);
  start(ranks, data, outcomes);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(ranks[rank].advance());
    EXPECT_TRUE(ranks[rank].idle());
  }
  EXPECT_TRUE(outcomes[0].through() && outcomes[1].through());
}

TEST_F(Nccl, HoldsUpNobodyWhereNcclIsSlow) {
  auto data = tensors(2);
  Ranks ranks(nccl_, 2);
  expect_sum(ranks);
  nccl_->hold_groups(true);
  std::vector<Outcome> outcomes(2);
  start(ranks, data, outcomes);
  EXPECT_FALSE(ranks[0].advance());
  EXPECT_FALSE(outcomes[0].status.has_value());
  EXPECT_GT(ranks[0].look_again_ns(), 0u);
  nccl_->hold_groups(false);
  ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
  EXPECT_TRUE(outcomes[0].through() && outcomes[1].through());
}

TEST_F(Nccl, ReadsNothingBeforeItIsReady) {
  auto data = tensors(2);
  Ranks ranks(nccl_, 2);
  std::vector<Outcome> outcomes(2);
  FakeStream users(1);  // rank 1's
  users.hold();
  users.run([&] { data[1].assign(data[1].size(), 10.0f); });
  auto ready = users.record();
  ranks[0].start(allreduce({&data[0]}, ranks.streams[0], outcomes[0]));
  ranks[1].start(allreduce({&data[1]}, ranks.streams[1], outcomes[1], ready.value()));
  ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // enough to read too early
  users.release();
  ASSERT_TRUE(outcomes[0].through() && outcomes[1].through());
  EXPECT_EQ(data[0], std::vector<float>(1000, 11.0f));
  EXPECT_EQ(data[1], data[0]);
}

TEST_F(Nccl, WaitsForEachMemberOfAFusedExecution) {
  std::vector<std::vector<float>> first = tensors(2), second = tensors(2), none = tensors(2, 0);
  Ranks ranks(nccl_, 2);
  std::vector<Outcome> outcomes(2);
  std::vector<std::unique_ptr<FakeStream>> users;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    users.push_back(std::make_unique<FakeStream>(static_cast<int>(rank)));
    Execution execution =
        allreduce({&first[rank], &none[rank], &second[rank]}, ranks.streams[rank], outcomes[rank]);
    users[rank]->hold();
    users[rank]->run([&, rank] { second[rank].assign(1000, 5.0f); });
    execution.device[2].ready = users[rank]->record().value();
    ranks[static_cast<int>(rank)].start(std::move(execution));
  }
  ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
  for (auto& stream : users) stream->release();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(outcomes[rank].through());
    EXPECT_EQ(first[rank][999], 3.0f);
    EXPECT_EQ(second[rank][999], 10.0f);
  }
}

TEST_F(Nccl, StartsNothingBeforeTheOtherRanksHave) {
  auto data = tensors(2);
  Ranks ranks(nccl_, 2);
  std::vector<Outcome> outcomes(2);
  ranks[0].start(allreduce({&data[0]}, ranks.streams[0], outcomes[0]));
  for (int i = 0; i < 50; ++i) ranks[0].advance();
  EXPECT_FALSE(outcomes[0].status.has_value());
  EXPECT_EQ(ranks[0].look_again_ns(), 0u);  // the exchange rings
  ranks[1].start(allreduce({&data[1]}, ranks.streams[1], outcomes[1]));
  ranks[0].advance();
  EXPECT_GT(ranks[0].look_again_ns(), 0u);  // NCCL does not
  ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
  EXPECT_TRUE(outcomes[0].through() && outcomes[1].through());
}

TEST_F(Nccl, SaysWhatItCannotScaleAndGoesOn) {
  auto data = tensors(2);
  Ranks ranks(nccl_, 2);
  std::vector<Outcome> outcomes(2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    Execution execution = allreduce({&data[at]}, ranks.streams[at], outcomes[at]);
    execution.op.op = ReduceOp::kMax;
    execution.op.prescale = 2.0;
    ranks[rank].start(std::move(execution));
  }
  ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
  EXPECT_EQ(outcomes[0].status->error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(outcomes[0].status->error().text,
            "NCCL has no Max of float32 with scale factors; scale the tensor before or after");
  EXPECT_EQ(ranks[0].broken(), nullptr);
  expect_sum(ranks);
}

TEST_F(Nccl, ScalesByAnOperatorThatItDestroys) {
  auto data = tensors(2);
  Ranks ranks(nccl_, 2);
  std::vector<Outcome> outcomes(2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    Execution execution = allreduce({&data[at]}, ranks.streams[at], outcomes[at]);
    execution.op.op = ReduceOp::kAverage;
    execution.op.prescale = 4.0;
    execution.op.postscale = 0.5;
    ranks[rank].start(std::move(execution));
  }
  ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
  ASSERT_TRUE(outcomes[0].through() && outcomes[1].through());
  EXPECT_EQ(data[0], std::vector<float>(1000, 3.0f));
  EXPECT_EQ(data[1], data[0]);
}

TEST_F(Nccl, AnotherDeviceBreaksItWithASentence) {
  auto data = tensors(1);
  Ranks ranks(nccl_, 1);
  expect_sum(ranks);
  Outcome outcome;
  ranks[0].start(allreduce({&data[0]}, std::make_shared<FakeStream>(7), outcome));
  ASSERT_NE(ranks[0].broken(), nullptr);
  EXPECT_EQ(ranks[0].broken()->text,
            "NCCL on rank 0: the tensor is on GPU 7, but the first tensor of this rank was on GPU "
            "0; use one GPU per rank, for example by torch.cuda.set_device(local_rank)");
  ranks[0].abort(*ranks[0].broken());
  EXPECT_TRUE(outcome.status && !outcome.status->ok());
}

TEST_F(Nccl, MemoryOfTheCpuBreaksItWithASentence) {
  auto data = tensors(1);
  Ranks ranks(nccl_, 1);
  Outcome outcome;
  Execution execution = allreduce({&data[0]}, ranks.streams[0], outcome);
  execution.device.clear();
  ranks[0].start(std::move(execution));
  ASSERT_NE(ranks[0].broken(), nullptr);
  EXPECT_EQ(ranks[0].broken()->code, ErrorCode::kInvalidArgument);
  ranks[0].abort(*ranks[0].broken());
}

TEST_F(Nccl, ARankThatCannotConnectIsNamed) {
  nccl_->fail_init_of(1);
  auto data = tensors(2);
  Ranks ranks(nccl_, 2, kHasty);
  std::vector<Outcome> outcomes(2);
  start(ranks, data, outcomes);
  ASSERT_TRUE(ranks.until([&] { return ranks[1].broken() != nullptr; }));
  EXPECT_EQ(ranks[1].broken()->text,
            "NCCL on rank 1: connecting the ranks: unhandled system error (the mock says so)");
  for (int rank = 0; rank < 2; ++rank) ranks[rank].abort(*ranks[1].broken());
  EXPECT_TRUE(all_done(outcomes));
  ASSERT_TRUE(wait_for(1'000'000'000, [&] { return nccl_->alive() == 0; }));
}

TEST_F(Nccl, ConnectingHasAnEnd) {
  nccl_->never_connect();
  auto data = tensors(2);
  Ranks ranks(nccl_, 2, kHasty);
  std::vector<Outcome> outcomes(2);
  start(ranks, data, outcomes);
  ASSERT_TRUE(ranks.until([&] { return ranks[0].broken() && ranks[1].broken(); }));
  EXPECT_EQ(ranks[0].broken()->code, ErrorCode::kTimeout);
  EXPECT_NE(ranks[0].broken()->text.find("NCCL_SOCKET_IFNAME"), std::string::npos);
  for (int rank = 0; rank < 2; ++rank) ranks[rank].abort(*ranks[0].broken());
}

TEST_F(Nccl, AnErrorOfTheDeviceIsSeenThoughNothingIsStarted) {
  auto data = tensors(2);
  Ranks ranks(nccl_, 2, kHasty);
  std::vector<Outcome> outcomes(2);
  for (auto& stream : ranks.streams) stream->hold();
  start(ranks, data, outcomes);
  ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
  EXPECT_TRUE(ranks[0].idle());
  EXPECT_GT(ranks[0].look_again_ns(), 0u);
  nccl_->fail_later(0, ncclRemoteError);
  ASSERT_TRUE(ranks.until([&] { return ranks[0].broken() != nullptr; }));
  EXPECT_EQ(ranks[0].broken()->code, ErrorCode::kRankLost);
  EXPECT_EQ(ranks[0].broken()->text,
            "NCCL on rank 0: moving data: remote process exited or there was a network error (the "
            "mock says so)");
  EXPECT_EQ(ranks[1].broken(), nullptr);
  for (auto& stream : ranks.streams) stream->release();
  for (int rank = 0; rank < 2; ++rank) ranks[rank].abort(*ranks[0].broken());
}

TEST_F(Nccl, NothingIsLookedAtWhenTheDeviceIsAtRest) {
  Ranks ranks(nccl_, 2, kHasty);
  expect_sum(ranks);
  ASSERT_TRUE(ranks.until([&] { return ranks[0].look_again_ns() == 0; }));
}

TEST_F(Nccl, AbortEndsWhatWaitsForALostRank) {
  auto data = tensors(2);
  Ranks ranks(nccl_, 2, kHasty);
  expect_sum(ranks);
  Outcome lost;
  ranks[0].start(allreduce({&data[0]}, ranks.streams[0], lost));
  ASSERT_TRUE(ranks.until([&] { return lost.status.has_value(); }));
  EXPECT_FALSE(lost.finished->passed().value());  // rank 1 never comes
  ranks[0].abort({.code = ErrorCode::kRankLost, .text = "rank 1 died", .rank = 1});
  EXPECT_TRUE(static_cast<const FakeEvent&>(*lost.finished).wait());
  EXPECT_EQ(ranks[0].look_again_ns(), 0u);
}

TEST_F(Nccl, AnAbortThatBlocksHoldsUpNobodyForLong) {
  auto data = tensors(2);
  std::vector<Outcome> outcomes(2);
  nccl_->block_aborts(true);
  const std::uint64_t begin_ns = monotonic_ns();
  {
    Ranks ranks(nccl_, 2, kHasty);
    start(ranks, data, outcomes);
    for (int i = 0; i < 5; ++i) ranks[0].advance();
    for (int rank = 0; rank < 2; ++rank) {
      ranks[rank].abort({.code = ErrorCode::kShutdown, .text = "enough"});
    }
    EXPECT_TRUE(all_done(outcomes));
    EXPECT_LT(monotonic_ns() - begin_ns, kHasty.farewell_ns);
  }
  EXPECT_LT(monotonic_ns() - begin_ns, 10 * kHasty.farewell_ns);
  nccl_->block_aborts(false);
  ASSERT_TRUE(wait_for(5'000'000'000, [&] { return nccl_->aborts() == 1; }));  // rank 0's
}

TEST_F(Nccl, AGoodbyeThatNobodyAnswersEndsInAnAbort) {
  nccl_->never_finalize();
  {
    Ranks ranks(nccl_, 2, kHasty);
    expect_sum(ranks);
  }
  EXPECT_EQ(nccl_->aborts(), 2);
}

TEST_F(Nccl, AnEndThatWaitsForAnotherRankHoldsUpNobodyForLong) {
  Ranks ranks(nccl_, 2, kHasty);
  expect_sum(ranks);
  const std::uint64_t begin_ns = monotonic_ns();
  ranks.backends[1].reset();  // rank 0 still computes
  EXPECT_LT(monotonic_ns() - begin_ns, 10 * kHasty.farewell_ns);
  EXPECT_EQ(nccl_->alive(), 2);
  ranks.backends[0].reset();
  ASSERT_TRUE(wait_for(5'000'000'000, [&] { return nccl_->alive() == 0; }));
  EXPECT_EQ(nccl_->aborts(), 0);
}

TEST_F(Nccl, TheEndWaitsForTheDevice) {
  auto data = tensors(2);
  std::vector<Outcome> outcomes(2);
  {
    Ranks ranks(nccl_, 2);
    for (auto& stream : ranks.streams) stream->hold();
    start(ranks, data, outcomes);
    ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
    for (auto& stream : ranks.streams) stream->release();
  }
  EXPECT_EQ(data[0][0], 3.0f);
  EXPECT_EQ(nccl_->aborts(), 0);
}

TEST_F(Nccl, ASlowDeviceIsNotBrokenOff) {
  auto data = tensors(2);
  std::vector<Outcome> outcomes(2);
  std::thread device;
  {
    Ranks ranks(nccl_, 2, kHasty);
    for (auto& stream : ranks.streams) stream->hold();
    start(ranks, data, outcomes);
    ASSERT_TRUE(ranks.until([&] { return all_done(outcomes); }));
    device = std::thread([streams = ranks.streams] {
      std::this_thread::sleep_for(std::chrono::nanoseconds(3 * kHasty.farewell_ns));
      for (auto& stream : streams) stream->release();
    });
  }
  device.join();
  EXPECT_EQ(data[0][0], 3.0f);
  EXPECT_EQ(data[1][0], 3.0f);
  EXPECT_EQ(nccl_->aborts(), 0);
}

TEST_F(Nccl, TheEndDoesNotWaitForADeviceThatHasFailed) {
  auto data = tensors(2);
  Outcome lost;
  const std::uint64_t begin_ns = monotonic_ns();
  {
    Ranks ranks(nccl_, 2, kHasty);
    expect_sum(ranks);
    ranks[0].start(allreduce({&data[0]}, ranks.streams[0], lost));
    ASSERT_TRUE(ranks.until([&] { return lost.status.has_value(); }));
    nccl_->fail_later(0, ncclRemoteError);  // nobody looks before the end
  }
  EXPECT_LT(monotonic_ns() - begin_ns, 5'000'000'000u);
  EXPECT_EQ(nccl_->aborts(), 1);
}

TEST_F(Nccl, NothingIsLeftAfterAHundredOfThem) {
  for (int i = 0; i < 100; ++i) {
    Ranks ranks(nccl_, 2);
    expect_sum(ranks);
  }
  EXPECT_EQ(nccl_->alive(), 0);
  EXPECT_EQ(nccl_->aborts(), 0);
}

TEST_F(Nccl, SeveralAtATimeOnOtherDevices) {
  Ranks some(nccl_, 2, {}, 0);
  Ranks others(nccl_, 3, {}, 2);
  for (int i = 0; i < 3; ++i) {
    expect_sum(some);
    expect_sum(others);
  }
}

class NcclFloat8 : public Nccl {
 protected:
  // What every rank is told that sums.
  static std::string refusal_of_a_sum(Ranks& ranks) {
    const auto size = static_cast<std::size_t>(ranks.size());
    std::vector<std::uint8_t> bits(8 * size, 0x38);
    std::vector<Outcome> outcomes(size);
    for (std::size_t rank = 0; rank < size; ++rank) {
      auto* const data = reinterpret_cast<std::byte*>(&bits[8 * rank]);
      Execution execution;
      execution.op.dtype = DType::kFloat8E4M3;
      execution.buffers = {{data, data, 8, 8}};
      execution.device = {{ranks.streams[rank], nullptr}};
      execution.done = outcomes[rank].done();
      ranks[static_cast<int>(rank)].start(std::move(execution));
    }
    EXPECT_TRUE(ranks.until([&] { return all_done(outcomes); }));
    std::string text;
    for (const Outcome& outcome : outcomes) {
      if (!outcome.status || outcome.status->ok()) return "none";
      if (text.empty()) text = outcome.status->error().text;
      EXPECT_EQ(outcome.status->error().text, text);
    }
    return text;
  }
};

TEST_F(NcclFloat8, IsRefusedWhereTheOldestLibraryLacksIt) {
  for (const int oldest : {0, 1, 2}) {
    const auto nccl = std::make_shared<MockNccl>();
    nccl->set_version_of(oldest, NCCL_VERSION(2, 23, 5));
    Ranks ranks(nccl, 3);
    EXPECT_EQ(refusal_of_a_sum(ranks),
              "NCCL has no Sum of float8_e4m3fn before 2.24, and a rank has an older one; convert "
              "the tensor to bfloat16");
  }
}

TEST_F(NcclFloat8, IsRefusedWhereTheOldestGpuLacksIt) {
  for (const std::size_t oldest : {0u, 1u, 2u}) {
    Ranks ranks(nccl_, 3);
    ranks.streams[oldest] = std::make_shared<FakeStream>(static_cast<int>(oldest), 80);
    EXPECT_EQ(refusal_of_a_sum(ranks),
              "NCCL has no Sum of float8_e4m3fn on a GPU older than Hopper, and a rank has one; "
              "convert the tensor to bfloat16");
  }
}

}  // namespace
}  // namespace ciranda::testing
