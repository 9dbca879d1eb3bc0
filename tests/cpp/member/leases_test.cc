// What could break: a process that runs is taken for a silent one, or a silent one is waited for.
#include "core/member/leases.h"

#include <gtest/gtest.h>

namespace ciranda::member {
namespace {

using Silent = std::vector<Incarnation>;

class LeasesTest : public ::testing::Test {
 protected:
  // Looks each 25 from `begin` on, until `end`, and returns who was silent at last.
  Silent look(std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t now = begin; now < end; now += 25) EXPECT_EQ(leases_.end(now), Silent());
    return leases_.end(end);
  }
  Leases leases_{100};
};

TEST_F(LeasesTest, ALeaseEndsWhenNothingIsHeard) {
  leases_.hear(7, 0, /*is_beat=*/true, 0);
  EXPECT_EQ(look(0, 100), (Silent{7}));
  EXPECT_EQ(look(100, 300), Silent()) << "it is said once";
}

TEST_F(LeasesTest, EachMessageBeginsALeaseAnew) {
  leases_.hear(7, 0, /*is_beat=*/true, 0);
  look(0, 75);
  leases_.hear(7, 0, /*is_beat=*/false, 80);
  EXPECT_EQ(look(100, 175), Silent());
  EXPECT_EQ(leases_.end(180), (Silent{7}));
}

TEST_F(LeasesTest, NobodyHasALeaseBeforeItsFirstBeat) {
  leases_.hear(7, 0, /*is_beat=*/false, 0);
  EXPECT_EQ(look(0, 1000), Silent());
}

TEST_F(LeasesTest, ACallerThatStoodStillHasHeardNobody) {
  leases_.hear(7, 0, /*is_beat=*/true, 0);
  EXPECT_EQ(leases_.end(50), Silent());
  EXPECT_EQ(leases_.end(101), Silent()) << "more than half a lease later";
  EXPECT_EQ(look(125, 200), Silent());
  EXPECT_EQ(leases_.end(201), (Silent{7}));
}

TEST_F(LeasesTest, OfAnotherHostIsSilentWhoSaysNothingWhileTheHostDoes) {
  leases_.hear(7, 1, /*is_beat=*/true, 0);
  leases_.host_beats(1, 0);
  EXPECT_EQ(look(0, 300), Silent()) << "a connection that stands still is no silence";
  leases_.hear(7, 1, /*is_beat=*/true, 310);
  leases_.host_beats(1, 310);
  EXPECT_EQ(look(310, 380), Silent());
  leases_.host_beats(1, 400);
  EXPECT_EQ(leases_.end(400), Silent());
  leases_.host_beats(1, 410);
  EXPECT_EQ(leases_.end(410), (Silent{7}));
}

TEST_F(LeasesTest, AClosedLeaseDoesNotEnd) {
  leases_.hear(7, 0, /*is_beat=*/true, 0);
  leases_.close(7);
  EXPECT_EQ(look(0, 200), Silent());
}

TEST_F(LeasesTest, TheNextLookIsAQuarterOfALeaseAway) {
  leases_.begin(1000);
  EXPECT_EQ(leases_.deadline(), 1025);
  leases_.end(1010);
  EXPECT_EQ(leases_.deadline(), 1035);
}

TEST(Leases, WithoutATimeNobodyIsSilent) {
  Leases leases(0);
  leases.begin(0);
  leases.hear(7, 0, /*is_beat=*/true, 0);
  EXPECT_EQ(leases.end(1'000'000), Silent());
  EXPECT_EQ(leases.deadline(), std::nullopt);
}

}  // namespace
}  // namespace ciranda::member
