#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/engine/engine.h"
#include "core/wire/operation_name.h"

namespace ciranda::testing {

// N ranks as threads of this process: the harness of most engine tests.
class World {
 public:
  explicit World(int size, EngineOptions options = {.pace = {.spin_ns = 20'000}}) {
    auto meshes = make_loopback(size);
    EXPECT_TRUE(meshes.ok());
    for (LocalMesh& mesh : meshes.value()) {
      auto engine = Engine::start(std::move(mesh), options);
      EXPECT_TRUE(engine.ok());
      engines.push_back(std::move(engine).value());
    }
  }

  explicit World(std::vector<std::unique_ptr<Engine>> started) : engines(std::move(started)) {}

  // All at a time, as processes end: the first rank of a host carries the goodbyes of the others.
  ~World() {
    run([](Engine& engine) { engine.shutdown(); });
    std::vector<std::thread> threads;
    for (auto& engine : engines) threads.emplace_back([&] { engine.reset(); });
    for (std::thread& thread : threads) thread.join();
  }
  World(World&&) = default;

  int size() const { return static_cast<int>(engines.size()); }
  Engine& operator[](int rank) { return *engines[static_cast<std::size_t>(rank)]; }

  // Runs `body(engine)` on every rank at a time; returns when all are through.
  void run(const std::function<void(Engine&)>& body) {
    std::vector<std::thread> threads;
    for (auto& engine : engines) threads.emplace_back([&] { body(*engine); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<Engine>> engines;
};

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::kInt64;
}

struct Options {
  std::string name;  // empty: unnamed
  GroupId group = kWorldGroup;
  ReduceOp op = ReduceOp::kSum;
  Rank root = kNoRank;
  double prescale = 1.0;
  double postscale = 1.0;
  std::optional<DType> wire_dtype = {};
  std::uint8_t streams = 0;
  BackendId backend = BackendId::kNative;
};

// A submission of in-place work on `tensors`; the vectors must outlive the handle.
template <typename T>
Submission in_place(OpKind kind, const std::vector<std::vector<T>*>& tensors,
                    const Options& options) {
  RequestSpec spec{.name = options.name.empty() ? unnamed(kind) : options.name,
                   .kind = kind,
                   .group = options.group,
                   .op = options.op,
                   .root = options.root,
                   .prescale = options.prescale,
                   .postscale = options.postscale,
                   .in_arena = false,
                   .wire_dtype = options.wire_dtype,
                   .streams = options.streams,
                   .backend = options.backend,
                   .tensors = {}};
  Submission submission;
  for (std::vector<T>* tensor : tensors) {
    spec.tensors.push_back({dtype_of<T>(), {static_cast<std::int64_t>(tensor->size())}});
    submission.inputs.push_back(reinterpret_cast<std::byte*>(tensor->data()));
    submission.outputs.push_back(reinterpret_cast<std::byte*>(tensor->data()));
  }
  submission.spec = std::make_shared<RequestSpec>(std::move(spec));
  return submission;
}

template <typename T>
Result<Handle> allreduce(Engine& engine, std::vector<T>& tensor, const Options& options = {}) {
  return engine.submit(in_place<T>(OpKind::kAllreduce, {&tensor}, options));
}

// An allreduce of `count` floats at the beginning of `arena`.
inline Submission bucket_in(const ArenaBuffer& arena, std::size_t count, const Options& options,
                            const std::string& rule = {}) {
  Submission submission;
  submission.spec = std::make_shared<RequestSpec>(
      RequestSpec{.name = options.name,
                  .kind = OpKind::kAllreduce,
                  .group = options.group,
                  .op = options.op,
                  .prescale = options.prescale,
                  .postscale = options.postscale,
                  .in_arena = true,
                  .arena_bytes = count * sizeof(float),
                  .wire_dtype = options.wire_dtype,
                  .streams = options.streams,
                  .rule = rule,
                  .tensors = {{DType::kFloat32, {static_cast<std::int64_t>(count)}}}});
  submission.arena = arena.ref;
  return submission;
}

// Rows of one element each for the kinds whose sizes differ by rank; the result lands in `output`.
template <typename T>
Result<Handle> gather_like(Engine& engine, OpKind kind, const std::vector<T>& input,
                           std::vector<std::int64_t> rows, std::vector<T>& output,
                           const Options& options = {}) {
  RequestSpec spec{
      .name = options.name.empty() ? unnamed(kind) : options.name,
      .kind = kind,
      .group = options.group,
      .op = options.op,
      .root = kNoRank,
      .prescale = 1.0,
      .postscale = 1.0,
      .in_arena = false,
      .backend = options.backend,
      .tensors = {
          {dtype_of<T>(),
           {kind == OpKind::kReducescatter ? static_cast<std::int64_t>(input.size()) : kAnyRows}}}};
  Submission submission;
  submission.spec = std::make_shared<RequestSpec>(std::move(spec));
  submission.rows = std::move(rows);
  submission.inputs.push_back(reinterpret_cast<const std::byte*>(input.data()));
  submission.allocate = [&output](std::size_t, std::int64_t count) -> Result<std::byte*> {
    output.resize(static_cast<std::size_t>(count));
    return reinterpret_cast<std::byte*>(output.data());
  };
  return engine.submit(std::move(submission));
}

}  // namespace ciranda::testing
