// Ranks of several hosts meet: breaks when one is left out, or a stranger is let in.
#include "core/transport/join/remote_mesh.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "core/base/clock.h"
#include "transport/join/meeting.h"

namespace ciranda::testing {
namespace {

class MetMesh : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(RemoteMesh, MetMesh, ::testing::Bool(),
                         [](const auto& tls) { return tls.param ? "Tls" : "Clear"; });

TEST_P(MetMesh, EverybodyKnowsWhoIsWhere) {
  const std::vector<RemoteMesh> meshes = met({2, 1, 3}, 1, 20'000, /*tls=*/GetParam()).remotes;
  ASSERT_EQ(meshes.size(), 6u);
  for (const RemoteMesh& mesh : meshes) {
    EXPECT_EQ(mesh.hosts, (Hosts{{0, 1}, {2}, {3, 4, 5}}));
    EXPECT_EQ(mesh.size(), 6);
  }
  EXPECT_EQ(meshes[0].control.size(), 2u);
  EXPECT_EQ(meshes[1].control.size(), 0u);
  ASSERT_EQ(meshes[2].control.size(), 1u);
  EXPECT_EQ(meshes[2].control[0].peer(), 0);
  EXPECT_EQ(meshes[4].control.size(), 0u);
}

TEST(RemoteMesh, Rank0TellsOnceWhereTheHostsAre) {
  std::vector<std::string> told;
  for (const Epoch epoch : {0u, 1u}) {
    std::vector<RemoteJoin> all = joins(std::vector<int>(10, 1));
    for (RemoteJoin& join : all) {
      join.epoch = epoch;
      join.tell = [&told, rank = join.self.rank](const std::string& text) {
        told.push_back("rank " + std::to_string(rank) + ": " + text);
      };
    }
    for (const auto& result : meet(std::move(all), inside(std::vector<int>(10, 1)))) {
      EXPECT_TRUE(result.ok());
    }
  }
  std::string expected = "rank 0: 10 hosts met through lo: host 0 at 127.0.0.1";
  for (int host = 1; host < 8; ++host) {
    expected += ", host " + std::to_string(host) + " at 127.0.0.1";
  }
  EXPECT_EQ(told, std::vector<std::string>{expected + " and 2 more"});
}

TEST(RemoteMesh, WhoIsMissingIsNamed) {
  std::vector<RemoteJoin> all = joins({1, 1, 1}, 1, /*timeout_ms=*/1'500);
  all.pop_back();
  const auto results = meet(std::move(all), inside({1, 1, 1}));
  ASSERT_FALSE(results[0].ok());
  EXPECT_EQ(results[0].error().code, ErrorCode::kTimeout);
  EXPECT_NE(results[0].error().text.find("these of the 3 ranks did not join rank 0"),
            std::string::npos);
  EXPECT_EQ(results[0].error().text.substr(results[0].error().text.size() - 3), ": 2");
  ASSERT_FALSE(results[1].ok());
}

TEST(RemoteMesh, ContradictionsAreToldToAll) {
  std::vector<RemoteJoin> all = joins({1, 2});
  all[2].self.local_rank = 0;
  for (const auto& result : meet(std::move(all), inside({1, 2}))) {
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().text.find("are both local rank 0 on host 1"), std::string::npos);
  }
}

// Found as soon as the second of them is heard, while another host is still missing.
TEST(RemoteMesh, ARankOnTwoHostsIsToldToAllWhoHaveCalled) {
  std::vector<RemoteJoin> all = joins({1, 2, 1, 1});
  all[2].self.rank = 3;
  all.pop_back();
  auto locals = inside({1, 2, 1});
  for (const auto& result : meet(std::move(all), locals)) {
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().text.find("rank 3 is on host "), std::string::npos)
        << result.error().text;
  }
}

TEST(RemoteMesh, AnotherSettingIsToldToAllHostsWithBothValues) {
  std::vector<RemoteJoin> all = joins({1, 2});
  for (RemoteJoin& join : all) join.self.settings = "CIRANDA_STREAMS=1\n";
  all[2].self.settings = "CIRANDA_STREAMS=2\n";
  for (const auto& result : meet(std::move(all), inside({1, 2}))) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().text,
              "rank 2 has CIRANDA_STREAMS=2, rank 0 has 1; set the same for every rank");
  }
}

