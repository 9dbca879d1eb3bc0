// What goes on aggregated, what alone, and what is refused. Random jobs are in
// sim/aggregated_test.cc.
#include "core/negotiate/aggregator.h"

#include <gtest/gtest.h>

#include "negotiate/requests.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kPatience = 1000;

// Three hosts with ranks 0 1 | 2 3 | 4, whose links deliver at once.
class ThreeHosts : public ::testing::Test {
 protected:
  ThreeHosts() {
    for (int host = 0; host < 3; ++host) {
      negotiators_.push_back(std::make_unique<Negotiator>(
          Negotiator::Options{.size = 5, .hosts = hosts_, .host = host}));
      aggregators_.push_back(
          std::make_unique<Aggregator>(hosts_, host, *negotiators_.back(), kPatience));
    }
    // Makes "w" known.
    for (Rank rank = 0; rank < 5; ++rank) submit(rank, {.spec = allreduce("w")});
    settle();
    id_ = negotiators_[0]->known(allreduce("w"));
    EXPECT_NE(id_, kNoCacheId);
    forget();
  }

  static std::size_t host_of(Rank rank) { return static_cast<std::size_t>(rank / 2); }
  Aggregator& aggregator_of(Rank rank) { return *aggregators_[host_of(rank)]; }

  void submit(Rank rank, Request request) {
    request.contribution.token = 10u + static_cast<std::uint32_t>(rank);
    say(rank, {.requests = {std::move(request)}});
  }
  void submit_known(Rank rank) { submit(rank, {.cache_id = id_}); }
  void say(Rank rank, const Frame& frame) {
    std::vector<std::byte> bytes;
    encode(frame, bytes);
    aggregator_of(rank).submit(rank, bytes, tick_);
  }

  // Until nothing moves any more.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t host = 0; host < 3; ++host) {
        ASSERT_TRUE(aggregators_[host]->flush(tick_, true).ok());
        for (auto& outbox = aggregators_[host]->outbox(); !outbox.empty(); outbox.pop_front()) {
          moved = true;
          (host == 0 ? down_ : up_).push_back(outbox.front());
          for (std::size_t to = host == 0 ? 1 : 0; to < (host == 0 ? 3u : 1u); ++to) {
            ASSERT_TRUE(
                aggregators_[to]->arrive(outbox.front().from, outbox.front().bytes, tick_).ok());
          }
        }
        for (auto& inbox = aggregators_[host]->inbox(); !inbox.empty(); inbox.pop_front()) {
          moved = true;
          ASSERT_TRUE(
              negotiators_[host]
                  ->handle_frame(inbox.front().from, inbox.front().bytes, tick_, responses_[host])
                  .ok());
        }
      }
    }
  }
  void forget() {
    up_.clear();
    down_.clear();
    for (auto& responses : responses_) responses.clear();
  }

  const Hosts hosts_ = {{0, 1}, {2, 3}, {4}};
  std::vector<std::unique_ptr<Negotiator>> negotiators_;
  std::vector<std::unique_ptr<Aggregator>> aggregators_;
  std::vector<CarriedFrame> up_, down_;  // what crossed from host to host
  std::vector<Response> responses_[3];
  std::uint64_t tick_ = 0;
  CacheId id_ = kNoCacheId;
};

TEST_F(ThreeHosts, AKnownOperationCostsEachHostOneFrameEachWay) {
  for (const Rank rank : {3, 0, 4, 1}) submit_known(rank);
  settle();
  EXPECT_EQ(up_.size(), 1u);  // of host 2, which is complete
  EXPECT_TRUE(down_.empty());
  EXPECT_TRUE(aggregators_[0]->holds() && aggregators_[1]->holds());
  submit_known(2);
  settle();
  EXPECT_EQ(up_.size(), 2u);
  ASSERT_EQ(down_.size(), 1u);
  EXPECT_EQ(down_[0].bytes.size(), 6u);  // kind, host, count; number, occurrence, contributions
  for (std::size_t host = 0; host < 3; ++host) {
    EXPECT_FALSE(aggregators_[host]->holds());
    ASSERT_EQ(responses_[host].size(), 1u);
    EXPECT_EQ(responses_[host][0].verdict, Response::Verdict::kRun);
    EXPECT_EQ(responses_[host][0].cache_id, id_);
    ASSERT_EQ(responses_[host][0].contributions.size(), hosts_[host].size());
    for (const Rank rank : hosts_[host]) {
      EXPECT_EQ(contribution_of(responses_[host][0], rank)->token,
                10u + static_cast<std::uint32_t>(rank));
    }
  }
}

