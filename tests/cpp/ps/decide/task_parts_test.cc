// What could break: a push of a repeated task that counts again, or one of a new task that does
// not.
#include "core/ps/decide/task_parts.h"

#include <gtest/gtest.h>

#include <vector>

namespace ciranda::ps {
namespace {

TEST(TaskParts, EachPartOfATaskIsNewOnce) {
  TaskParts parts;
  EXPECT_TRUE(parts.add({}));
  EXPECT_TRUE(parts.add({}));
  EXPECT_TRUE(parts.add({.task = 3, .part = 1}));
  EXPECT_FALSE(parts.add({.task = 3, .part = 1}));
  EXPECT_TRUE(parts.add({.task = 2, .part = 1}));
  EXPECT_TRUE(parts.add({.task = 3, .part = 2}));
  EXPECT_FALSE(parts.add({.task = 3, .part = 1}));
}

TEST(TaskParts, WhatIsOverCountsNoMore) {
  TaskParts parts;
  EXPECT_TRUE(parts.add({.task = 1, .part = 1}));
  EXPECT_TRUE(parts.add({.task = 4, .part = 2, .settled = 3}));
  EXPECT_FALSE(parts.add({.task = 1, .part = 2})) << "of who has not heard of it";
  EXPECT_FALSE(parts.add({.task = 3, .part = 1}));
  EXPECT_TRUE(parts.add({.task = 4, .part = 3}));
}

TEST(TaskParts, ComeBackAsTheyWere) {
  TaskParts parts;
  EXPECT_TRUE(parts.add({.task = 5, .part = 2, .settled = 3}));
  EXPECT_TRUE(parts.add({.task = 9, .part = 7}));
  std::vector<std::byte> bytes;
  Writer out(bytes);
  parts.save(out);
  TaskParts back;
  EXPECT_TRUE(back.add({.task = 6, .part = 7}));
  Reader in(bytes);
  back.restore(in);
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(in.remaining(), 0u);
  EXPECT_FALSE(back.add({.task = 3, .part = 1}));
  EXPECT_FALSE(back.add({.task = 5, .part = 2}));
  EXPECT_FALSE(back.add({.task = 9, .part = 7}));
  EXPECT_TRUE(back.add({.task = 6, .part = 1}));
}

}  // namespace
}  // namespace ciranda::ps
