// What could break: a push of rows that counts twice, or comes back otherwise after a restart; rows
// that are read beyond what came.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/ps/decide/server_protocol.h"
#include "ps/decide/kept.h"
#include "ps/decide/server_protocols.h"

namespace ciranda::ps {
namespace {

using Numbers = std::vector<std::uint64_t>;

class ShardRowsTest : public testing::ServerProtocols {
 protected:
  void begin(int workers = 2) {
    start(workers);
    model_.row_tables = {{.name = "words",
                          .rows = 100,
                          .columns = 2,
                          .rule = {.kind = kernels::RuleKind::kSgd, .lr = 1.0}}};
    model_.row_tables.push_back(model_.row_tables[0]);
    model_.row_tables[1].name = "layer";
    model_.row_tables[1].given = true;
    for (Worker worker = 0; worker < workers; ++worker) {
      workers_.push_back(join(worker));
      answer<Ready>(workers_.back());
    }
  }
  void fill(const Numbers& numbers, float value) {
    rows_.resize(numbers.size() * (sizeof(std::uint64_t) + 2 * sizeof(float)));
    std::memcpy(rows_.data(), numbers.data(), numbers.size() * sizeof(std::uint64_t));
    auto* values = reinterpret_cast<float*>(rows_.data() + numbers.size() * sizeof(std::uint64_t));
    std::fill_n(values, numbers.size() * 2, value);
  }
  // Each element takes `gradient`.
  void push_rows(Worker worker, std::uint64_t seq, const Numbers& numbers, float gradient,
                 TaskPart of = {}) {
    push_rows(worker, numbers, gradient, {.seq = seq, .rule = model_.row_tables[0].rule, .of = of});
  }
  void push_rows(Worker worker, const Numbers& numbers, float value, PushRows push) {
    fill(numbers, value);
    push.count = numbers.size();
    const ServerProtocol::Caller caller = workers_[static_cast<std::size_t>(worker)];
    say(caller, push);
    answer<RowsPushed>(caller);
  }
  float pull_row(Worker worker, std::uint64_t number, std::uint32_t table = 0) {
    fill({number}, 9.0f);
    const ServerProtocol::Caller caller = workers_[static_cast<std::size_t>(worker)];
    say(caller, PullRows{.table = table, .count = 1});
    answer<RowsRead>(caller);
    float value = 0.0f;
    std::memcpy(&value, rows_.data() + sizeof(std::uint64_t), sizeof value);
    return value;
  }

  std::vector<ServerProtocol::Caller> workers_;
  Life life_ = 1;
};

TEST_F(ShardRowsTest, APushOfRowsCountsOnce) {
  begin();
  push_rows(0, 1, {3, 4}, 1.0f);
  push_rows(0, 1, {3, 4}, 1.0f);  // it is asked again
  push_rows(0, 3, {4}, 1.0f);     // another server may have decided the second
  push_rows(0, 2, {4}, 1.0f);
  push_rows(1, 1, {4}, 1.0f, {.task = 5, .part = 1});
  push_rows(0, 4, {4}, 1.0f, {.task = 5, .part = 1});  // that part was there
  push_rows(0, 5, {4}, 1.0f, {.task = 5, .part = 2});
  EXPECT_EQ(pull_row(1, 3), -1.0f);
  EXPECT_EQ(pull_row(1, 4), -4.0f);
  EXPECT_EQ(pull_row(1, 5), 0.0f);
}

TEST_F(ShardRowsTest, WhatWasKeptMakesThemAgain) {
  begin(1);
  push_rows(0, 1, {7}, 1.0f);
  testing::Kept kept(*protocol_);
  push_rows(0, 2, {7, 99}, 2.0f, {.task = 5, .part = 1});
  protocol_ = std::make_unique<ServerProtocol>(options_);
  const Status made = kept.make_again(*protocol_, now_ns_);
  ASSERT_TRUE(made.ok()) << made.error().text;
  const ServerProtocol::Caller caller = call();
  say(caller, entry(0, 2));
  EXPECT_EQ(answer<Welcome>(caller).decided_rows, 2u);
  declare(caller, 0.0f);
  answer<Ready>(caller);
  workers_ = {caller};
  EXPECT_EQ(pull_row(0, 7), -3.0f);
  push_rows(0, 3, {7}, 2.0f, {.task = 5, .part = 1});
  EXPECT_EQ(pull_row(0, 7), -3.0f);
  EXPECT_EQ(pull_row(0, 99), -2.0f);
}

TEST_F(ShardRowsTest, WhatTheyBeganWithIsMadeAgain) {
  begin(1);
  PushRows push{.table = 1, .rule = model_.row_tables[0].rule};
  push.seq = 1;
  push.begins = true;
  push_rows(0, {7}, 5.0f, push);
  testing::Kept kept(*protocol_);
  push.seq = 2;
  push_rows(0, {7, 8}, 6.0f, push);
  push.seq = 3;
  push.begins = false;
  push_rows(0, {8}, 1.0f, push);
  protocol_ = std::make_unique<ServerProtocol>(options_);
  ASSERT_TRUE(kept.make_again(*protocol_, now_ns_).ok());
  workers_ = {join(0, 2)};
  answer<Ready>(workers_[0]);
  EXPECT_EQ(pull_row(0, 7, 1), 5.0f);
  EXPECT_EQ(pull_row(0, 8, 1), 5.0f);
}

TEST_F(ShardRowsTest, WhatCannotBeIsRefused) {
  begin(1);
  const auto refused = [&](Message message, const Numbers& numbers) {
    fill(numbers, 1.0f);
    const ServerProtocol::Caller caller = workers_[0];
    say(caller, std::move(message));
    const std::string text = refusal(caller);
    workers_[0] = join(0, ++life_);
    answer<Ready>(workers_[0]);
    return text;
  };
  EXPECT_EQ(refused(PullRows{.table = 2, .count = 1}, {1}), "there is no table 2 of rows");
  EXPECT_NE(refused(PullRows{.count = 1}, {100}).find("row 100 of the table 'words'"),
            std::string::npos);
  EXPECT_NE(refused(PullRows{.count = 2}, {5, 5}).find("row 5"), std::string::npos);
  EXPECT_EQ(
      refused(PushRows{.seq = 1, .count = 1, .rule = {.kind = kernels::RuleKind::kAdagrad}}, {5}),
      "a push of rows has an update rule that needs other state");
  EXPECT_EQ(refused(PushRows{.seq = 1,
                             .count = 1,
                             .rule = {.kind = kernels::RuleKind::kSgd, .momentum = 0.5}},
                    {5}),
            "a push of rows has an update rule that needs other state");
  EXPECT_EQ(refused(PushRows{.seq = 1, .count = 1, .begins = true}, {5}),
            "the table 'words' initializes its rows itself, so a push cannot set them");
  const std::string absent = "row 5 of the table 'layer' is not on server 0";
  EXPECT_EQ(refused(PullRows{.table = 1, .count = 1}, {5}).find(absent), 0u);
  EXPECT_EQ(refused(PushRows{.seq = 1, .table = 1, .count = 1}, {5}).find(absent), 0u);
  without_memory_ = true;
  say(workers_[0], PullRows{.count = 1});
  EXPECT_EQ(refusal(workers_[0]), "no memory");
}

}  // namespace
}  // namespace ciranda::ps
