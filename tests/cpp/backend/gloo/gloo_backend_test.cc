// Real Gloo over loopback: ranks are threads. What could break: everything that blocks in the
// library. What it computes, engine/all_backends_test.cc says.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "backend/board.h"
#include "core/backend/gloo/gloo.h"
#include "engine/hosts.h"
#include "engine/world.h"
#include "required.h"

namespace ciranda::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Options on_gloo(Options options = {}) {
  options.backend = BackendId::kGloo;
  return options;
}

class GlooOnRanks : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const Status status = Backends::available(BackendId::kGloo); !status) {
      CIRANDA_SKIP(status.error().text);
    }
  }
};
class Gloo : public GlooOnRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooOnRanks, ::testing::Values(1, 2, 3, 4, 5));
INSTANTIATE_TEST_SUITE_P(Two, Gloo, ::testing::Values(2));

void wait(Engine& engine, const Result<Handle>& handle) {
  ASSERT_TRUE(handle.ok()) << handle.error().text;
  const Status status = engine.wait(handle.value());
  ASSERT_TRUE(status.ok()) << status.error().text;
}

// Two ranks reduce as a cube up to 16 MiB, and else a ring passes pieces.
TEST_P(GlooOnRanks, ReducesMoreThanAPiece) {
  World world(GetParam());
  const auto n = static_cast<float>(world.size());
  world.run([&](Engine& engine) {
    for (const std::size_t count : {(4u << 20), (4u << 20) + 1}) {
      std::vector<float> tensor(count, static_cast<float>(engine.rank() + 1));
      wait(engine, allreduce(engine, tensor, on_gloo()));
      ASSERT_EQ(tensor, std::vector<float>(count, n * (n + 1) / 2));
    }
  });
}

TEST_P(GlooOnRanks, RunsBesideTheNativeBackend) {
  World world(GetParam());
  const auto n = static_cast<float>(world.size());
  world.run([&](Engine& engine) {
    std::vector<std::vector<float>> tensors(20, std::vector<float>(3000, 1.0F));
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Options options{.name = "t" + std::to_string(i)};
      if (i % 2 == 0) options = on_gloo(options);
      auto handle = allreduce(engine, tensors[i], options);
      ASSERT_TRUE(handle.ok());
      handles.push_back(handle.value());
    }
    ASSERT_TRUE(engine.wait(handles).ok());
    for (const auto& tensor : tensors) EXPECT_EQ(tensor, std::vector<float>(3000, n));
  });
}