TEST_F(ThreeHosts, ManyAtOnceAreOneFrame) {
  for (const char* name : {"x", "y", "z"}) {
    for (Rank rank = 0; rank < 5; ++rank) submit(rank, {.spec = allreduce(name)});
  }
  settle();
  forget();
  for (Rank rank = 0; rank < 5; ++rank) {
    Frame frame;
    for (const char* name : {"x", "y", "z"}) {
      frame.requests.push_back({.cache_id = negotiators_[0]->known(allreduce(name))});
    }
    say(rank, frame);
  }
  settle();
  EXPECT_EQ(up_.size(), 2u);
  EXPECT_EQ(down_.size(), 1u);
  EXPECT_EQ(responses_[2].size(), 3u);
}

TEST_F(ThreeHosts, WhatIsNewGoesOnAtOnce) {
  submit(2, {.spec = allreduce("new")});
  settle();
  EXPECT_EQ(negotiators_[2]->waiting().size(), 1u);
}

TEST_F(ThreeHosts, PatienceEnds) {
  submit_known(2);
  submit_known(4);
  tick_ += kPatience - 1;
  settle();
  EXPECT_TRUE(negotiators_[0]->waiting().empty());
  tick_ += kPatience;
  settle();
  for (const auto& negotiator : negotiators_) {
    ASSERT_EQ(negotiator->waiting().size(), 1u);
    EXPECT_EQ(negotiator->waiting()[0].missing, (std::vector<Rank>{0, 1, 3}));
  }
  // The others are not held any more.
  submit_known(3);
  settle();
  EXPECT_EQ(negotiators_[0]->waiting()[0].missing, (std::vector<Rank>{0, 1}));
  submit_known(0);
  submit_known(1);
  settle();
  EXPECT_EQ(responses_[1].size(), 1u);
}

TEST_F(ThreeHosts, AMismatchIsSeenThoughOthersWereHeld) {
  for (const Rank rank : {0, 2, 3, 4}) submit_known(rank);
  submit(1, {.spec = allreduce("w", {99})});
  settle();
  for (const auto& responses : responses_) {
    ASSERT_EQ(responses.size(), 1u);
    EXPECT_EQ(responses[0].error->code, ErrorCode::kMismatch);
  }
}

TEST_F(ThreeHosts, AGoodbyeEndsWhatWasHeld) {
  for (const Rank rank : {1, 2, 4}) submit_known(rank);
  say(0, {.kind = FrameKind::kLeave});
  settle();
  submit_known(3);
  settle();
  EXPECT_EQ(responses_[1][0].error->code, ErrorCode::kRankLeft);
  for (const auto& aggregator : aggregators_) EXPECT_FALSE(aggregator->holds());
}

TEST_F(ThreeHosts, AGroupAsksOnlyItsMembersAndTheirHosts) {
  for (Rank rank = 0; rank < 5; ++rank)
    submit(rank, {.spec = RequestSpec{.kind = OpKind::kAddGroup, .members = {1, 2, 3}}});
  settle();
  RequestSpec spec = allreduce("w");
  spec.group = negotiators_[0]->groups().of_ranks({1, 2, 3})->id;
  for (const Rank rank : {1, 2, 3}) submit(rank, {.spec = spec});
  settle();
  forget();
  const CacheId id = negotiators_[2]->known(spec);
  for (const Rank rank : {2, 3, 1}) submit(rank, {.cache_id = id});
  settle();
  EXPECT_EQ(up_.size(), 1u);
  ASSERT_EQ(down_.size(), 1u);
  EXPECT_EQ(down_[0].bytes.size(), 6u);
  const std::vector<Rank> contributors[] = {{1}, {2, 3}, {}};
  for (std::size_t host = 0; host < 3; ++host) {
    ASSERT_EQ(responses_[host].size(), 1u);
    EXPECT_EQ(responses_[host][0].group->id, spec.group);
    std::vector<Rank> ranks;
    for (const auto& [rank, contribution] : responses_[host][0].contributions) {
      EXPECT_EQ(contribution.token, 10u + static_cast<std::uint32_t>(rank));
      ranks.push_back(rank);
    }
    EXPECT_EQ(ranks, contributors[host]);
    EXPECT_FALSE(aggregators_[host]->holds());
  }
}

