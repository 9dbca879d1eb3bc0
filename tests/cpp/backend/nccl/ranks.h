#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "backend/board.h"
#include "backend/nccl/fake_device.h"
#include "backend/nccl/mock_nccl.h"
#include "core/backend/nccl/nccl_backend.h"

namespace ciranda::testing {

// The NCCL backends of some ranks, driven by one thread: nothing may block. Rank r has device
// `first_device` + r.
class Ranks {
 public:
  Ranks(std::shared_ptr<MockNccl> nccl, int size, NcclOptions options = {}, int first_device = 0)
      : board_(size) {
    for (int rank = 0; rank < size; ++rank) {
      streams.push_back(std::make_shared<FakeStream>(first_device + rank));
      backends.push_back(std::make_unique<NcclBackend>(nccl, board_.context(rank), options));
    }
  }

  // All at a time, as processes end.
  ~Ranks() {
    std::vector<std::thread> threads;
    for (auto& backend : backends) threads.emplace_back([&] { backend.reset(); });
    for (std::thread& thread : threads) thread.join();
  }

  int size() const { return static_cast<int>(backends.size()); }
  NcclBackend& operator[](int rank) { return *backends[static_cast<std::size_t>(rank)]; }
  FakeStream& stream(int rank) { return *streams[static_cast<std::size_t>(rank)]; }

  template <typename Fn>
  bool until(Fn done) {
    for (int i = 0; i < 20'000 && !done(); ++i) {
      bool moved = false;
      for (auto& backend : backends) moved = backend->advance() || moved;
      if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return done();
  }

  std::vector<std::shared_ptr<FakeStream>> streams;
  std::vector<std::unique_ptr<NcclBackend>> backends;

 private:
  Board board_;
};

// One execution of a rank, and what came of it.
struct Outcome {
  std::optional<Status> status;
  std::shared_ptr<DeviceEvent> finished;

  Done done() {
    return [this](const Status& how, const std::shared_ptr<DeviceEvent>& event) {
      EXPECT_FALSE(status.has_value()) << "done twice";
      status = how;
      finished = event;
    };
  }
  // On the device too.
  bool through() const {
    return status && status->ok() && static_cast<const FakeEvent&>(*finished).wait();
  }
};

// An allreduce of float32 on the rank's own stream.
inline Execution allreduce(std::vector<std::vector<float>*> tensors,
                           std::shared_ptr<FakeStream> stream, Outcome& outcome,
                           std::shared_ptr<DeviceEvent> ready = nullptr) {
  Execution execution;
  for (std::vector<float>* tensor : tensors) {
    auto* const data = reinterpret_cast<std::byte*>(tensor->data());
    const std::size_t bytes = tensor->size() * sizeof(float);
    execution.op.members.push_back({0, static_cast<std::uint32_t>(execution.buffers.size())});
    execution.buffers.push_back({data, data, bytes, bytes});
    execution.device.push_back({stream, ready});
  }
  execution.op.backend = BackendId::kNccl;
  execution.done = outcome.done();
  return execution;
}

}  // namespace ciranda::testing