TEST_P(Gloo, ARankThatOnlySubmittedTakesPart) {
  for (const bool hosts : {false, true}) {
    World world = hosts ? several_hosts({2, 2}, {.pace = {.spin_ns = 20'000}}) : World(4);
    std::vector<std::vector<float>> tensors(4, std::vector<float>(1000, 1.0F));
    std::vector<Handle> handles;
    for (int rank = 0; rank < 4; ++rank) {
      auto handle = allreduce(world[rank], tensors[static_cast<std::size_t>(rank)], on_gloo());
      ASSERT_TRUE(handle.ok());
      handles.push_back(handle.value());
    }
    ASSERT_TRUE(world[0].wait(handles[0]).ok());
    EXPECT_EQ(tensors[0], std::vector<float>(1000, 4.0F));
    for (int rank = 1; rank < 4; ++rank) {
      ASSERT_TRUE(world[rank].wait(handles[static_cast<std::size_t>(rank)]).ok());
    }
  }
}

// The local ranks of its members are not their indexes in the group.
TEST_P(Gloo, AMemberOfAGroupThatOnlySubmittedTakesPart) {
  World world(4);
  GroupId odd = kWorldGroup;
  world.run([&](Engine& engine) {
    const auto group = engine.add_group({1, 3});
    ASSERT_TRUE(group.ok());
    if (engine.rank() == 1) odd = group.value()->id;
  });
  std::vector<std::vector<float>> tensors(2, std::vector<float>(1000, 1.0F));
  std::vector<Handle> handles;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Options options{.group = odd};
    auto handle = allreduce(world[static_cast<int>(2 * i + 1)], tensors[i], on_gloo(options));
    ASSERT_TRUE(handle.ok());
    handles.push_back(handle.value());
  }
  ASSERT_TRUE(world[1].wait(handles[0]).ok());
  EXPECT_EQ(tensors[0], std::vector<float>(1000, 2.0F));
  ASSERT_TRUE(world[3].wait(handles[1]).ok());
}

// ------------------------------------------------------------------------------------------------
// Backends without engines, so that one can come late, or never

class GlooAlone : public GlooOnRanks {
 protected:
  void SetUp() override {
    GlooOnRanks::SetUp();
    for (int rank = 0; rank < GetParam(); ++rank) {
      if (IsSkipped()) return;
      ranks_.push_back(std::make_unique<Member>());
      BackendContext context = board_.context(rank);
      context.local_rank = rank;
      context.locals.resize(static_cast<std::size_t>(GetParam()));
      std::iota(context.locals.begin(), context.locals.end(), 0);
      context.address = "127.0.0.1";
      context.wake = [] {};
      ranks_.back()->backend = make_gloo(std::move(context));
    }
  }

  struct Member {
    std::unique_ptr<Backend> backend;
    std::vector<float> tensor = std::vector<float>(300'000, 1.0F);
    std::vector<Status> done;
  };

  void start(Member& member, OpKind kind = OpKind::kAllreduce) {
    auto* data = reinterpret_cast<std::byte*>(member.tensor.data());
    const std::size_t bytes = member.tensor.size() * sizeof(float);
    Execution execution{.op = {.kind = kind, .root = 0, .backend = BackendId::kGloo},
                        .buffers = {{data, data, bytes, bytes}}};
    execution.done = [&member](const Status& status, const auto&) {
      member.done.push_back(status);
    };
    member.backend->start(std::move(execution));
  }

  template <typename Fn>
  bool until(Fn reached) {
    const auto give_up = steady_clock::now() + milliseconds(10'000);
    while (!reached() && steady_clock::now() < give_up) {
      for (auto& member : ranks_) member->backend->advance();
      std::this_thread::sleep_for(milliseconds(1));
    }
    return reached();
  }

  bool until_all_are_idle() {
    return until([this] {
      return std::all_of(ranks_.begin(), ranks_.end(),
                         [](const auto& member) { return member->backend->idle(); });
    });
  }

  // Aborts rank 0, which must not wait for anybody.
  void abort_first() {
    const auto begin = steady_clock::now();
    ranks_[0]->backend->abort({.code = ErrorCode::kRankLost, .text = "gone"});
    EXPECT_LT(steady_clock::now() - begin, milliseconds(1000));
    EXPECT_TRUE(ranks_[0]->backend->idle());
    for (const Status& status : ranks_[0]->done) EXPECT_EQ(status.error().text, "gone");
  }

  Board board_{GetParam()};
  std::vector<std::unique_ptr<Member>> ranks_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooAlone, ::testing::Values(2, 4));

// The IPv4 addresses at which this process listens, as /proc/net/tcp writes them.
std::set<std::string> listens_on() {
  std::set<std::string> own;  // sockets
  for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // the folder itself was one
    own.insert(std::filesystem::read_symlink(descriptor, closed).string());
  }
  std::set<std::string> addresses;
  std::ifstream table("/proc/self/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    if (state == "0A" && own.contains("socket:[" + inode + "]")) {
      addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

TEST_P(GlooAlone, ListensOnlyAtItsAddressAndUntilAllAreConnected) {
  for (auto& member : ranks_) start(*member);
  EXPECT_EQ(listens_on(), std::set<std::string>{"0100007F"});
  ASSERT_TRUE(until_all_are_idle());
  EXPECT_EQ(listens_on(), std::set<std::string>{});
}

TEST_P(GlooAlone, NothingIsDoneBeforeAllHaveBegun) {
  start(*ranks_[0]);
  EXPECT_FALSE(ranks_[0]->backend->idle());
  for (int i = 0; i < 20; ++i) ranks_[0]->backend->advance();
  EXPECT_TRUE(ranks_[0]->done.empty());
  std::vector<Rank> blockers;
  ranks_[0]->backend->blocked_on(blockers);
  EXPECT_EQ(blockers.size(), ranks_.size() - 1);
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) start(*ranks_[rank]);
  ASSERT_TRUE(until([&] { return ranks_[0]->backend->idle(); }));
  EXPECT_TRUE(ranks_[0]->done.at(0).ok());
  EXPECT_EQ(ranks_[0]->tensor[0], static_cast<float>(GetParam()));
}

TEST_P(GlooAlone, IsAbortedBeforeTheOthersAreKnown) {
  start(*ranks_[0]);
  abort_first();
  EXPECT_EQ(ranks_[0]->done.size(), 1u);
}

// Of two ranks that connect, one calls and one waits; which, the addresses say.
TEST_P(GlooAlone, IsAbortedWhileTheOthersDoNotConnect) {
  for (auto& member : ranks_) start(*member);
  ranks_[0]->backend->advance();
  std::this_thread::sleep_for(milliseconds(50));
  abort_first();
  EXPECT_EQ(ranks_[0]->done.size(), 1u);
}

TEST_P(GlooAlone, IsAbortedWhileARankDoesNotCome) {
  for (auto& member : ranks_) start(*member);
  ASSERT_TRUE(until([&] { return ranks_[0]->done.size() == 1; }));
  start(*ranks_[0]);
  start(*ranks_[0], OpKind::kBroadcast);
  std::this_thread::sleep_for(milliseconds(50));
  ranks_[0]->done.clear();
  abort_first();
  EXPECT_EQ(ranks_[0]->done.size(), 2u);
}

TEST_P(GlooAlone, ALostRankIsNamed) {
  for (auto& member : ranks_) start(*member);
  ASSERT_TRUE(until_all_are_idle());
  ranks_.erase(ranks_.begin() + 1);
  for (auto& member : ranks_) start(*member);
  const Error* broken = nullptr;
  ASSERT_TRUE(until([&] {
    for (auto& member : ranks_) {
      if (broken == nullptr) broken = member->backend->broken();
    }
    return broken != nullptr;
  }));
  EXPECT_EQ(broken->code, ErrorCode::kRankLost);
  EXPECT_EQ(broken->rank, 1) << broken->text;
  EXPECT_EQ(broken->text.rfind("Gloo lost rank 1: ", 0), 0u) << broken->text;
}

}  // namespace
}  // namespace ciranda::testing
