// What could break: a link is made too early, twice or never, or a peer that is gone is waited for.
#include "core/transport/link/data_links.h"

#include "core/base/clock.h"
#include "transport/join/meeting.h"

namespace ciranda::testing {
namespace {

// Drives both ends until the link is there; null when it does not come.
DataLink* connected(RemoteMesh& one, RemoteMesh& other, int stream = 0) {
  for (const std::uint64_t end = monotonic_ns() + 5'000'000'000; monotonic_ns() < end;) {
    DataLink* const here = one.links.find(other.self, stream);
    DataLink* const there = other.links.find(one.self, stream);
    if (here != nullptr && there != nullptr) return here;
    if (!one.links.advance() || !other.links.advance()) return nullptr;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return nullptr;
}

TEST(DataLinks, AreMadeWhenTheyAreNeededAndStay) {
  std::vector<RemoteMesh> meshes = met({2, 1, 3}, /*streams=*/2).remotes;
  const auto connections = [] {
    std::size_t count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += peer_address(fd).ok() ? 1u : 0u;
    return count;
  };
  const std::size_t before = connections();
  for (RemoteMesh& one : meshes) {
    for (RemoteMesh& other : meshes) {
      if (one.self == other.self) continue;
      for (int stream = 0; stream < 2; ++stream) {
        DataLink* const link = connected(one, other, stream);
        ASSERT_NE(link, nullptr);
        EXPECT_EQ(link->peer, other.self);
        EXPECT_EQ(connected(one, other, stream), link) << "it stays";
      }
    }
  }
  EXPECT_EQ(connections(), before + 2u * 2 * 15) << "two ends, two streams, each pair once";
}

TEST(DataLinks, WaitForTheOtherEndWithoutAWord) {
  std::vector<RemoteMesh> meshes = met({1, 1}).remotes;
  std::vector<Watched> watched;
  meshes[0].links.watched(watched);
  EXPECT_TRUE(watched.empty()) << "nothing is wanted";
  EXPECT_EQ(meshes[0].links.find(1, 0), nullptr) << "the higher rank calls";
  meshes[0].links.watched(watched);
  ASSERT_EQ(watched.size(), 1u);
  EXPECT_FALSE(wait_for(watched[0], monotonic_ns() + 30'000'000).value());
  EXPECT_EQ(meshes[1].links.find(0, 0), nullptr);
  EXPECT_TRUE(wait_for(watched[0], monotonic_ns() + 5'000'000'000).value());
  EXPECT_TRUE(meshes[0].links.advance().value());
  EXPECT_NE(meshes[0].links.find(1, 0), nullptr);
}

TEST(DataLinks, APeerThatDiedBeforeItWasCalledIsNamed) {
  std::vector<RemoteMesh> meshes = met({1, 1}, 1, /*timeout_ms=*/1'000).remotes;
  meshes[0].links.close_all();
  EXPECT_EQ(meshes[1].links.find(0, 0), nullptr);
  std::vector<Watched> watched;
  meshes[1].links.watched(watched);
  ASSERT_TRUE(wait_for(watched.at(0), monotonic_ns() + 5'000'000'000).value());
  const auto advanced = meshes[1].links.advance();
  ASSERT_FALSE(advanced.ok());
  EXPECT_EQ(advanced.error().rank, 0);
  EXPECT_NE(advanced.error().text.find("rank 0 could not be reached in time; at 127.0.0.1:"),
            std::string::npos)
      << advanced.error().text;
  EXPECT_NE(advanced.error().text.find("Connection refused"), std::string::npos);
}

}  // namespace
}  // namespace ciranda::testing
