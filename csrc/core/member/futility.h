#pragma once

#include <cstdint>

namespace ciranda::member {

// Notices that a job gets nowhere: processes end before they have formed an epoch, or one step
// fails again and again. Neither must be repeated for ever. Not thread-safe.
class Futility {
 public:
  // A member has formed an epoch, with this step.
  void formed(std::uint64_t step);
  // A process has ended that never formed an epoch. Returns true if too many have in a row.
  bool start_fails();
  // A member is lost. Several count as one if no member has formed an epoch in between: they were
  // lost together.
  void lose();
  // A member that is lost is reaped. Returns true if too many were lost at one step.
  bool step_fails(bool by_error);

 private:
  int failed_starts_ = 0;   // in a row
  std::uint64_t step_ = 0;  // the newest with which a member has formed an epoch
  int losses_ = 0;          // of members since then
  int errors_ = 0;          // losses by errors since then
  bool formed_since_loss_ = false;
};

}  // namespace ciranda::member
