#pragma once

#include <map>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/leases.h"

namespace ciranda::ps {

// Which callers have declared their model, and which of them wait for parameters.
//
// Not thread-safe.
class Declarations {
 public:
  // The caller has declared, and waits from here on. `returns`: it has had parameters before.
  void add(Caller caller, bool returns) {
    CIRANDA_ASSERT(!has_declared(caller));
    declared_[caller] = {.waits = true, .returns = returns};
  }
  void close(Caller caller) { declared_.erase(caller); }
  bool has_declared(Caller caller) const { return declared_.contains(caller); }
  bool waits(Caller caller) const {
    const auto found = declared_.find(caller);
    return found != declared_.end() && found->second.waits;
  }
  // Returns true if the caller has declared and waits no more.
  bool has_parameters(Caller caller) const {
    const auto found = declared_.find(caller);
    return found != declared_.end() && !found->second.waits;
  }
  bool anyone_waits() const;
  struct Waiting {
    Caller caller = -1;
    bool returns = false;
  };
  // Returns the callers that wait, ascending. They wait no more.
  std::vector<Waiting> take_waiting();

 private:
  struct Declared {
    bool waits = false;
    bool returns = false;
  };
  std::map<Caller, Declared> declared_;
};

}  // namespace ciranda::ps
