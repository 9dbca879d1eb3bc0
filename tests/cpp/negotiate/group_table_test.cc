// What could break: a rank that finds itself in a group of others, or a number that means two.
#include "core/negotiate/group_table.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

TEST(Group, FindsItsMembers) {
  GroupTable table(8, {});
  const auto gaps = table.add({1, 2, 5, 7});
  const int expected[] = {-1, 0, 1, -1, -1, 2, -1, 3};
  for (Rank rank = 0; rank < 8; ++rank)
    EXPECT_EQ(gaps->index_of(rank), expected[static_cast<std::size_t>(rank)]) << rank;
  EXPECT_FALSE(gaps->contains(-1));
  EXPECT_FALSE(gaps->contains(8));
  EXPECT_EQ(table.add({5, 6})->index_of(6), 1);
  EXPECT_EQ(table.world()->index_of(7), 7);
  EXPECT_EQ(table.world()->index_of(8), -1);
}

TEST(Group, KnowsOnWhichHostItsMembersAre) {
  GroupTable table(5, {{0, 3}, {1}, {2, 4}});
  EXPECT_EQ(table.add({2, 3, 4})->hosts, (Hosts{{3}, {}, {2, 4}}));
  EXPECT_EQ(table.world()->hosts, (Hosts{{0, 3}, {1}, {2, 4}}));
  EXPECT_EQ(GroupTable(2, {}).world()->hosts, (Hosts{{0, 1}}));
}

TEST(GroupTable, FindsByNumberAndByRanks) {
  GroupTable table(3, {});
  const auto first = table.add({0});
  const auto second = table.add({0, 1});
  EXPECT_EQ(table.find(first->id), first);
  EXPECT_EQ(table.of_ranks({0, 1}), second);
  EXPECT_EQ(table.of_ranks({0, 1, 2}), table.world());
  EXPECT_EQ(table.of_ranks({1}), nullptr);
  EXPECT_EQ(table.find(kWorldGroup), table.world());
  EXPECT_EQ(table.find(9), nullptr);
}

TEST(GroupTable, GivesNoNumberTwice) {
  GroupTable table(2, {});
  const GroupId first = table.add({0})->id;
  const GroupId second = table.add({1})->id;
  table.remove(second);
  table.remove(first);
  EXPECT_EQ(table.find(second), nullptr);
  EXPECT_EQ(table.add({0})->id, second + 1);
}

TEST(GroupTableDeathTest, KeepsTheWorld) {
  GroupTable table(2, {});
  EXPECT_DEATH(table.remove(kWorldGroup), "broken invariant");
}

}  // namespace
}  // namespace ciranda
