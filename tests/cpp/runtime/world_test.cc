// What could break: start-up of real Worlds over the Unix socket, again and again.
#include "core/runtime/world.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "runtime/world.h"

namespace ciranda {
namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) != -1 ? 1 : 0;
  return count;
}

TEST(World, StartsAndEndsAHundredTimesWithoutALeak) {
  char name[] = "/tmp/ciranda-test-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  const std::size_t before = open_descriptors();
  const auto life = [&](int rank) {
    for (int i = 0; i < 100; ++i) {
      Config config;
      config.place = {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2};
      config.job_id = "job";
      config.job_folder = folder;
      auto world = World::start(std::move(config));
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

}  // namespace
}  // namespace ciranda
