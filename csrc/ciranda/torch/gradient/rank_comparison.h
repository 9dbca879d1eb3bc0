#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ciranda/torch/collective/collective.h"
#include "ciranda/torch/step/reducer.h"
#include "ciranda/torch/tensor/tensor_stamp.h"

namespace ciranda {

// Looks whether the ranks of an optimizer train the same model in the same way. Compared are how
// they step and
//
// - parameters that are new here: before the next step,
// - those that something else than a step has written since the step before: before steps 2, 4, 8
//   and so on,
// - all of them before the first step after a join, which who had joined may have missed steps of.
//
// A step that compares nothing looks at nothing. Not thread-safe.
class RankComparison {
 public:
  // `name` is the optimizer's. Unless each rank has parameters of its own, `apart`, they are not
  // compared.
  RankComparison(std::shared_ptr<const Communicator> among, std::string name, bool apart);

  // On every rank the same.
  void add(NamedParameters parameters);
  // Before each step, on every rank: whether to call compare().
  bool begin_step();
  // `way`: how this rank steps, in one line. kMismatch, on every rank, if they differ in that from
  // the first on, or in parameters that are new and a rank has not written since add(). Other
  // differences are given as a sentence, once, for whoever can warn; else "". Collective, blocking.
  // `reducer`, if it is one of C++: the optimizer's.
  std::string compare(const std::string& way, Reducer* reducer);
  void end_step();

 private:
  // Why a parameter is compared; what is worse comes later.
  enum Reason : char { kNone = '0', kJoined, kWritten, kNew };
  struct Entry {
    std::string name;
    at::Tensor parameter;
    Reason reason = kNew;
    TensorStamp left = {};  // by add(), then by the step before one that compares
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
  std::uint64_t step_ = 0;  // since the latest join or add()
  std::uint64_t next_ = 1;  // that compares
  bool way_is_new_ = true;
  bool warned_ = false;
};

}  // namespace ciranda
