#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ciranda {

struct Group;

// A set of ranks that run operations among themselves; see docs/process-sets.md. add_process_set()
// returns it; it is usable until remove_process_set() or the end of the job. Copies stand for the
// same set.
class ProcessSet {
 public:
  // Stands for all ranks of the job, as an argument. To list the ranks, use global_process_set().
  ProcessSet() = default;

  // The set's number, the same on every rank; 0: all ranks of the job.
  std::uint32_t id() const;
  // Returns true if this process is a member.
  bool included() const { return group_ == nullptr || rank_ >= 0; }
  // These three throw std::runtime_error for a default-constructed ProcessSet().
  const std::vector<int>& ranks() const;  // the members' ranks in the job, ascending
  int size() const;                       // the number of members
  int rank() const;  // the index of this process among the members; -1 if it is not a member

  // For ciranda's own use: `rank` is this process's rank in the job.
  explicit ProcessSet(std::shared_ptr<const Group> group, int rank);
  const std::shared_ptr<const Group>& group() const { return group_; }

 private:
  std::shared_ptr<const Group> group_;
  int rank_ = -1;
};

// Makes this process a rank of a job and runs collectives on plain memory, for C++ programs without
// torch. `ciranda run -np 4 ./program`, mpirun, srun and torchrun start the ranks; a program that
// is started by hand is a job of one rank. Every rank calls the same collectives with the same
// names and sizes.
//
// All calls block. They are thread-safe. They throw std::runtime_error with one sentence that names
// the operation, the rank at fault and what to do. If ranks disagree, the call throws on every
// rank, and the job stays usable.
class Job {
 public:
  enum class Op { kSum, kAverage, kMin, kMax, kProduct, kAdasum };

  // Connects to the other ranks; waits for them at most CIRANDA_START_TIMEOUT_SECONDS (30).
  Job();
  // Tells the other ranks that this one leaves.
  ~Job();
  Job(Job&&) noexcept;
  Job& operator=(Job&&) noexcept;

  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;

  // A collective with a process set is called by the members of the set, and runs among them. A
  // collective without a process set is called by all ranks.
  //
  // Operations with an empty name are matched by order: the n-th unnamed operation of a kind on one
  // rank belongs to the n-th on every other rank.

  // Replaces data[i] by the reduction of data[i] over the ranks, for `count` elements. kAdasum
  // takes float and double, and combines whole arrays: with two ranks that hold a and b, and the
  // dot product ab, the result is (1 - ab / (2 |a|^2)) a + (1 - ab / (2 |b|^2)) b. More ranks are
  // combined in pairs, as a tree (Maleki et al., "Scaling Distributed Training with Adaptive
  // Summation", 2020).
  void allreduce(float* data, std::size_t count, Op op = Op::kSum, const std::string& name = "",
                 const ProcessSet& process_set = {});
  void allreduce(double* data, std::size_t count, Op op = Op::kSum, const std::string& name = "",
                 const ProcessSet& process_set = {});
  void allreduce(std::int32_t* data, std::size_t count, Op op = Op::kSum,
                 const std::string& name = "", const ProcessSet& process_set = {});
  void allreduce(std::int64_t* data, std::size_t count, Op op = Op::kSum,
                 const std::string& name = "", const ProcessSet& process_set = {});
  // Replaces `data` on every rank by the root's. `root` is a rank of the job, even with a process
  // set.
  void broadcast(void* data, std::size_t bytes, int root, const std::string& name = "",
                 const ProcessSet& process_set = {});
  // Returns once every rank has called it or has joined.
  void barrier(const ProcessSet& process_set = {});

  // All ranks of the job call add_process_set() and remove_process_set() in the same order,
  // including ranks that are not members. `ranks` may have any order, but no repetitions. Throws if
  // a set of the same ranks exists.
  ProcessSet add_process_set(std::vector<int> ranks);
  // Throws on every rank while an operation of the set is pending.
  void remove_process_set(const ProcessSet& process_set);
  // Returns the set that contains every rank.
  ProcessSet global_process_set() const;

  // Says that this rank has no more data. Blocks until every rank has called it, and returns the
  // rank that called it last. Meanwhile this rank adds zeros to the sums and averages of other
  // ranks. Operations without a zero (kMin, kMax, kProduct, broadcast, changes of process sets)
  // throw on the ranks that call them.
  int join();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ciranda
