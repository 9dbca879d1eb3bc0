// What could break: a rank that started twice is not noticed, or a restarted one is locked out.
#include "core/transport/dial/roster.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

Hello rank_two(Incarnation incarnation, std::uint16_t stream = 0) {
  return {.stream = stream, .from = 2, .to = 0, .incarnation = incarnation};
}

TEST(Roster, NamesBothPlacesOfARankThatComesTwice) {
  Roster roster;
  ASSERT_TRUE(roster.admit(rank_two(5), "192.0.2.1:1").ok());
  const auto again = roster.admit(rank_two(5), "192.0.2.9:2");
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().text,
            "rank 2 came twice (192.0.2.1:1 and now 192.0.2.9:2); start every rank once");
  EXPECT_EQ(again.error().rank, 2);
}

TEST(Roster, LetsANewerIncarnationReplaceAnOlderOneAndNotTheOtherWayRound) {
  Roster roster;
  ASSERT_TRUE(roster.admit(rank_two(5), "a").ok());
  const auto newer = roster.admit(rank_two(6), "b");
  ASSERT_TRUE(newer.ok());
  EXPECT_EQ(newer.value(), Roster::Admission::kReplacesEarlier);
  const auto older = roster.admit(rank_two(5), "c");
  ASSERT_FALSE(older.ok());
  EXPECT_EQ(older.error().text,
            "rank 2 was restarted, but its earlier process came again (b and now c)");
}

TEST(Roster, KeepsChannelsAndLanesApart) {
  Roster roster;
  Hello data = rank_two(5);
  data.purpose = Purpose::kData;
  EXPECT_EQ(roster.admit(rank_two(5), "a").value(), Roster::Admission::kFirst);
  EXPECT_EQ(roster.admit(rank_two(5, 1), "a").value(), Roster::Admission::kFirst);
  EXPECT_EQ(roster.admit(data, "a").value(), Roster::Admission::kFirst);
}

TEST(Roster, LetsARankComeAgainOnceItsConnectionIsForgotten) {
  Roster roster;
  ASSERT_TRUE(roster.admit(rank_two(5), "a").ok());
  roster.forget(2, Purpose::kControl, 0);
  EXPECT_EQ(roster.admit(rank_two(5), "a").value(), Roster::Admission::kFirst);
}

}  // namespace
}  // namespace ciranda
