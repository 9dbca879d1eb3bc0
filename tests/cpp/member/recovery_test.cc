// What could break: training goes on from a state that is not the newest, or that nobody holds.
#include "core/member/recovery.h"

#include <gtest/gtest.h>

namespace ciranda::member {
namespace {

Standing holder(std::uint64_t moment) {
  return {.holds_state = true, .moment = moment};
}

RecoveryPlan plan(std::vector<Standing> standings) {
  return plan_recovery(standings);
}

TEST(Recovery, TheNewestStateWins) {
  EXPECT_EQ(plan({holder(4), holder(5), holder(5), holder(3)}),
            (RecoveryPlan{.source = 1, .moment = 5, .behind = {0, 3}}));
}

TEST(Recovery, ANewcomerIsNoSourceWhateverItsMoment) {
  EXPECT_EQ(plan({{.holds_state = false, .moment = 9}, holder(2)}),
            (RecoveryPlan{.source = 1, .moment = 2, .newcomers = {0}}));
}

TEST(Recovery, TheFirstEpochBeginsFromRank0) {
  EXPECT_EQ(plan({Standing{}, Standing{}, Standing{}}),
            (RecoveryPlan{.source = 0, .moment = 0, .newcomers = {1, 2}}));
}

TEST(Recovery, NobodyCopiesWhereAllHoldTheSame) {
  EXPECT_EQ(plan({holder(7), holder(7)}), (RecoveryPlan{.source = 0, .moment = 7}));
  EXPECT_EQ(plan({holder(7)}), (RecoveryPlan{.source = 0, .moment = 7}));
}

}  // namespace
}  // namespace ciranda::member
