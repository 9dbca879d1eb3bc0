// Ranks of several hosts meet: breaks when one is left out, or a stranger is let in.
#include "core/transport/remote_mesh.h"

#include "core/base/clock.h"
#include "transport/meeting.h"

namespace ciranda::testing {
namespace {

TEST(RemoteMesh, ConnectsEveryPair) {
  const std::vector<RemoteMesh> meshes = met({2, 1, 3}, /*streams=*/2);
  ASSERT_EQ(meshes.size(), 6u);
  for (const RemoteMesh& mesh : meshes) {
    EXPECT_EQ(mesh.hosts, (Hosts{{0, 1}, {2}, {3, 4, 5}}));
    for (Rank peer = 0; peer < 6; ++peer) {
      const auto& links = mesh.data[static_cast<std::size_t>(peer)];
      ASSERT_EQ(links.size(), peer == mesh.self ? 0u : 2u);
      for (const DataLink& link : links) EXPECT_EQ(link.peer, peer);
    }
  }
  EXPECT_EQ(meshes[0].control.size(), 2u);
  EXPECT_EQ(meshes[1].control.size(), 0u);
  ASSERT_EQ(meshes[2].control.size(), 1u);
  EXPECT_EQ(meshes[2].control[0].peer(), 0);
  EXPECT_EQ(meshes[4].control.size(), 0u);
}

TEST(RemoteMesh, WhoIsMissingIsNamed) {
  std::vector<RemoteJoin> all = joins({1, 1, 1}, 1, /*timeout_ms=*/1'500);
  all.pop_back();
  const auto results = meet(std::move(all));
  ASSERT_FALSE(results[0].ok());
  EXPECT_EQ(results[0].error().code, ErrorCode::kTimeout);
  EXPECT_NE(results[0].error().text.find("of 3 ranks, these did not join rank 0"),
            std::string::npos);
  EXPECT_EQ(results[0].error().text.substr(results[0].error().text.size() - 3), ": 2");
  ASSERT_FALSE(results[1].ok());
}

TEST(RemoteMesh, ContradictionsAreToldToAll) {
  std::vector<RemoteJoin> all = joins({1, 2});
  all[2].self.local_rank = 0;
  for (const auto& result : meet(std::move(all))) {
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().text.find("are both local rank 0 on host 1"), std::string::npos);
  }
}

TEST(RemoteMesh, AnotherKeyIsAStranger) {
  std::vector<RemoteJoin> all = joins({1, 1});
  RemoteJoin stranger{.self = all[1].self,
                      .job_id = "test",
                      .rendezvous = all[1].rendezvous,
                      .addresses = {"127.0.0.1"},
                      .timeout_ms = 300};
  std::thread other([&stranger] {
    const auto result = join_remote(std::move(stranger), test_key(std::byte{8}));
    EXPECT_FALSE(result.ok());
  });
  for (const auto& result : meet(std::move(all))) EXPECT_TRUE(result.ok());
  other.join();
}

}  // namespace
}  // namespace ciranda::testing
