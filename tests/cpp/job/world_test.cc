// What could break: start-up of real Worlds over the Unix socket, again and again.
#include "core/job/world.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "core/transport/tcp/interfaces.h"
#include "engine/world.h"
#include "required.h"

namespace ciranda {
namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) != -1 ? 1u : 0u;
  return count;
}

TEST(World, StartsAndEndsAHundredTimesWithoutALeak) {
  char name[] = "/tmp/ciranda-test-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  const std::size_t before = open_descriptors();
  const auto life = [&](int rank) {
    Handover handover;
    for (int i = 0; i < 100; ++i) {
      Config config;
      config.rank_info = {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2};
      config.job_id = "job";
      config.job_folder = folder;
      auto world = World::start(std::move(config), handover);
      ASSERT_TRUE(world.ok()) << world.error().text;
      std::vector<float> tensor(10, 1.0F);
      Engine& engine = *world.value()->engine();
      auto handle = testing::allreduce(engine, tensor);
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      ASSERT_EQ(tensor[0], 2.0F);
    }
  };
  std::thread other([&] { life(1); });
  life(0);
  other.join();
  EXPECT_EQ(open_descriptors(), before);
  ::rmdir(folder.c_str());
}

// One pod a rank, with no more than RANK, WORLD_SIZE and MASTER_ADDR.
TEST(World, RanksThatNobodyPlacedAreNotLookedForWhereRankZeroIsNot) {
  Config config;
  config.rank_info = {.rank = 1, .size = 2, .local_rank = 1, .local_size = 2};
  config.job_folder = "/tmp/ciranda-test-nowhere";
  config.unplaced_master = "192.0.2.1";
  config.start_timeout_ms = 10;
  Handover handover;
  const auto elsewhere = World::start(config, handover);
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_EQ(elsewhere.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(elsewhere.error().text.find("set LOCAL_WORLD_SIZE and LOCAL_RANK for every rank"),
            std::string::npos)
      << elsewhere.error().text;
  for (const char* here : {"127.0.0.1", "localhost"}) {
    config.unplaced_master = here;
    EXPECT_EQ(World::start(config, handover).error().code, ErrorCode::kTimeout);
  }
}

// Like ranks that got everything by descriptor, which is good for one meeting only.
TEST(World, HostsMeetAgainAfterAShutdown) {
  const auto addresses = choose_addresses(list_host_addresses().value(), "");
  if (!addresses) CIRANDA_SKIP("this machine has no address but loopback");
  const std::string& address = addresses.value().front().address;
  Fd listener = listen_tcp(address).value();
  const Endpoint rendezvous = local_address(listener.get()).value().endpoint();
  const int listener_fd = ::dup(listener.get());
  listener.reset();
  int key_fds[2] = {::memfd_create("key", MFD_CLOEXEC), -1};
  const std::string key(32, 'k');
  ASSERT_EQ(::write(key_fds[0], key.data(), key.size()), 32);
  key_fds[1] = ::dup(key_fds[0]);

  const auto life = [&](int rank) {
    char name[] = "/tmp/ciranda-test-XXXXXX";
    const std::string folder = ::mkdtemp(name);
    Handover handover;
    for (int i = 0; i < 5; ++i) {
      Config config;
      config.rank_info = {.rank = rank, .size = 2, .cross_rank = rank, .cross_size = 2};
      config.job_id = "job";
      config.job_folder = folder;
      config.start_timeout_ms = 10'000;
      config.remote.rendezvous = rendezvous;
      config.remote.key_fd = key_fds[rank];
      config.remote.listener_fd = rank == 0 ? listener_fd : -1;
      // One comes back earlier, the other one leaves later.
      if (rank == i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      auto world = World::start(std::move(config), handover);
      ASSERT_TRUE(world.ok()) << "rank " << rank << ", life " << i << ": " << world.error().text;
      std::vector<float> tensor(10, 1.0F);
      Engine& engine = *world.value()->engine();
      auto handle = testing::allreduce(engine, tensor);
      ASSERT_TRUE(engine.wait(handle.value()).ok());
      ASSERT_EQ(tensor[0], 2.0F);
    }
    EXPECT_EQ(handover.meetings, 5u);
    ::rmdir(folder.c_str());
  };
  std::thread other([&] { life(1); });
  life(0);
  other.join();
}

}  // namespace
}  // namespace ciranda
