// What could break: a push of rows that counts twice, or on a table that is another one.
#include "core/ps/decide/row_tables.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::exact_rule;

using Rows = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

class RowTablesTest : public ::testing::Test {
 protected:
  static Model model() {
    Model model;
    model.row_tables = {
        {.name = "zeros", .rows = 10, .columns = 1, .rule = exact_rule()},
        {.name = "given", .rows = 4, .columns = 2, .rule = exact_rule(), .given = true}};
    return model;
  }
  static const std::byte* bytes_of(const Floats& floats) {
    return reinterpret_cast<const std::byte*>(floats.data());
  }
  static PushRows push_of(std::uint64_t seq, const Rows& rows, std::uint32_t table = 0) {
    return {.seq = seq, .table = table, .count = rows.size(), .rule = exact_rule()};
  }
  float value(std::uint64_t row) {
    Floats values(1);
    EXPECT_TRUE(tables_.pull(0, Rows{row}, reinterpret_cast<std::byte*>(values.data())).ok());
    return values[0];
  }
  // What the journal has with such a push.
  static std::vector<std::byte> data_of(const Rows& rows, const Floats& gradients) {
    std::vector<std::byte> data(rows.size() * sizeof rows[0] + gradients.size() * sizeof(float));
    std::memcpy(data.data(), rows.data(), rows.size() * sizeof rows[0]);
    std::memcpy(data.data() + rows.size() * sizeof rows[0], gradients.data(),
                gradients.size() * sizeof(float));
    return data;
  }

  RowTables tables_{model(), 1, 0, 2};
};

TEST_F(RowTablesTest, APartOfATaskCountsOnceAndANumberIsKept) {
  const Rows rows{2, 5};
  PushRows push = push_of(1, rows);
  push.of = {.task = 1, .part = 1};
  ASSERT_TRUE(tables_.check(push, rows).ok());
  tables_.push(0, push, rows, bytes_of({1.0f, 2.0f}));
  EXPECT_EQ(tables_.decided(0), 1u);
  EXPECT_EQ(tables_.decided(1), 0u);
  EXPECT_EQ(value(5), -2.0f);
  tables_.push(1, push, rows, bytes_of({1.0f, 2.0f}));  // another worker does the task again
  EXPECT_EQ(tables_.decided(1), 1u);
  EXPECT_EQ(value(5), -2.0f);
}

TEST_F(RowTablesTest, WhatDoesNotFitIsRefused) {
  const Rows rows{1};
  EXPECT_EQ(tables_.check(push_of(1, rows, 2), rows).error().text,
            "there is no table 2 of rows, or it has not been declared yet");
  PushRows push = push_of(1, rows);
  push.rule.momentum = 0.5;
  EXPECT_EQ(tables_.check(push, rows).error().text,
            "a push of rows has an update rule that needs other state");
  push = push_of(1, rows);
  push.begins = true;
  EXPECT_EQ(tables_.check(push, rows).error().text,
            "the table 'zeros' initializes its rows itself, so a push cannot set them");
  push.table = 1;
  EXPECT_TRUE(tables_.check(push, rows).ok());
  EXPECT_FALSE(tables_.check(push_of(1, rows, 1), rows).ok());  // no worker has given the row
  EXPECT_FALSE(tables_.pull(1, rows, nullptr).ok());
}

TEST_F(RowTablesTest, AJournalIsReplayedOnlyIfItFits) {
  const Rows rows{3, 4};
  const std::vector<std::byte> data = data_of(rows, {1.0f, 8.0f});
  const PushRows push = push_of(1, rows);
  EXPECT_FALSE(tables_.repeat(0, push, std::span(data).first(data.size() - 1)).ok());
  EXPECT_FALSE(tables_.repeat(2, push, data).ok());
  EXPECT_FALSE(tables_.repeat(0, push_of(1, rows, 7), data).ok());
  EXPECT_FALSE(tables_.repeat(0, push, data_of({4, 3}, {1.0f, 8.0f})).ok());
  EXPECT_EQ(tables_.decided(0), 0u);
  ASSERT_TRUE(tables_.repeat(0, push, data).ok());
  EXPECT_EQ(tables_.decided(0), 1u);
  EXPECT_EQ(value(4), -8.0f);
}

TEST_F(RowTablesTest, RowsAndWhatWasDecidedAreRestored) {
  const Rows rows{9};
  PushRows push = push_of(6, rows);
  push.of = {.task = 3, .part = 2};
  tables_.push(1, push, rows, bytes_of({4.0f}));
  std::vector<std::byte> saved;
  Writer writer(saved);
  tables_.save(writer);
  RowTables again(model(), 1, 0, 2);
  Reader reader(saved);
  again.restore(reader);
  ASSERT_TRUE(reader.ok());
  const auto from = tables_.arrays();
  const auto to = again.arrays();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].size(), to[i].size());
    std::memcpy(to[i].data(), from[i].data(), from[i].size());
  }
  EXPECT_EQ(again.decided(1), 6u);
  EXPECT_EQ(again.held_bytes(), tables_.held_bytes());
  again.push(0, push, rows, bytes_of({4.0f}));  // the same part of the task
  Floats values(1);
  ASSERT_TRUE(again.pull(0, rows, reinterpret_cast<std::byte*>(values.data())).ok());
  EXPECT_EQ(values[0], -4.0f);
}

}  // namespace
}  // namespace ciranda::ps
