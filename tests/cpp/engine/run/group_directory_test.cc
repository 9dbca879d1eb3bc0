// What could break: a rank that waits in a group of others, or a group that is refused to its own.
#include "core/engine/run/group_directory.h"

#include <gtest/gtest.h>

#include "core/negotiate/group_table.h"
#include "core/wire/pair.h"

namespace ciranda {
namespace {

TEST(GroupDirectory, LetsMembersSubmitAndNamesTheOthers) {
  GroupTable table(4, {});
  GroupDirectory groups(table.world());
  const auto group = table.add({1, 3});
  groups.add(group);
  EXPECT_EQ(groups.find(group->id), group);
  const RequestSpec spec{.name = "x", .group = group->id};
  EXPECT_TRUE(groups.check_member(3, spec).ok());
  EXPECT_TRUE(groups.check_member(2, {.name = "x"}).ok());  // the World
  const Status foreign = groups.check_member(2, spec);
  ASSERT_FALSE(foreign.ok());
  EXPECT_EQ(foreign.error().text,
            "allreduce 'x': rank 2 is not a member of process set 1; only its members may submit "
            "operations of the set");
  groups.remove(group->id);
  EXPECT_EQ(groups.find(group->id), nullptr);
  EXPECT_EQ(groups.check_member(3, spec).error().text,
            "allreduce 'x': there is no process set 1 (any more)");
}

TEST(GroupDirectory, LetsThePairOfAMessageSubmit) {
  GroupTable table(4, {});
  const GroupDirectory groups(table.world());
  const auto send = [](Pair pair) {
    return RequestSpec{
        .name = "x", .kind = OpKind::kSend, .group = pair_id(pair), .root = pair.from};
  };
  EXPECT_TRUE(groups.check_member(2, send({.from = 2, .to = 0})).ok());
  EXPECT_TRUE(groups.check_member(0, send({.from = 2, .to = 0})).ok());
  EXPECT_EQ(groups.check_member(1, send({.from = 2, .to = 0})).error().text,
            "send 'x': rank 1 cannot send a message from rank 2 to rank 0, nor receive it");
  EXPECT_FALSE(groups.check_member(0, send({.from = 0, .to = 4})).ok());
  EXPECT_FALSE(groups.check_member(0, send({.from = 0, .to = 0})).ok());
}

}  // namespace
}  // namespace ciranda
