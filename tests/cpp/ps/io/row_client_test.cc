// What could break: rows of another server or in another order, a push of rows that counts twice or
// is lost with a server, a row that waits for a worker.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "ps/io/service.h"

namespace ciranda::ps {
namespace {

using testing::declare;
using testing::exact_rule;
using testing::kWays;
using testing::model_of;
using testing::name_of;
using testing::push;

using Numbers = std::vector<std::uint64_t>;

constexpr std::uint64_t kRows = std::uint64_t{1} << 31;

class Rows : public testing::ServiceAnywhere {
 protected:
  Rows() {
    for (const std::uint32_t columns : {2u, 3u}) {
      model_.row_tables.push_back({.name = "table " + std::to_string(columns),
                                   .rows = kRows,
                                   .columns = columns,
                                   .rule = exact_rule()});
    }
  }
  std::vector<float> pull(Client& client, const Numbers& rows, std::size_t table = 1) {
    std::vector<float> values(rows.size() * model_.row_tables[table].columns, 9.0f);
    const Status pulled = client.rows().pull(table, rows, values.data());
    EXPECT_TRUE(pulled.ok()) << pulled.error().text;
    return values;
  }
  void push(Client& client, const Numbers& rows, std::vector<float> gradients,
            std::size_t table = 1) {
    const Status pushed = client.rows().push(table, rows, gradients.data(), exact_rule(), 1.0);
    EXPECT_TRUE(pushed.ok()) << pushed.error().text;
  }

  Model model_ = model_of({{3}});
};
INSTANTIATE_TEST_SUITE_P(Ways, Rows, kWays, name_of);

TEST_P(Rows, ComeFromTheirServersInTheirOrder) {
  start_servers(3, 2);
  const auto client = connect(0);
  const auto other = connect(1);
  ASSERT_TRUE(declare(*client, model_, 0.0f).ok());
  ASSERT_TRUE(declare(*other, model_, 0.0f).ok());
  EXPECT_EQ(pull(*client, {}), std::vector<float>{});
  push(*client, {5, 7, kRows - 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  push(*other, {7}, {10, 20, 30});
  push(*client, {}, {});
  push(*client, {7}, {1, 1}, 0);
  EXPECT_EQ(pull(*other, {4, 5, 7, kRows - 1}),
            (std::vector<float>{0, 0, 0, -1, -2, -3, -14, -25, -36, -7, -8, -9}));
  EXPECT_EQ(pull(*other, {7}, 0), (std::vector<float>{-1, -1}));
  ASSERT_TRUE(testing::push(*client, model_, 1.0f).ok());
  testing::expect_parameters(*client, model_, -1.0f);
}

TEST_P(Rows, BeginWithWhatTheFirstWorkerGives) {
  keep_state(Durability::kLog);
  model_.row_tables[1].given = true;
  start_servers(2, 2);
  const auto client = connect(0);
  const auto other = connect(1);
  ASSERT_TRUE(declare(*client, model_, 0.0f).ok());
  ASSERT_TRUE(declare(*other, model_, 0.0f).ok());
  const std::vector<float> first = {1, 2, 3, 4, 5, 6};
  const std::vector<float> second(6, 9.0f);
  ASSERT_TRUE(client->rows().begin(1, Numbers{0, 1}, first.data()).ok());
  ASSERT_TRUE(other->rows().begin(1, Numbers{0, 1}, second.data()).ok());
  push(*other, {1}, {1, 1, 1});
  restart_server(1, End::kKilled);
  EXPECT_EQ(pull(*other, {0, 1}), (std::vector<float>{1, 2, 3, 3, 4, 5}));
  std::vector<float> none(3);
  EXPECT_NE(other->rows().pull(1, Numbers{2}, none.data()).error().text.find("is not on server 0"),
            std::string::npos);
}

TEST_P(Rows, OfServersThatWereKilledComeBackAndCountOnce) {
  keep_state(Durability::kLog);
  start_servers(2, 1);
  auto client = connect(0);
  ASSERT_TRUE(declare(*client, model_, 0.0f).ok());
  push(*client, {1, 2, 3}, {1, 1, 1, 2, 2, 2, 3, 3, 3});
  restart_server(1, End::kKilled);
  push(*client, {1, 2}, {4, 4, 4, 5, 5, 5});
  restart_server(0, End::kInOrder);  // with a snapshot
  break_connection(1);
  push(*client, {1, 2}, {1, 1, 1, 1, 1, 1});
  EXPECT_EQ(pull(*client, {1, 2, 3}), (std::vector<float>{-6, -6, -6, -8, -8, -8, -3, -3, -3}));
  client = connect(0, 2);  // another life, whose numbers begin behind
  ASSERT_TRUE(declare(*client, model_, 0.0f).ok());
  push(*client, {3}, {1, 1, 1});
  EXPECT_EQ(pull(*client, {3}), (std::vector<float>{-4, -4, -4}));
}

// The memory of one message serves the next, or is too small for it.
TEST_P(Rows, OfMessagesOfAllSizesAreRight) {
  start_servers(2, 1);
  const auto client = connect(0);
  ASSERT_TRUE(declare(*client, model_, 0.0f).ok());
  std::vector<float> expected(100'000, 0.0f);
  constexpr std::size_t kCounts[] = {100, 3, 20'000, 1, 100'000, 1'000, 7};
  for (const std::size_t count : kCounts) {
    Numbers rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> gradients;
    std::vector<float> after;
    for (std::size_t row = 0; row < count; ++row) {
      gradients.insert(gradients.end(), 3, static_cast<float>(row % 7 + 1));
      expected[row] -= static_cast<float>(row % 7 + 1);
      after.insert(after.end(), 3, expected[row]);
    }
    push(*client, rows, gradients);
    ASSERT_EQ(pull(*client, rows), after) << count << " rows";
  }
}

TEST_P(Rows, AreInCheckpointsForAnyNumberOfServers) {
  make_checkpoints(1'000'000);
  start_servers(3, 1);
  auto client = connect(0);
  ASSERT_TRUE(declare(*client, model_, 0.0f).ok());
  push(*client, {0, 1, 2, 9'000'000}, {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4});
  client.reset();
  await_servers();
  restored_ = checkpoints();
  checkpoint_pushes_ = 0;
  endpoints_.clear();
  start_servers(2, 1);
  client = connect(0);
  ASSERT_TRUE(declare(*client, model_, 5.0f).ok());
  EXPECT_EQ(pull(*client, {0, 1, 2, 3, 9'000'000}),
            (std::vector<float>{-1, -1, -1, -2, -2, -2, -3, -3, -3, 0, 0, 0, -4, -4, -4}));
}

TEST_P(Rows, OfNoTableAreRefused) {
  start_servers(1, 1);
  const auto client = connect(0);
  std::vector<float> values(3);
  EXPECT_NE(
      client->rows().pull(0, Numbers{1}, values.data()).error().text.find("make the table before"),
      std::string::npos);
  ASSERT_TRUE(declare(*client, model_, 0.0f).ok());
  EXPECT_FALSE(client->rows().pull(2, Numbers{1}, values.data()).ok());
  EXPECT_NE(
      client->rows().pull(1, Numbers{kRows}, values.data()).error().text.find("was requested from"),
      std::string::npos);
}

}  // namespace
}  // namespace ciranda::ps