TEST(RemoteMesh, RanksOfAHostThatIsNotHeardAreTold) {
  std::vector<RemoteJoin> all = joins({1, 3}, 1, /*timeout_ms=*/500);
  all.erase(all.begin());
  auto locals = inside({1, 3});
  locals.erase(locals.begin());
  for (const auto& result : meet(std::move(all), locals)) {
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().text.find("rank 0 could not be reached in time; at 127.0.0.1:"),
              std::string::npos)
        << result.error().text;
  }
}

TEST(RemoteMesh, ARankThatEndsBeforeTheHostsHaveMetIsNamed) {
  auto locals = inside({1, 2});
  std::vector<RemoteJoin> all = joins({1, 2}, 1, /*timeout_ms=*/1'000);
  all.pop_back();
  for (LocalMesh::Peer& peer : locals[2].peers) peer.socket.reset();
  const auto results = meet(std::move(all), locals);
  ASSERT_FALSE(results[1].ok());
  EXPECT_EQ(results[1].error().code, ErrorCode::kRankLost);
  EXPECT_NE(results[1].error().text.find("local rank 1 of host 1"), std::string::npos);
}

// Rank 0 waits for host 2, and the others wait for rank 0, or for their first rank.
TEST(RemoteMesh, AMeetingThatIsInterruptedEndsForAll) {
  std::vector<RemoteJoin> all = joins({2, 2, 1});
  all.pop_back();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(::write(pipe[1], "", 1), 1);
  });
  const std::uint64_t begin_ns = monotonic_ns();
  for (const auto& result : meet(std::move(all), inside({2, 2, 1}), {.interrupt = pipe[0]})) {
    ASSERT_FALSE(result.ok());
    const ErrorCode code = result.error().code;
    EXPECT_TRUE(code == ErrorCode::kShutdown || code == ErrorCode::kRankLost)
        << result.error().text;
  }
  EXPECT_LT(monotonic_ns() - begin_ns, 10'000'000'000) << "the meeting's time-out is 20 s";
  later.join();
  for (const int fd : pipe) ::close(fd);
}

// Nobody listens at the rendezvous.
TEST(RemoteMesh, ACallThatIsInterruptedEnds) {
  std::vector<RemoteJoin> all = joins({1, 2});
  all.erase(all.begin());
  auto locals = inside({1, 2});
  locals.erase(locals.begin());
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  EXPECT_EQ(::write(pipe[1], "", 1), 1);
  for (const auto& result : meet(std::move(all), locals, {.interrupt = pipe[0]})) {
    ASSERT_FALSE(result.ok());
    const ErrorCode code = result.error().code;
    EXPECT_TRUE(code == ErrorCode::kShutdown || code == ErrorCode::kRankLost)
        << result.error().text;
  }
  for (const int fd : pipe) ::close(fd);
}

TEST(RemoteMesh, Rank0IsTheFirstOfTheFirstHost) {
  std::vector<RemoteJoin> all = joins({2});
  std::swap(all[0].self.local_rank, all[1].self.local_rank);
  const auto locals = inside({2});
  const auto result = join_remote(std::move(all[0]), locals[0], test_key());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().text,
            "rank 0 is local rank 1 of host 0, but rank 0 must be local rank 0 of host 0");
}

TEST(RemoteMesh, AMeetingPortThatIsTakenIsNamedWithItsUserAndTheWayOut) {
  std::vector<RemoteJoin> all = joins({1, 1});
  const Fd other = std::move(all[0].listener);
  const auto local = inside({1});
  const auto result = join_remote(std::move(all[0]), local[0], test_key());
  ASSERT_FALSE(result.ok());
  const std::string& said = result.error().text;
  EXPECT_NE(said.find("which another program of user " + std::to_string(::geteuid())),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("CIRANDA_RENDEZVOUS=host:port"), std::string::npos) << said;
}

TEST(RemoteMesh, TlsIsForAllOrNone) {
  for (const std::size_t without : {0u, 1u}) {
    std::vector<RemoteJoin> all = joins({1, 1}, 1, /*timeout_ms=*/500, /*tls=*/true);
    all[without].tls = false;
    for (const auto& result : meet(std::move(all), inside({1, 1}))) {
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.error().code, ErrorCode::kTimeout);
      EXPECT_NE(result.error().text.find(kTlsForAllOrNone), std::string::npos)
          << result.error().text;
    }
  }
}

