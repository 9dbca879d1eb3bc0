#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/step/step_types.h"
#include "ciranda/torch/tensor/tensor_stamp.h"

namespace ciranda {

// Checks that the ranks of an optimizer train the same model in the same way. It compares how they
// step, and these parameters:
//
// - new ones: before the next step,
// - those that something else than a step has written since the previous step: before steps 2, 4, 8
//   and so on,
// - every one: before the first step after a join, since a rank that had joined may have missed
//   steps.
//
// A step that compares nothing reads nothing. Not thread-safe.
class RankComparison {
 public:
  // `name` is the optimizer's. `apart`: each rank has its own parameters; if not, they are not
  // compared.
  RankComparison(std::shared_ptr<const Communicator> among, std::string name, bool apart);

  // Adds parameters, the same on every rank.
  void add(NamedParameters parameters);
  // Returns true if this step must call compare(). Called before each step, on every rank.
  bool begin_step();
  // Compares the ranks. `way` says in one line how this rank steps. Throws kMismatch, on every
  // rank, if the ranks step differently from the start, or if new parameters differ that at least
  // one rank has not written since add(). Returns any other difference as a sentence for a warning,
  // only once; else "". `reducer` is the optimizer's, if it is one of C++. Collective, blocking.
  std::string compare(const std::string& way, GradientReducer* reducer);
  void end_step();

 private:
  // The reason to compare a parameter, in ascending order of severity.
  enum Reason : char { kNone = '0', kJoined, kWritten, kNew };
  struct Entry {
    std::string name;
    at::Tensor parameter;
    Reason reason = kNew;
    TensorStamp left = {};  // as of add(), later as of the end of the step before a comparison
  };

  bool all_say(std::uint64_t mine, const Engine::Look& look) const;
  std::string text(const std::string& way) const;
  std::string difference(const std::vector<std::string>& by_rank) const;
  [[noreturn]] static void refuse(const std::string& why);

  const std::shared_ptr<const Communicator> among_;
  const std::string name_;
  const bool apart_;
  std::vector<Entry> entries_;
  std::uint64_t joins_ = 0;
  std::uint64_t step_ = 0;  // counted since the latest join or add()
  std::uint64_t next_ = 1;  // next step that compares
  bool way_is_new_ = true;
  bool warned_ = false;
};

}  // namespace ciranda
