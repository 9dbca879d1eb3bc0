// One operation between two hosts, step by step: what a whole engine cannot show.
#include "core/backend/ring/ring_backend.h"

#include "core/transport/local_mesh.h"
#include "transport/meeting.h"

namespace ciranda::testing {
namespace {

class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    Met meeting = met({1, 1});
    meshes_ = std::move(meeting.remotes);
    locals_ = std::move(meeting.locals);
    for (std::size_t i = 0; i < 2; ++i) {
      const ControlBlock control(locals_[i].control.data(), 1);
      backends_.push_back(std::make_unique<RingBackend>(
          meshes_[i], control, PeerBells(control, locals_[i]), 0, HostMemory{}, RingOptions{}));
      tensors_.emplace_back(1000, static_cast<float>(i + 1));
    }
  }

  void start(std::size_t rank) {
    Execution execution;
    execution.op.members = {{0, 0}};
    auto* data = reinterpret_cast<std::byte*>(tensors_[rank].data());
    execution.buffers = {{data, data, 4000, 4000}};
    execution.done = [this, rank](const Status& status) { done_[rank] = status; };
    backends_[rank]->start(std::move(execution));
  }

  // To the other rank; waits until both ends are made.
  DataLink& link(std::size_t rank) {
    DataLink* ends[2] = {};
    EXPECT_TRUE(until([&] {
      for (std::size_t each = 0; each < 2; ++each) {
        ends[each] = meshes_[each].links.find(static_cast<Rank>(1 - each), 0);
        EXPECT_TRUE(meshes_[each].links.advance().ok());
      }
      return ends[0] != nullptr && ends[1] != nullptr;
    }));
    return *ends[rank];
  }

  template <typename Fn>
  bool until(Fn done) {
    for (int i = 0; i < 2000 && !done(); ++i) {
      for (auto& backend : backends_) backend->advance();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return done();
  }

  std::vector<RemoteMesh> meshes_;
  std::vector<LocalMesh> locals_;
  std::vector<std::unique_ptr<RingBackend>> backends_;
  std::vector<std::vector<float>> tensors_;
  std::optional<Status> done_[2];
};

TEST_F(TwoHosts, NothingIsDoneBeforeThePeerHasBegun) {
  start(0);
  (void)link(0);
  for (int i = 0; i < 20; ++i) backends_[0]->advance();
  EXPECT_FALSE(done_[0].has_value());
  std::vector<Watched> watched;
  backends_[0]->watched(watched);
  ASSERT_EQ(watched.size(), 1u);
  EXPECT_TRUE(watched[0].readable);
  EXPECT_EQ(watched[0].socket, link(0).fd.get());
  start(1);
  ASSERT_TRUE(until([&] { return done_[0] && done_[1]; }));
  EXPECT_EQ(tensors_[0], std::vector<float>(1000, 3.0f));
  EXPECT_EQ(tensors_[1], tensors_[0]);
  EXPECT_TRUE(backends_[0]->idle());
}

TEST_F(TwoHosts, ABrokenConnectionNamesThePeer) {
  start(0);
  link(1).fd.reset();
  ASSERT_TRUE(until([&] { return backends_[0]->broken() != nullptr; }));
  EXPECT_EQ(backends_[0]->broken()->code, ErrorCode::kRankLost);
  EXPECT_EQ(backends_[0]->broken()->rank, 1);
  EXPECT_FALSE(done_[0].has_value());
  backends_[0]->abort(*backends_[0]->broken());
  ASSERT_TRUE(done_[0].has_value());
  EXPECT_FALSE(done_[0]->ok());
}

TEST_F(TwoHosts, APeerThatRunsSomethingElseIsNotBelieved) {
  start(0);
  const std::vector<std::byte> payload(4000);
  const SealedDataHeader header =
      link(1).sealer.seal({.bytes = 4000, .step = 0, .operation = 9, .offset = 0});
  const int socket = link(1).fd.get();
  ASSERT_TRUE(send_some(socket, header).ok());
  ASSERT_TRUE(send_some(socket, payload).ok());
  for (int i = 0; i < 2000 && backends_[0]->broken() == nullptr; ++i) {
    backends_[0]->advance();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_NE(backends_[0]->broken(), nullptr);
  EXPECT_EQ(backends_[0]->broken()->code, ErrorCode::kMalformed);
  EXPECT_NE(backends_[0]->broken()->text.find("step 0 of operation 9 where step 0 of 1"),
            std::string::npos);
  EXPECT_EQ(tensors_[0], std::vector<float>(1000, 1.0f));
}

}  // namespace
}  // namespace ciranda::testing
