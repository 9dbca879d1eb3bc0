// What could break: ranks that meet the wrong job, wait for ever, or leave a socket behind.
#include "core/transport/join/local_meeting.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/base/clock.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {
namespace {

class LocalMeetingTest : public ::testing::Test {
 protected:
  LocalMeetingTest() {
    char name[] = "/tmp/ciranda-test-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~LocalMeetingTest() override { ::rmdir(folder_.c_str()); }

  std::vector<Result<LocalMesh>> join_all(std::vector<UnixJoin> joins) {
    std::vector<std::optional<Result<LocalMesh>>> results(joins.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < joins.size(); ++i) {
      joins[i].folder = joins[i].folder.empty() ? folder_ : joins[i].folder;
      threads.emplace_back([&, i] { results[i] = join_unix(joins[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<Result<LocalMesh>> done;
    for (auto& result : results) done.push_back(std::move(*result));
    return done;
  }
  UnixJoin rank(Rank number, int size, const std::string& job = "job") {
    return {.folder = "", .job_id = job, .rank = number, .size = size, .timeout_ms = 5'000};
  }
  void wait_for_socket() {
    while (::access((folder_ + "/local").c_str(), F_OK) != 0) std::this_thread::yield();
  }
  std::size_t entries_in_folder() {
    std::size_t count = 0;
    DIR* directory = ::opendir(folder_.c_str());
    while (const dirent* entry = ::readdir(directory)) {
      if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0) ++count;
    }
    ::closedir(directory);
    return count;
  }

  std::string folder_;
};

TEST_F(LocalMeetingTest, EveryRankReachesEveryOtherAndNothingIsLeftBehind) {
  auto meshes = join_all({rank(2, 4), rank(0, 4), rank(3, 4), rank(1, 4)});
  for (auto& mesh : meshes) ASSERT_TRUE(mesh.ok()) << mesh.error().text;
  EXPECT_EQ(entries_in_folder(), 0u);
  const auto by_rank = [&](Rank number) -> LocalMesh& {
    for (auto& mesh : meshes) {
      if (mesh.value().self == number) return mesh.value();
    }
    std::abort();
  };
  for (Rank a = 0; a < 4; ++a) {
    for (Rank b = 0; b < 4; ++b) {
      if (a == b) continue;
      const Fd fd = MemorySegment::create(4096).value().fd;
      const auto to = static_cast<std::size_t>(b);
      const auto from = static_cast<std::size_t>(a);
      ASSERT_TRUE(send_message(by_rank(a).peers[to].socket.get(),
                               {.segment = static_cast<std::uint32_t>(10 * a + b), .bytes = 4096},
                               fd.get())
                      .ok());
      auto received = receive_message(by_rank(b).peers[from].socket.get());
      ASSERT_TRUE(received.ok() && received.value().has_value());
      EXPECT_EQ(received.value()->message.segment, static_cast<std::uint32_t>(10 * a + b));
    }
  }
  by_rank(0).control.data()[100] = std::byte{9};
  EXPECT_EQ(by_rank(3).control.data()[100], std::byte{9});
}

// Or it would call there for the next World, and be dropped when rank 0 is through: with so many
// ranks, rank 0 still introduces the last ones to each other.
TEST_F(LocalMeetingTest, WhoIsThroughFindsNoListenerAnyMore) {
  constexpr int kRanks = 64;
  const std::string socket = folder_ + "/local";
  std::atomic<int> found{0};
  std::vector<std::thread> threads;
  for (Rank number = 0; number < kRanks; ++number) {
    threads.emplace_back([&, number] {
      UnixJoin join = rank(number, kRanks);
      join.folder = folder_;
      EXPECT_TRUE(join_unix(join).ok());
      if (::access(socket.c_str(), F_OK) == 0) ++found;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, 0);
}

TEST_F(LocalMeetingTest, ARankThatComesTwiceIsNamedToEveryRank) {
  auto meshes = join_all({rank(0, 3), rank(1, 3), rank(1, 3)});
  for (const auto& mesh : meshes) {
    ASSERT_FALSE(mesh.ok());
    EXPECT_NE(mesh.error().text.find("rank 1 came twice"), std::string::npos) << mesh.error().text;
  }
}

TEST_F(LocalMeetingTest, AnotherWorldSizeIsRefusedWithBothValues) {
  auto meshes = join_all({rank(0, 2), rank(1, 3)});
  for (const auto& mesh : meshes) {
    ASSERT_FALSE(mesh.ok());
    EXPECT_NE(mesh.error().text.find("expects 3 ranks, rank 0 expects 2"), std::string::npos)
        << mesh.error().text;
  }
}

TEST_F(LocalMeetingTest, AnotherSettingIsToldToAllWithBothValues) {
  std::vector<UnixJoin> joins = {rank(0, 3), rank(1, 3), rank(2, 3)};
  for (UnixJoin& join : joins) join.settings = "CIRANDA_STREAMS=1\nCIRANDA_FUSION_THRESHOLD=0\n";
  joins[1].settings = "CIRANDA_STREAMS=1\nCIRANDA_FUSION_THRESHOLD=7\n";
  for (const auto& mesh : join_all(joins)) {
    ASSERT_FALSE(mesh.ok());
    EXPECT_EQ(mesh.error().text,
              "rank 1 has CIRANDA_FUSION_THRESHOLD=7, rank 0 has 0; set the same for every rank");
  }
}

TEST_F(LocalMeetingTest, AMissingRankIsNamedAfterTheTimeout) {
  UnixJoin leader = rank(0, 3);
  leader.timeout_ms = 1'000;
  auto meshes = join_all({leader, rank(2, 3)});
  for (const auto& mesh : meshes) {
    ASSERT_FALSE(mesh.ok());
    EXPECT_NE(mesh.error().text.find("did not join within 1 s: 1"), std::string::npos)
        << mesh.error().text;
  }
  EXPECT_EQ(entries_in_folder(), 0u);
}

TEST_F(LocalMeetingTest, AStrangerOfAnotherJobDoesNotDisturb) {
  UnixJoin stranger = rank(1, 2, "other");
  auto meshes = join_all({rank(0, 2), stranger, rank(1, 2)});
  EXPECT_TRUE(meshes[0].ok());
  EXPECT_TRUE(meshes[2].ok());
  ASSERT_FALSE(meshes[1].ok());
}

TEST_F(LocalMeetingTest, NobodyListeningIsAnErrorInTime) {
  UnixJoin join = rank(1, 2);
  join.timeout_ms = 200;
  auto mesh = join_all({join});
  ASSERT_FALSE(mesh[0].ok());
  EXPECT_EQ(mesh[0].error().code, ErrorCode::kTimeout);
}

TEST_F(LocalMeetingTest, ASecondRankZeroIsRefusedAtOnceAndTheFirstGoesOn) {
  std::optional<Result<LocalMesh>> first;
  UnixJoin leader = rank(0, 2);
  leader.folder = folder_;
  std::thread waits([&] { first = join_unix(leader); });
  wait_for_socket();

  const std::uint64_t began_ns = monotonic_ns();
  const auto second = join_unix(leader);
  EXPECT_LT(monotonic_ns() - began_ns, 1'000'000'000u);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(
      second.error().text.find("another process is already rank 0 in the job folder " + folder_),
      std::string::npos)
      << second.error().text;

  const auto other = join_all({rank(1, 2)});
  waits.join();
  EXPECT_TRUE(first->ok()) << first->error().text;
  EXPECT_TRUE(other[0].ok());
  EXPECT_EQ(entries_in_folder(), 0u);
}

TEST_F(LocalMeetingTest, ARankZeroThatWasKilledBlocksNobody) {
  UnixJoin leader = rank(0, 2);
  leader.folder = folder_;
  const pid_t killed = ::fork();
  ASSERT_GE(killed, 0);
  if (killed == 0) {
    (void)join_unix(leader);
    ::_exit(0);
  }
  wait_for_socket();
  ::kill(killed, SIGKILL);
  ASSERT_EQ(::waitpid(killed, nullptr, 0), killed);
  EXPECT_EQ(entries_in_folder(), 1u) << "the socket that it left";

  auto meshes = join_all({rank(0, 2), rank(1, 2)});
  for (const auto& mesh : meshes) EXPECT_TRUE(mesh.ok());
  EXPECT_EQ(entries_in_folder(), 0u);
}

// A variable that this process was born with stands for the rank's number, which the child has too.
TEST_F(LocalMeetingTest, AChildOfARankIsToldSoAndDoesNotWait) {
  auto meshes = join_all({rank(0, 2), rank(1, 2)});
  for (const auto& mesh : meshes) ASSERT_TRUE(mesh.ok()) << mesh.error().text;
  for (const Rank number : {0, 1}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      UnixJoin join = rank(number, 2);
      join.folder = folder_;
      join.rank_variable = "PATH";
      const auto mesh = join_unix(join);
      const std::string said = mesh ? "" : mesh.error().text;
      ::_exit(said.starts_with("this process is a child of rank ") ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "rank " << number;
  }
}

// Ranks of an elastic job, when the arbiter names others while they meet.
TEST_F(LocalMeetingTest, AReadableDescriptorInterruptsTheMeeting) {
  auto sockets = make_packet_sockets();
  ASSERT_TRUE(sockets.ok());
  const std::byte news{1};
  ASSERT_TRUE(send_packet(sockets.value()[0].get(), std::span(&news, 1), {}).ok());
  UnixJoin leader = rank(0, 3);
  UnixJoin waits_for_leader = rank(1, 3);
  leader.interrupt = waits_for_leader.interrupt = sockets.value()[1].get();
  for (const UnixJoin& join : {leader, waits_for_leader}) {
    const auto meshes = join_all({join});
    ASSERT_FALSE(meshes[0].ok());
    EXPECT_EQ(meshes[0].error().code, ErrorCode::kShutdown);
  }
  // This one has met the leader, which waits for a third.
  UnixJoin met = rank(1, 3);
  met.interrupt = sockets.value()[1].get();
  UnixJoin patient = rank(0, 3);
  patient.timeout_ms = 300;
  const auto meshes = join_all({patient, met});
  EXPECT_EQ(meshes[0].error().code, ErrorCode::kTimeout);
  EXPECT_EQ(meshes[1].error().code, ErrorCode::kShutdown);
  EXPECT_EQ(entries_in_folder(), 0u);
}

TEST_F(LocalMeetingTest, APlaceIsKeptAsLongAsRankZeroLives) {
  {
    auto meshes = join_all({rank(0, 2), rank(1, 2)});
    for (const auto& mesh : meshes) ASSERT_TRUE(mesh.ok()) << mesh.error().text;
    UnixJoin other = rank(1, 2);
    other.timeout_ms = 100;
    const auto late = join_all({rank(0, 2), other});
    ASSERT_FALSE(late[0].ok());
    EXPECT_NE(late[0].error().text.find("is already rank 0"), std::string::npos);
    ASSERT_FALSE(late[1].ok());
    EXPECT_NE(late[1].error().text.find("another job uses this address"), std::string::npos)
        << late[1].error().text;
  }
  for (const auto& mesh : join_all({rank(0, 2), rank(1, 2)})) EXPECT_TRUE(mesh.ok());
}

}  // namespace
}  // namespace ciranda