RemoteJoin again(const RemoteJoin& join) {
  return {.self = join.self,
          .job_id = join.job_id,
          .rendezvous = join.rendezvous,
          .ports = join.ports,
          .addresses = join.addresses,
          .timeout_ms = join.timeout_ms};
}

TEST(RemoteMesh, ARankThatIsStartedAgainTakesThePlaceOfItsEarlierProcess) {
  std::vector<RemoteJoin> all = joins({1, 1, 1});
  const auto locals = inside({1, 1, 1});
  const auto of_leftover = inside({1});
  std::optional<Result<RemoteMesh>> leftover;
  std::thread earlier([&, join = again(all[1])]() mutable {
    leftover = join_remote(std::move(join), of_leftover[0], test_key());
  });
  std::vector<std::optional<Result<RemoteMesh>>> met(3);
  std::vector<std::thread> ranks;
  for (const std::size_t rank : {0u, 1u, 2u}) {
    ranks.emplace_back([&, rank, join = std::move(all[rank])]() mutable {
      met[rank] = join_remote(std::move(join), locals[rank], test_key());
    });
    // The leftover is heard first: usually, and any order is right.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  for (std::thread& rank : ranks) rank.join();
  earlier.join();
  for (const auto& mesh : met) EXPECT_TRUE(mesh->ok()) << mesh->error().text;
  EXPECT_FALSE(leftover->ok());
}

// Whose earlier address a rank of the new start has got: ports come from a small range.
TEST(RemoteMesh, AProcessLeftFromAnEarlierStartIsNoPeer) {
  const std::uint16_t port = [] {
    const Fd free = std::move(listen_tcp("127.0.0.1")).value();
    return local_address(free.get()).value().endpoint().port;
  }();
  const auto start = [port](std::vector<LocalMesh>& locals) {
    std::vector<RemoteJoin> all = joins({1, 1, 1}, 1, /*timeout_ms=*/3'000);
    all[1].ports = {port, port};
    locals = inside({1, 1, 1});
    std::vector<RemoteMesh> meshes;
    for (auto& result : meet(std::move(all), locals)) {
      EXPECT_TRUE(result.ok()) << result.error().text;
      meshes.push_back(std::move(result).value());
    }
    return meshes;
  };
  std::vector<LocalMesh> locals;
  std::vector<LocalMesh> new_locals;
  std::vector<RemoteMesh> earlier = start(locals);
  earlier[1] = {};
  std::vector<RemoteMesh> meshes = start(new_locals);
  EXPECT_EQ(earlier[2].links.find(1, 0), nullptr) << "it calls";
  Result<bool> leftover = false;
  while (leftover.ok() && !leftover.value()) leftover = earlier[2].links.advance();
  EXPECT_FALSE(leftover.ok());
  const auto connected = [&](Rank rank, Rank peer) {
    for (int i = 0;
         i < 2000 && meshes[static_cast<std::size_t>(rank)].links.find(peer, 0) == nullptr; ++i) {
      for (RemoteMesh& mesh : meshes) ASSERT_TRUE(mesh.links.advance().ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_NE(meshes[static_cast<std::size_t>(rank)].links.find(peer, 0), nullptr);
  };
  connected(2, 1);
  connected(1, 2);
}

TEST(RemoteMesh, AnotherKeyIsAStranger) {
  std::vector<RemoteJoin> all = joins({1, 1});
  RemoteJoin stranger{.self = all[1].self,
                      .job_id = "test",
                      .rendezvous = all[1].rendezvous,
                      .addresses = {"127.0.0.1"},
                      .timeout_ms = 300};
  std::thread other([&stranger] {
    const auto local = inside({1});
    const auto result = join_remote(std::move(stranger), local[0], test_key(std::byte{8}));
    EXPECT_FALSE(result.ok());
  });
  for (const auto& result : meet(std::move(all), inside({1, 1}))) EXPECT_TRUE(result.ok());
  other.join();
}

}  // namespace
}  // namespace ciranda::testing
