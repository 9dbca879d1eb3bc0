// What could break: a snapshot that changes while it is written, or has its name before it is
// whole.
#include "core/ps/io/snapshot.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "core/ps/decide/server_protocol_state.h"
#include "core/ps/io/record_file.h"
#include "ps/decide/server_protocols.h"

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

TEST_F(SnapshotTest, EndsWithItsServer) {
  SnapshotChild child;
  ASSERT_TRUE(child.begin(*protocol_, names_, "no snapshot").ok());
  child.end();
  EXPECT_FALSE(child.running());
}

}  // namespace
}  // namespace ciranda::ps
