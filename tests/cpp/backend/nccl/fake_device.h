#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/device.h"

namespace ciranda::testing {

// A device whose memory is this process's: each stream is a thread that runs what is queued later
// on, so that a wait that was left out gives a wrong result.
class FakeEvent final : public DeviceEvent {
 public:
  Result<bool> passed() const override { return passed_->load(); }
  void pass() { passed_->store(true); }
  // For tests, and for streams. False: not in time.
  bool wait(std::chrono::seconds patience = std::chrono::seconds(20)) const {
    const auto give_up = std::chrono::steady_clock::now() + patience;
    while (!passed_->load()) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  }

 private:
  // Streams may still wait for it when it is gone, as CUDA's do.
  std::shared_ptr<std::atomic<bool>> passed_ = std::make_shared<std::atomic<bool>>(false);
};

class FakeStream final : public DeviceStream {
 public:
  explicit FakeStream(int device, int compute_capability = 90)
      : device_(device), compute_capability_(compute_capability), thread_([this] { work(); }) {}
  // Runs what is queued first.
  ~FakeStream() override {
    release();
    run([this] { ended_ = true; });
    thread_.join();
  }

  int device() const override { return device_; }
  int compute_capability() const override { return compute_capability_; }
  void* native() const override { return const_cast<FakeStream*>(this); }
  Result<int> enter() override { return std::exchange(current_device(), device_); }
  void leave(int before) override { current_device() = before; }
  Status wait(const DeviceEvent& event) override {
    run([fake = static_cast<const FakeEvent&>(event)] { (void)fake.wait(); });
    return {};
  }
  Result<std::shared_ptr<DeviceEvent>> record() override {
    auto event = std::make_shared<FakeEvent>();
    run([event] { event->pass(); });
    return std::shared_ptr<DeviceEvent>(event);
  }

  void run(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    news_.notify_all();
  }
  // Nothing that is queued begins until release().
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    news_.notify_all();
  }

  // The device of the calling thread.
  static int& current_device() {
    thread_local int device = 0;
    return device;
  }

 private:
  void work() {
    while (!ended_) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        news_.wait(lock, [this] { return !held_ && !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  const int device_;
  const int compute_capability_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::function<void()>> tasks_;
  bool held_ = false;
  bool ended_ = false;  // the thread's own
  std::thread thread_;
};

}  // namespace ciranda::testing
