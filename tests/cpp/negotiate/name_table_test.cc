// What could break: an entry that goes while somebody points at it, or one that stays for ever.
#include "core/negotiate/name_table.h"

#include <gtest/gtest.h>

#include <string>

#include "negotiate/requests.h"

namespace ciranda {
namespace {

const std::shared_ptr<const Group> kWorld = world_of(3);

TEST(NameTable, GivesOneEntryForOneNameOfAKind) {
  NameTable names;
  NameEntry& first = names.acquire("w", OpKind::kAllreduce, kWorld);
  EXPECT_EQ(&names.acquire(std::string("w"), OpKind::kAllreduce, kWorld), &first);
  EXPECT_NE(&names.acquire("v", OpKind::kAllreduce, kWorld), &first);
  EXPECT_EQ(names.size(), 2u);
}

TEST(NameTable, ForgetsANameWithItsLastReference) {
  NameTable names;
  NameEntry& entry = names.acquire("w", OpKind::kAllreduce, kWorld);
  names.add_reference(entry);
  names.release(entry);
  EXPECT_EQ(names.size(), 1u);
  names.release(entry);
  EXPECT_EQ(names.size(), 0u);
}

TEST(NameTable, KeepsKindsApartWithANameAndWithout) {
  for (const char* const name : {"w", ""}) {
    NameTable names;
    NameEntry& barrier = names.acquire(name, OpKind::kBarrier, kWorld);
    NameEntry& other = names.acquire(name, OpKind::kAllreduce, kWorld);
    EXPECT_NE(&other, &barrier);
    names.release(other);
    EXPECT_EQ(&names.acquire(name, OpKind::kBarrier, kWorld), &barrier);
    EXPECT_EQ(names.size(), 1u);
  }
}

TEST(NameTable, KeepsGroupsApart) {
  NameTable names;
  GroupTable groups(3, {});
  NameEntry& of_world = names.acquire("w", OpKind::kAllreduce, groups.world());
  NameEntry& of_group = names.acquire("w", OpKind::kAllreduce, groups.add({1}));
  EXPECT_NE(&of_group, &of_world);
  EXPECT_EQ(of_group.group->ranks, std::vector<Rank>{1});
  names.release(of_world);
  EXPECT_EQ(&names.acquire("w", OpKind::kAllreduce, groups.of_ranks({1})), &of_group);
  EXPECT_EQ(names.size(), 1u);
}

TEST(NameTable, KeepsAddressesWhileItGrows) {
  NameTable names;
  NameEntry& first = names.acquire("first", OpKind::kAllreduce, kWorld);
  for (int i = 0; i < 10'000; ++i) names.acquire(std::to_string(i), OpKind::kAllreduce, kWorld);
  EXPECT_EQ(&names.acquire("first", OpKind::kAllreduce, kWorld), &first);
}

}  // namespace
}  // namespace ciranda
