// What could break: memory that is read or written beyond what came with the message; numbers of
// rows that a worker changes while they are used.
#include "core/ps/decide/shard_requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

class ShardRequestsTest : public ::testing::Test {
 protected:
  ShardRequestsTest() : memory_(shard_.layout().memory_bytes()) {
    shard_.enter(0, memory_.data());
    shard_.give(0);
  }
  static Model model() {
    kernels::UpdateRule rule = testing::exact_rule();
    rule.momentum = 0.5;
    Model model = testing::model_of({{16}}, {}, rule);
    model.row_tables = {{.name = "rows", .rows = 10, .columns = 1, .rule = testing::exact_rule()}};
    return model;
  }
  // What comes with a message is as long as the request wants it.
  Result<Message> answer(const Message& message) {
    return answer_from(shard_, 0, message,
                       {.model_blob = {}, .memory = [&](std::uint64_t bytes) -> Result<std::byte*> {
                          attached_.resize(bytes);
                          return attached_.data();
                        }});
  }
  void attach_rows(const std::vector<std::uint64_t>& rows, const std::vector<float>& values) {
    attached_.resize(rows.size() * sizeof rows[0] + values.size() * sizeof values[0]);
    std::memcpy(attached_.data(), rows.data(), rows.size() * sizeof rows[0]);
    std::memcpy(attached_.data() + rows.size() * sizeof rows[0], values.data(),
                values.size() * sizeof values[0]);
  }

  Shard shard_{model(), 1, 0, 1};
  std::vector<std::byte> memory_;
  std::vector<std::byte> attached_;
};

TEST_F(ShardRequestsTest, StateAndStepsAreWrittenIntoTheAttachedMemory) {
  const auto state = answer(FetchState{.table = 0, .array = 0});
  ASSERT_TRUE(state.ok()) << state.error().text;
  EXPECT_TRUE(std::holds_alternative<Fetched>(state.value()));
  EXPECT_EQ(attached_.size(), 16 * sizeof(float));
  ASSERT_TRUE(answer(FetchSteps{}).ok());
  EXPECT_EQ(attached_.size(), sizeof(std::int64_t));
  for (const FetchState& other : {FetchState{.table = 1}, FetchState{.array = 1}}) {
    EXPECT_EQ(answer(other).error().text,
              "a worker asked for state that the optimizer does not have");
  }
}

TEST_F(ShardRequestsTest, RowsArePushedAndPulled) {
  attach_rows({2, 3}, {1.0f, 4.0f});
  const PushRows push{.seq = 1, .count = 2, .rule = testing::exact_rule()};
  const auto pushed = answer(push);
  ASSERT_TRUE(pushed.ok()) << pushed.error().text;
  EXPECT_TRUE(std::holds_alternative<RowsPushed>(pushed.value()));
  EXPECT_EQ(shard_.decided_rows(0), 1u);
  attach_rows({3}, {0.0f});
  const auto pulled = answer(PullRows{.count = 1});
  ASSERT_TRUE(pulled.ok()) << pulled.error().text;
  EXPECT_TRUE(std::holds_alternative<RowsRead>(pulled.value()));
  float value = 0.0f;
  std::memcpy(&value, attached_.data() + sizeof(std::uint64_t), sizeof value);
  EXPECT_EQ(value, -4.0f);
  EXPECT_EQ(answer(PullRows{.table = 1, .count = 1}).error().text, "there is no table 1 of rows");
}

TEST_F(ShardRequestsTest, AnythingElseIsNoRequestOfAWorker) {
  EXPECT_EQ(answer(Ready{}).error().text, "a worker sent a message that only servers send");
}

}  // namespace
}  // namespace ciranda::ps
