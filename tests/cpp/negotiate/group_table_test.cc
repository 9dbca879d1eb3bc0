// What could break: a rank that finds itself in a group of others, or a number that means two.
#include "core/negotiate/group_table.h"

#include <gtest/gtest.h>

#include "core/wire/pair.h"

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

TEST(GroupTable, HasEveryPairOfTwoRanks) {
  GroupTable table(3, {{0, 2}, {1}});
  const GroupId id = pair_id({.from = 2, .to = 0});
  EXPECT_EQ(table.find(id), nullptr);
  const auto pair = table.find_or_pair(id);
  ASSERT_NE(pair, nullptr);
  EXPECT_EQ(pair->id, id);
  EXPECT_EQ(pair->ranks, (std::vector<Rank>{0, 2}));
  EXPECT_EQ(pair->hosts, (Hosts{{0, 2}, {}}));
  EXPECT_EQ(table.find_or_pair(id), pair);
  EXPECT_NE(table.find_or_pair(pair_id({.from = 0, .to = 2})), pair);  // the other way
  EXPECT_EQ(table.find_or_pair(pair_id({.from = 1, .to = 1})), nullptr);
  EXPECT_EQ(table.find_or_pair(pair_id({.from = 0, .to = 3})), nullptr);
  EXPECT_EQ(table.find_or_pair(kWorldGroup), table.world());
  // It is no process set: that of the same ranks can be made, and removed.
  EXPECT_EQ(table.of_ranks({0, 2}), nullptr);
  table.remove(table.add({0, 2})->id);
  EXPECT_EQ(table.find_or_pair(id), pair);
}

TEST(Pair, IsReadFromItsNumber) {
  for (const Pair pair : {Pair{0, 1}, Pair{kRanksMax - 1, 0}, Pair{7, kRanksMax - 1}}) {
    const GroupId id = pair_id(pair);
    EXPECT_TRUE(is_pair(id));
    EXPECT_EQ(pair_of(id).from, pair.from);
    EXPECT_EQ(pair_of(id).to, pair.to);
  }
  EXPECT_FALSE(is_pair(kWorldGroup));
  EXPECT_FALSE(is_in_world(pair_of(UINT32_MAX), 3));
}

TEST(GroupTableDeathTest, KeepsTheWorld) {
  GroupTable table(2, {});
  EXPECT_DEATH(table.remove(kWorldGroup), "broken invariant");
}

}  // namespace
}  // namespace ciranda
