#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ciranda {

// This process as a rank of a job, for C++ programs without torch: collectives on plain memory.
// `ciranda run -np 4 ./program`, mpirun, srun and torchrun start the ranks; without a starter the
// job has one rank. Every rank calls the same collectives with the same names and sizes.
//
// All calls block and may be made from any thread. They throw std::runtime_error with one sentence
// that names the operation, the rank at fault and what to do; a disagreement between ranks throws
// on every rank and leaves the job usable.
class Job {
 public:
  enum class Op { kSum, kAverage, kMin, kMax, kProduct };

  // Meets the other ranks; waits for them at most CIRANDA_START_TIMEOUT_SECONDS (30).
  Job();
  // Says goodbye to them.
  ~Job();
  Job(Job&&) noexcept;
  Job& operator=(Job&&) noexcept;

  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;

  // In place: data[i] becomes the reduction of data[i] over the ranks. `count` elements. An empty
  // name means: the n-th unnamed operation of its kind on every rank.
  void allreduce(float* data, std::size_t count, Op op = Op::kSum, const std::string& name = "");
  void allreduce(double* data, std::size_t count, Op op = Op::kSum, const std::string& name = "");
  void allreduce(std::int32_t* data, std::size_t count, Op op = Op::kSum,
                 const std::string& name = "");
  void allreduce(std::int64_t* data, std::size_t count, Op op = Op::kSum,
                 const std::string& name = "");
  // In place: every rank gets the root's bytes.
  void broadcast(void* data, std::size_t bytes, int root, const std::string& name = "");
  // Returns once every rank has called it.
  void barrier();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ciranda
