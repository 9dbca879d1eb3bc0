#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/nccl/fake_device.h"
#include "backend/nccl/mock_nccl.h"
#include "core/backend/nccl/nccl_backend.h"

namespace ciranda::testing {

// An Exchange between backends that one thread drives.
class Board {
 public:
  explicit Board(int size) : size_(static_cast<std::size_t>(size)) {}

  std::unique_ptr<Exchange> exchange(int rank, const std::string& name,
                                     std::vector<std::byte> mine) {
    auto& parts = parts_[name];
    EXPECT_TRUE(parts.emplace(rank, std::move(mine)).second) << name << " twice";
    return std::make_unique<Part>(parts, size_);
  }

 private:
  using Parts = std::map<int, std::vector<std::byte>>;
  class Part final : public Exchange {
   public:
    Part(const Parts& parts, std::size_t size) : parts_(parts), size_(size) {}
    bool done() const override { return parts_.size() == size_; }
    Result<std::vector<std::vector<std::byte>>> result() const override {
      std::vector<std::vector<std::byte>> all;
      for (const auto& [rank, bytes] : parts_) all.push_back(bytes);
      return all;
    }

   private:
    const Parts& parts_;
    const std::size_t size_;
  };
  const std::size_t size_;
  std::map<std::string, Parts> parts_;
};

// The NCCL backends of some ranks, driven by one thread: nothing may block. Rank r has device
// `first_device` + r.
class Ranks {
 public:
  Ranks(std::shared_ptr<MockNccl> nccl, int size, NcclOptions options = {}, int first_device = 0)
      : board_(size) {
    for (int rank = 0; rank < size; ++rank) {
      streams.push_back(std::make_shared<FakeStream>(first_device + rank));
      backends.push_back(std::make_unique<NcclBackend>(
          nccl,
          BackendContext{.rank = rank,
                         .size = size,
                         .exchange =
                             [this, rank](std::string name, std::vector<std::byte> mine) {
                               return board_.exchange(rank, name, std::move(mine));
                             }},
          options));
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
