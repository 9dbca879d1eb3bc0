// What could break: a loss that the user is told twice or never, or a time that begins elsewhere.
#include "core/member/news.h"

#include <gtest/gtest.h>

namespace ciranda::member {
namespace {

using Members = std::vector<Incarnation>;

TEST(LossNews, TellsALossOnceWithTheTimeSinceIt) {
  LossNews news;
  news.begin(5);
  EXPECT_EQ(news.formed({.number = 1, .members = {1, 2, 3}}, 0, 9).since_ns, 4);
  news.lose({.incarnation = 2, .rank = 1}, 20);
  news.lose({.incarnation = 3, .rank = 2}, 30);
  EXPECT_EQ(news.formed({.number = 2, .members = {1, 4}}, 7, 50),
            (News{.epoch = 2,
                  .members = {1, 4},
                  .joined = {4},
                  .step = 7,
                  .lost = {{.incarnation = 2, .rank = 1}, {.incarnation = 3, .rank = 2}},
                  .since_ns = 30}));
  EXPECT_TRUE(news.formed({.number = 3, .members = {1, 4}}, 8, 60).lost.empty());
}

TEST(LossNews, TellsHowLongTheJobWasSmaller) {
  LossNews news;
  news.formed({.number = 1, .members = {1, 2}}, 0, 0);
  news.lose({.incarnation = 2, .rank = 1}, 10);
  news.formed({.number = 2, .members = {1}}, 1, 12);
  EXPECT_EQ(news.formed({.number = 3, .planned = true, .members = {1, 3}}, 2, 40).since_ns, 30);
  EXPECT_EQ(news.formed({.number = 4, .planned = true, .members = {1, 3, 4}}, 3, 90).since_ns, 0);
}

TEST(LossNews, TellsOnceForEachLossThatTheJobWaits) {
  LossNews news;
  news.formed({.number = 1, .members = {1, 2, 3}}, 0, 0);
  news.lose({.incarnation = 2, .rank = 1}, 10);
  EXPECT_EQ(news.waiting(1, {1, 3}, 15), (News{.kind = NewsKind::kWaiting,
                                               .epoch = 1,
                                               .members = {1, 3},
                                               .lost = {{.incarnation = 2, .rank = 1}},
                                               .since_ns = 5}));
  EXPECT_FALSE(news.waiting(1, {1, 3}, 16));
  news.lose({.incarnation = 3, .rank = 2}, 20);
  EXPECT_EQ(news.waiting(1, {1}, 21)->members, Members{1});
}

}  // namespace
}  // namespace ciranda::member
