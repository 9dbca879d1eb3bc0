// What could break: an entry that goes while somebody points at it, or one that stays for ever.
#include "core/negotiate/name_table.h"

#include <gtest/gtest.h>

#include <string>

namespace ciranda {
namespace {

TEST(NameTable, GivesOneEntryForOneNameOfAKind) {
  NameTable names;
  NameEntry& first = names.acquire("w", OpKind::kAllreduce);
  EXPECT_EQ(&names.acquire(std::string("w"), OpKind::kAllreduce), &first);
  EXPECT_NE(&names.acquire("v", OpKind::kAllreduce), &first);
  EXPECT_EQ(names.size(), 2u);
}

TEST(NameTable, ForgetsANameWithItsLastReference) {
  NameTable names;
  NameEntry& entry = names.acquire("w", OpKind::kAllreduce);
  names.add_reference(entry);
  names.release(entry);
  EXPECT_EQ(names.size(), 1u);
  names.release(entry);
  EXPECT_EQ(names.size(), 0u);
}

TEST(NameTable, KeepsKindsApartWithANameAndWithout) {
  for (const char* const name : {"w", ""}) {
    NameTable names;
    NameEntry& barrier = names.acquire(name, OpKind::kBarrier);
    NameEntry& other = names.acquire(name, OpKind::kAllreduce);
    EXPECT_NE(&other, &barrier);
    names.release(other);
    EXPECT_EQ(&names.acquire(name, OpKind::kBarrier), &barrier);
    EXPECT_EQ(names.size(), 1u);
  }
}

TEST(NameTable, KeepsAddressesWhileItGrows) {
  NameTable names;
  NameEntry& first = names.acquire("first", OpKind::kAllreduce);
  for (int i = 0; i < 10'000; ++i) names.acquire(std::to_string(i), OpKind::kAllreduce);
  EXPECT_EQ(&names.acquire("first", OpKind::kAllreduce), &first);
}

}  // namespace
}  // namespace ciranda
