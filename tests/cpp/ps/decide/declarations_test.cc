// What could break: a worker that is given parameters twice, or never.
#include "core/ps/decide/declarations.h"

#include <gtest/gtest.h>

namespace ciranda::ps {
namespace {

TEST(Declarations, WhoHasDeclaredWaitsUntilTakenOrClosed) {
  Declarations declarations;
  EXPECT_FALSE(declarations.waits(-1));
  declarations.add(4, /*returns=*/false);
  declarations.add(2, /*returns=*/true);
  declarations.add(3, /*returns=*/false);
  EXPECT_TRUE(declarations.has_declared(4));
  EXPECT_FALSE(declarations.has_parameters(4));
  declarations.close(3);
  EXPECT_FALSE(declarations.has_declared(3));
  const auto waiting = declarations.take_waiting();
  ASSERT_EQ(waiting.size(), 2u);
  EXPECT_EQ(waiting[0].caller, 2);
  EXPECT_TRUE(waiting[0].returns);
  EXPECT_EQ(waiting[1].caller, 4);
  EXPECT_FALSE(waiting[1].returns);
  EXPECT_FALSE(declarations.anyone_waits());
  EXPECT_TRUE(declarations.take_waiting().empty());
  EXPECT_TRUE(declarations.has_parameters(4));
  EXPECT_FALSE(declarations.waits(4));
}

}  // namespace
}  // namespace ciranda::ps
