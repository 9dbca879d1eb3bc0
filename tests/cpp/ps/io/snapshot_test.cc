// What could break: a snapshot that changes while it is written, or has its name before it is
// whole.
#include "core/ps/io/snapshot.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/ps/decide/saved_protocol.h"
#include "core/ps/io/record_file.h"
#include "ps/decide/server_protocols.h"
#include "sanitizers.h"

namespace ciranda::ps {
namespace {

namespace fs = std::filesystem;

class SnapshotTest : public testing::ServerProtocols {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "ciranda-snapshot-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    names_ = {.unfinished = folder_ / "unfinished", .finished = folder_ / "finished"};
    start(1);
    caller_ = join(0);
    answer<Ready>(caller_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
  FileNames names_;
  ServerProtocol::Caller caller_ = 0;
};

TEST_F(SnapshotTest, IsOfTheMomentWhenItWasBegun) {
  SnapshotChild child;
  ASSERT_TRUE(child.begin(*protocol_, names_, "no snapshot").ok());
  push(caller_, 0, 1, 5.0f);
  EXPECT_TRUE(child.look_after(/*wait=*/true));
  ASSERT_TRUE(child.made());
  EXPECT_FALSE(fs::exists(names_.unfinished));
  auto reader = RecordReader::open(names_.finished);
  ASSERT_TRUE(reader.ok());
  const auto record = reader.value().next();
  ASSERT_TRUE(record.ok() && record.value());
  EXPECT_EQ(*reinterpret_cast<const float*>(record.value()->data.data()), 0.0f);
  EXPECT_EQ(make_shard(decode_saved_protocol(record.value()->note).value()).value()->version(), 0u);
}

TEST_F(SnapshotTest, HasNoNameWhereItFails) {
  names_.unfinished = folder_ / "nowhere" / "unfinished";
  SnapshotChild child;
  ASSERT_TRUE(child.begin(*protocol_, names_, "no snapshot").ok());
  EXPECT_TRUE(child.look_after(/*wait=*/true));
  EXPECT_FALSE(child.made());
}

// A child has no other thread that would release a lock of libcrypto, which one holds that looks
// for an algorithm by other properties than any before.
TEST_F(SnapshotTest, IsMadeWhileOtherThreadsLookForAlgorithms) {
  // ASan (clang 14) does not keep a fork apart from its allocator's locks, as glibc does.
  if (ciranda::testing::kUnderAsan) GTEST_SKIP() << "a forked child may wait for ASan's own lock";
  std::atomic<bool> goes_on = true;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&goes_on, i] {
      for (int number = i; goes_on; number += 2) {
        EVP_MD_free(EVP_MD_fetch(nullptr, "SHA256", ("?n=" + std::to_string(number)).c_str()));
      }
    });
  }
  int made = 0;
  for (; made < 100; ++made) {
    SnapshotChild child;
    ASSERT_TRUE(child.begin(*protocol_, names_, "no snapshot").ok());
    for (int wait = 0; wait < 2000 && !child.look_after(/*wait=*/false); ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (child.running() || !child.made()) break;
  }
  goes_on = false;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(made, 100);
}

TEST_F(SnapshotTest, EndsWithItsServer) {
  SnapshotChild child;
  ASSERT_TRUE(child.begin(*protocol_, names_, "no snapshot").ok());
  child.end();
  EXPECT_FALSE(child.running());
}

}  // namespace
}  // namespace ciranda::ps
