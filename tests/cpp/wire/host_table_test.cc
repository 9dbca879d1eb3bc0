// What could break: a rank that is counted twice or forgotten, a table of another job's size.
#include "core/wire/host_table.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

// One rank on each host.
Introduction rank(Rank number, int size = 3) {
  return {.rank = number,
          .size = size,
          .host = number,
          .hosts = size,
          .local_rank = 0,
          .local_size = 1,
          .settings = "A=1\n",
          .addresses = {{"192.0.2.1", 4000}}};
}

TEST(HostTable, ComesBackAsItWasWithoutSettings) {
  const auto host_table = make_host_table({std::byte{7}}, {rank(0), rank(1), rank(2)});
  ASSERT_TRUE(host_table.ok());
  std::vector<std::byte> bytes;
  encode(host_table.value(), bytes);
  const auto back = decode_host_table_of(bytes, 3);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back.value().meeting, host_table.value().meeting);
  EXPECT_EQ(back.value().ranks, host_table.value().ranks);
  EXPECT_EQ(back.value().ranks[1].settings, "");
  EXPECT_EQ(back.value().hosts, (Hosts{{0}, {1}, {2}}));
}

TEST(HostTable, IsRefusedWhenCutOrOfAnotherSize) {
  std::vector<std::byte> bytes;
  encode(make_host_table({}, {rank(0), rank(1), rank(2)}).value(), bytes);
  EXPECT_EQ(decode_host_table_of(bytes, 4).error().code, ErrorCode::kMalformed);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(decode_host_table_of(std::span(bytes).first(cut), 3).ok());
  }
}

TEST(HostTableBuilder, KnowsWhoIsMissing) {
  HostTableBuilder builder(3);
  const std::vector<Introduction> first = {rank(0), rank(2)};
  ASSERT_TRUE(builder.enter(first).ok());
  EXPECT_EQ(builder.missing(), std::vector<Rank>{1});
  EXPECT_FALSE(builder.is_complete());
  const std::vector<Introduction> second = {rank(1)};
  ASSERT_TRUE(builder.enter(second).ok());
  EXPECT_TRUE(builder.is_complete());
}

TEST(HostTableBuilder, ARankComesOnceUnlessItWasStruck) {
  HostTableBuilder builder(3);
  const std::vector<Introduction> one = {rank(1)};
  ASSERT_TRUE(builder.enter(one).ok());
  EXPECT_NE(builder.enter(one).error().text.find("start every rank once"), std::string::npos);
  const std::vector<Rank> ranks = {1};
  builder.strike(ranks);
  EXPECT_EQ(builder.missing(), (std::vector<Rank>{0, 1, 2}));
  EXPECT_TRUE(builder.enter(one).ok());
}

TEST(HostTableBuilder, ARankOfALargerJobIsNone) {
  const std::vector<Introduction> foreign = {rank(3, 4)};
  const Status refused = HostTableBuilder(3).enter(foreign);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("not one of this job's 3 ranks"), std::string::npos);
}

}  // namespace
}  // namespace ciranda