TEST_F(ThreeHosts, NothingIsHeldWhileARankHasJoined) {
  submit_known(1);
  submit(0, {.spec = RequestSpec{.kind = OpKind::kJoin}});
  settle();
  for (const Rank rank : {2, 3, 4}) submit_known(rank);
  settle();
  for (std::size_t host = 0; host < 3; ++host) {
    ASSERT_EQ(responses_[host].size(), 1u);
    EXPECT_EQ(responses_[host][0].joined, std::vector<Rank>{0});
  }
}

TEST_F(ThreeHosts, RefuseAReadyOfRanksThatAreNoMembers) {
  for (Rank rank = 0; rank < 5; ++rank)
    submit(rank, {.spec = RequestSpec{.kind = OpKind::kAddGroup, .members = {1, 2}}});
  settle();
  RequestSpec spec = allreduce("w");
  spec.group = 1;
  for (const Rank rank : {1, 2}) submit(rank, {.spec = spec});
  settle();
  const KnownOp op{negotiators_[0]->known(spec), 0};
  const auto handle = [&](const ReadyOp& ready) {
    std::vector<std::byte> bytes;
    encode({.kind = FrameKind::kReady, .host = kAllHosts, .ready = {ready}}, bytes);
    return negotiators_[0]->handle_frame(0, bytes, tick_, responses_[0]).ok();
  };
  EXPECT_FALSE(handle({.op = op}));
  EXPECT_FALSE(handle({.op = op, .contributions = {{}}}));
  EXPECT_FALSE(handle({.op = op, .contributions = {{}}, .local_ranks = {0}}));
  EXPECT_FALSE(handle({.op = op, .contributions = {{}}, .local_ranks = {2}}));
  EXPECT_FALSE(handle({.op = op, .contributions = {{}, {}}, .local_ranks = {0, 1}}));
  EXPECT_TRUE(handle({.op = op, .contributions = {{}}, .local_ranks = {1}}));
  // A host without members reports nothing.
  std::vector<std::byte> report;
  encode({.kind = FrameKind::kReady, .host = 2, .ready = {{.op = op}}}, report);
  EXPECT_FALSE(aggregators_[0]->arrive(4, report, tick_).ok());
}

TEST_F(ThreeHosts, RefuseWhatNobodyReported) {
  std::vector<std::byte> ready;
  encode({.kind = FrameKind::kReady, .host = kAllHosts, .ready = {{.op = {id_, 0}}}}, ready);
  submit_known(2);
  const Status status = aggregators_[1]->arrive(0, ready, tick_);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMalformed);
  EXPECT_NE(status.error().text.find("not reported"), std::string::npos);
  // Where no rank has submitted anything the negotiators say so.
  EXPECT_TRUE(aggregators_[2]->arrive(0, ready, tick_).ok());
  const CarriedFrame& frame = aggregators_[2]->inbox().front();
  EXPECT_FALSE(negotiators_[2]->handle_frame(0, frame.bytes, tick_, responses_[2]).ok());
  // Host 0 takes reports from the first rank of a host only, and each once.
  std::vector<std::byte> report;
  encode({.kind = FrameKind::kReady, .host = 1, .ready = {{.op = {id_, 0}}}}, report);
  EXPECT_FALSE(aggregators_[0]->arrive(3, report, tick_).ok());
  EXPECT_TRUE(aggregators_[0]->arrive(2, report, tick_).ok());
  EXPECT_FALSE(aggregators_[0]->arrive(2, report, tick_).ok());
  EXPECT_FALSE(aggregators_[0]->arrive(0, ready, tick_).ok());
}

}  // namespace
}  // namespace ciranda
