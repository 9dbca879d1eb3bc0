#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ciranda {

struct Group;

// Ranks of a job that run operations among themselves; docs/process-sets.md. What
// add_process_set() gives, usable until remove_process_set() or the end of the job. A small value:
// copies are the same set.
class ProcessSet {
 public:
  // As an argument: all ranks of the job. It lists none, global_process_set() does.
  ProcessSet() = default;

  // The same on every rank; 0: all ranks of the job.
  std::uint32_t id() const;
  // Whether this process is a member.
  bool included() const { return group_ == nullptr || rank_ >= 0; }
  // The members' numbers in the job, ascending; how many they are; this process's place among them,
  // -1 if it is no member. std::runtime_error for ProcessSet(), which does not know.
  const std::vector<int>& ranks() const;
  int size() const;
  int rank() const;

  // For ciranda itself: the set `group`, in the process with number `rank` in the job.
  explicit ProcessSet(std::shared_ptr<const Group> group, int rank);
  const std::shared_ptr<const Group>& group() const { return group_; }

 private:
  std::shared_ptr<const Group> group_;
  int rank_ = -1;
};

// This process as a rank of a job, for C++ programs without torch: collectives on plain memory.
// `ciranda run -np 4 ./program`, mpirun, srun and torchrun start the ranks; without a starter the
// job has one rank. Every rank calls the same collectives with the same names and sizes.
//
// All calls block and may be made from any thread. They throw std::runtime_error with one sentence
// that names the operation, the rank at fault and what to do; a disagreement between ranks throws
// on every rank and leaves the job usable.
class Job {
 public:
  enum class Op { kSum, kAverage, kMin, kMax, kProduct, kAdasum };

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

  // Those that take a process set run among its members, who alone call them; by itself all ranks.

  // In place: data[i] becomes the reduction of data[i] over the ranks. `count` elements. An empty
  // name means: the n-th unnamed operation of its kind on every rank. kAdasum is of all of `data`,
  // float or double: with two ranks (1 - ab/2|a|^2) a + (1 - ab/2|b|^2) b, with more by a tree.
  void allreduce(float* data, std::size_t count, Op op = Op::kSum, const std::string& name = "",
                 const ProcessSet& process_set = {});
  void allreduce(double* data, std::size_t count, Op op = Op::kSum, const std::string& name = "",
                 const ProcessSet& process_set = {});
  void allreduce(std::int32_t* data, std::size_t count, Op op = Op::kSum,
                 const std::string& name = "", const ProcessSet& process_set = {});
  void allreduce(std::int64_t* data, std::size_t count, Op op = Op::kSum,
                 const std::string& name = "", const ProcessSet& process_set = {});
  // In place: every rank gets the root's bytes. `root` is a rank of the job.
  void broadcast(void* data, std::size_t bytes, int root, const std::string& name = "",
                 const ProcessSet& process_set = {});
  // Returns once every rank has called it, or has joined.
  void barrier(const ProcessSet& process_set = {});

  // All ranks of the job call these in the same order, also for sets of other ranks. A set's
  // ranks come in any order, each once; a set of the same ranks must not be there yet.
  ProcessSet add_process_set(std::vector<int> ranks);
  // Throws on every rank while an operation of the set is pending.
  void remove_process_set(const ProcessSet& process_set);
  // That of all ranks.
  ProcessSet global_process_set() const;

  // This rank has no more data: returns once every rank has called it, with the one that did so
  // last. Until then it counts as present, and adds zeros to the others' sums and averages; what
  // has no zero (kMin, kMax, kProduct, broadcast, changes of process sets) throws where it is
  // called.
  int join();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ciranda
