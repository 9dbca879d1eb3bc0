#include "core/member/futility.h"

#include <utility>

namespace ciranda::member {
namespace {

constexpr int kFailedStartsMax = 10;
constexpr int kErrorsAtOneStepMax = 2;
constexpr int kLossesAtOneStepMax = 10;

}  // namespace

void Futility::formed(std::uint64_t step) {
  failed_starts_ = 0;
  formed_since_loss_ = true;
  if (step <= step_) return;
  step_ = step;
  losses_ = errors_ = 0;
}

bool Futility::start_fails() {
  return ++failed_starts_ > kFailedStartsMax;
}

void Futility::lose() {
  if (std::exchange(formed_since_loss_, false)) ++losses_;
}

bool Futility::step_fails(bool by_error) {
  if (by_error) ++errors_;
  return losses_ > kLossesAtOneStepMax || errors_ > kErrorsAtOneStepMax;
}

}  // namespace ciranda::member
