// What could break: a place in a World that does not fit those of others.
#include "core/member/hosts.h"

#include <gtest/gtest.h>

namespace ciranda::member {
namespace {

using Members = std::vector<Incarnation>;

TEST(Hosts, RanksOfAHostFollowEachOtherByTheOrderOfTheMembers) {
  const NewEpoch epoch{.number = 2, .members = {5, 1, 7, 3}, .hosts = {2, 0, 2, 0}};
  const auto at = [&](Incarnation id) { return place_of_member(epoch, id); };
  const Members on_2 = {5, 7};
  const Members on_0 = {1, 3};
  EXPECT_EQ(at(5), (MemberPlace{.rank = 0, .size = 4, .host = 0, .hosts = 2, .here = on_2}));
  EXPECT_EQ(at(1), (MemberPlace{.rank = 1, .size = 4, .host = 1, .hosts = 2, .here = on_0}));
  EXPECT_EQ(
      at(7),
      (MemberPlace{.rank = 2, .size = 4, .local_rank = 1, .host = 0, .hosts = 2, .here = on_2}));
  EXPECT_EQ(
      at(3),
      (MemberPlace{.rank = 3, .size = 4, .local_rank = 1, .host = 1, .hosts = 2, .here = on_0}));
}

TEST(Hosts, WithoutHostsAllAreOnOne) {
  const NewEpoch epoch{.number = 2, .members = {5, 1}};
  EXPECT_EQ(place_of_member(epoch, 1),
            (MemberPlace{.rank = 1, .size = 2, .local_rank = 1, .here = {5, 1}}));
}

}  // namespace
}  // namespace ciranda::member
