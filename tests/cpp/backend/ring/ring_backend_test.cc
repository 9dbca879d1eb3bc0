// One operation between two hosts, step by step: what a whole engine cannot show.
#include "core/backend/ring/ring_backend.h"

#include "core/negotiate/group_table.h"
#include "core/transport/local/local_mesh.h"
#include "transport/join/meeting.h"

namespace ciranda::testing {
namespace {

// In clear, or through TLS.
class TwoHosts : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { meet(/*streams=*/1); }

  void meet(int streams) {
    Met meeting = met({1, 1}, streams, 20'000, GetParam());
    meshes_ = std::move(meeting.remotes);
    locals_ = std::move(meeting.locals);
    for (std::size_t i = 0; i < 2; ++i) {
      const ControlBlock control(locals_[i].control.data(), 1);
      backends_.push_back(std::make_unique<RingBackend>(
          meshes_[i], control, PeerBells(control, locals_[i]), 0, HostMemory{},
          RingOptions{.streams_max = streams, .authenticates = !GetParam()}));
      tensors_.emplace_back(1000, static_cast<float>(i + 1));
    }
  }

  void start(std::size_t rank, std::uint8_t streams = 0) {
    Execution execution{.number = ++started_[rank]};
    execution.op.streams = streams;
    execution.op.group = GroupTable(2, {{0}, {1}}).world();
    execution.op.members = {{0, 0}};
    auto* data = reinterpret_cast<std::byte*>(tensors_[rank].data());
    const std::size_t bytes = tensors_[rank].size() * sizeof(float);
    execution.buffers = {{data, data, bytes, bytes}};
    execution.done = [this, rank](const Status& status, const auto&) { done_[rank] = status; };
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

  void send_as_rank_1(const SealedDataHeader& header, std::span<const std::byte> payload) {
    ASSERT_TRUE(link(1).stream.send(std::as_bytes(std::span(header))).ok());
    ASSERT_TRUE(link(1).stream.send(payload).ok());
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
  std::uint64_t started_[2] = {0, 0};
};

TEST_P(TwoHosts, NothingIsDoneBeforeThePeerHasBegun) {
  start(0);
  (void)link(0);
  for (int i = 0; i < 20; ++i) backends_[0]->advance();
  EXPECT_FALSE(done_[0].has_value());
  std::vector<Watched> watched;
  backends_[0]->watched(watched);
  ASSERT_EQ(watched.size(), 1u);
  EXPECT_TRUE(watched[0].readable);
  EXPECT_EQ(watched[0].socket, link(0).stream.fd());
  start(1);
  ASSERT_TRUE(until([&] { return done_[0] && done_[1]; }));
  EXPECT_EQ(tensors_[0], std::vector<float>(1000, 3.0f));
  EXPECT_EQ(tensors_[1], tensors_[0]);
  EXPECT_TRUE(backends_[0]->idle());
}

TEST_P(TwoHosts, MuchPassesThroughSmallBuffers) {
  const int small = 1;  // the kernel makes it a few KiB: less than a record of TLS
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const int socket = link(rank).stream.fd();
    ASSERT_EQ(::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    tensors_[rank].resize(300'000);
    for (std::size_t i = 0; i < 300'000; ++i) {
      tensors_[rank][i] = static_cast<float>(i) * static_cast<float>(rank + 1);
    }
    start(rank);
  }
  ASSERT_TRUE(until([&] { return done_[0] && done_[1]; }));
  for (std::size_t i = 0; i < 300'000; ++i) ASSERT_EQ(tensors_[0][i], 3.0f * static_cast<float>(i));
  EXPECT_EQ(tensors_[1], tensors_[0]);
}

TEST_P(TwoHosts, BytesThatThePeerDidNotSealEndTheJob) {
  start(0);
  const std::vector<std::byte> forged(5000, std::byte{1});
  ASSERT_TRUE(send_some(link(1).stream.fd(), forged).ok());
  ASSERT_TRUE(until([&] { return backends_[0]->broken() != nullptr; }));
  EXPECT_EQ(backends_[0]->broken()->code, ErrorCode::kMalformed);
  EXPECT_EQ(backends_[0]->broken()->rank, 1);
}

TEST_P(TwoHosts, ABrokenConnectionNamesThePeer) {
  start(0);
  link(1).stream.close();
  ASSERT_TRUE(until([&] { return backends_[0]->broken() != nullptr; }));
  EXPECT_EQ(backends_[0]->broken()->code, ErrorCode::kRankLost);
  EXPECT_EQ(backends_[0]->broken()->rank, 1);
  EXPECT_FALSE(done_[0].has_value());
  backends_[0]->abort(*backends_[0]->broken());
  ASSERT_TRUE(done_[0].has_value());
  EXPECT_FALSE(done_[0]->ok());
}

TEST_P(TwoHosts, APeerThatRunsSomethingElseIsNotBelieved) {
  start(0);
  const std::vector<std::byte> payload(4000);
  const SealedDataHeader header = link(1).sealer.seal({.bytes = 4000, .step = 0, .operation = 9});
  send_as_rank_1(header, payload);
  ASSERT_TRUE(until([&] { return backends_[0]->broken() != nullptr; }));
  EXPECT_EQ(backends_[0]->broken()->code, ErrorCode::kMalformed);
  EXPECT_NE(backends_[0]->broken()->text.find("it sent 4000 bytes as step 0 of operation 9 "
                                              "where 4000 bytes as step 0 of operation 1048576"),
            std::string::npos);
  EXPECT_EQ(tensors_[0], std::vector<float>(1000, 1.0f));
}

class TwoHostsOfThreeStreams : public TwoHosts {
 protected:
  void SetUp() override { meet(3); }
};
INSTANTIATE_TEST_SUITE_P(, TwoHostsOfThreeStreams, ::testing::Values(false));

// A connection is made when an operation first needs it. Of 9 there may be 3.
TEST_P(TwoHostsOfThreeStreams, GoOverAsManyAsTheRequestSays) {
  const std::pair<std::uint8_t, int> kWantedAndMade[] = {{1, 1}, {2, 2}, {9, 3}, {1, 3}, {0, 3}};
  for (const auto& [wanted, made] : kWantedAndMade) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      tensors_[rank].assign(300'000, static_cast<float>(rank + 1));
      done_[rank].reset();
      start(rank, wanted);
    }
    ASSERT_TRUE(until([&] { return done_[0] && done_[1]; }));
    EXPECT_EQ(tensors_[0], std::vector<float>(300'000, 3.0f));
    EXPECT_EQ(tensors_[1], tensors_[0]);
    int links = 0;
    meshes_[0].links.each([&](const DataLink&) { ++links; });
    EXPECT_EQ(links, made) << int{wanted};
  }
}

// Ranks 0 and 1 of three on a host, and one of another: rank 2 is no member.
TEST(RingBackend, WakesOnlyMembersOfItsHost) {
  Met meeting = met({3, 1});
  const ControlBlock control(meeting.locals[0].control.data(), 3);
  std::vector<std::byte> stage(1 << 16);
  HostMemory memory{.allocate = [&](std::uint64_t bytes) -> Result<HostMemory::Stage> {
                      return HostMemory::Stage{.ref = {}, .data = stage.data(), .bytes = bytes};
                    },
                    .resolve = [&](int, const ArenaRef&, std::uint64_t) -> Result<std::byte*> {
                      return stage.data();
                    }};
  RingBackend backend(meeting.remotes[0], control, PeerBells(control, meeting.locals[0]), 0,
                      std::move(memory), {});
  GroupTable groups(4, {{0, 1, 2}, {3}});
  std::vector<float> tensor(1000, 1.0f);
  auto* const data = reinterpret_cast<std::byte*>(tensor.data());
  Execution execution{.number = 1};
  execution.op.group = groups.add({0, 1, 3});
  execution.op.members = {{0, 0}};
  execution.buffers = {{data, data, 4000, 4000}};
  execution.done = [](const Status&, const auto&) {};
  for (const Rank local : {1, 2}) control.flags(local).background_listens.store(1);
  backend.start(std::move(execution));
  EXPECT_TRUE(backend.advance());
  EXPECT_EQ(control.flags(1).background_listens.load(), 0u) << "it waits for the stage";
  EXPECT_EQ(control.flags(2).background_listens.load(), 1u);
  backend.abort({.text = "over"});
}

// With TLS it is TLS that notices: tls_test.
class TwoHostsInClear : public TwoHosts {};
INSTANTIATE_TEST_SUITE_P(, TwoHostsInClear, ::testing::Values(false));

TEST_P(TwoHostsInClear, APayloadThatWasChangedEndsTheJob) {
  start(0);
  std::vector<std::byte> payload(4000, std::byte{1});
  const SealedDataHeader header =
      link(1).sealer.seal({.bytes = 4000, .step = 0, .operation = 1 << 20}, payload);
  payload[1000] ^= std::byte{1};
  send_as_rank_1(header, payload);
  ASSERT_TRUE(until([&] { return backends_[0]->broken() != nullptr; }));
  EXPECT_EQ(backends_[0]->broken()->code, ErrorCode::kMalformed);
  EXPECT_EQ(backends_[0]->broken()->rank, 1);
  EXPECT_NE(backends_[0]->broken()->text.find("message 0 was changed on its way"),
            std::string::npos)
      << backends_[0]->broken()->text;
  EXPECT_EQ(tensors_[0], std::vector<float>(1000, 1.0f));
}

INSTANTIATE_TEST_SUITE_P(, TwoHosts, ::testing::Bool(),
                         [](const auto& tls) { return tls.param ? "Tls" : "Clear"; });

}  // namespace
}  // namespace ciranda::testing
