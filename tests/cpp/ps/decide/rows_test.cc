// What could break: a row that is another server's, or another after it was saved; numbers that are
// not those of a table on one server; memory for rows that nobody has asked for.
#include "core/ps/decide/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace ciranda::ps {
namespace {

using Rows = std::vector<std::uint64_t>;

constexpr std::uint32_t kColumns = 3;

kernels::UpdateRule adagrad() {
  return {.kind = kernels::RuleKind::kAdagrad,
          .lr = 0.5,
          .eps = 1e-10,
          .initial_accumulator_value = 1.0};
}

RowTable table_of(std::uint64_t rows, kernels::UpdateRule rule = adagrad(),
                  double deviation = 0.1) {
  return {.name = "words",
          .rows = rows,
          .columns = kColumns,
          .rule = rule,
          .deviation = deviation,
          .seed = 7};
}

// All of a table's servers.
class Servers {
 public:
  Servers(const RowTable& table, int servers) {
    for (int server = 0; server < servers; ++server) {
      shares_.push_back(std::make_unique<RowShare>(table, servers, server));
    }
  }
  std::vector<float> read(const Rows& rows) {
    std::vector<float> all(rows.size() * kColumns);
    each_share(rows, [&](RowShare& share, const Rows& own, const std::vector<std::size_t>& places) {
      std::vector<float> values(own.size() * kColumns);
      share.read(own, reinterpret_cast<std::byte*>(values.data()));
      for (std::size_t i = 0; i < own.size(); ++i) {
        std::copy_n(&values[i * kColumns], kColumns, &all[places[i] * kColumns]);
      }
    });
    return all;
  }
  // Row r has the gradient r + 1, r + 2, ...
  void update(const Rows& rows, const kernels::UpdateRule& rule, double scale = 1.0) {
    each_share(rows, [&](RowShare& share, const Rows& own, const std::vector<std::size_t>&) {
      std::vector<float> gradients;
      for (const std::uint64_t row : own) {
        for (std::uint32_t i = 0; i < kColumns; ++i) {
          gradients.push_back(static_cast<float>(row + i + 1));
        }
      }
      share.update(own, reinterpret_cast<const std::byte*>(gradients.data()), rule, scale);
    });
  }
  RowShare& share(std::size_t server) { return *shares_[server]; }
  std::size_t count() const { return shares_.size(); }

 private:
  void each_share(const Rows& rows, auto what) {
    for (std::size_t server = 0; server < shares_.size(); ++server) {
      Rows own;
      std::vector<std::size_t> places;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] % shares_.size() != server) continue;
        own.push_back(rows[i]);
        places.push_back(i);
      }
      const Status checked = shares_[server]->check(own);
      ASSERT_TRUE(checked.ok()) << checked.error().text;
      what(*shares_[server], own, places);
    }
  }
  std::vector<std::unique_ptr<RowShare>> shares_;
};

TEST(RowShare, AnyNumberOfServersIsOneTable) {
  Rows all(1'000);
  std::iota(all.begin(), all.end(), 0);
  const Rows some = {0, 3, 4, 500, 998, 999};
  Servers one(table_of(1'000), 1);
  Servers three(table_of(1'000), 3);
  EXPECT_EQ(one.read(all), three.read(all));
  for (Servers* servers : {&one, &three}) {
    servers->update(some, adagrad());
    servers->update(some, adagrad(), 0.5);
  }
  EXPECT_EQ(one.read(all), three.read(all));
}

TEST(RowShare, RowsBeginAsTheTableSays) {
  Servers servers(table_of(20'000), 2);
  Rows all(20'000);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<float> values = servers.read(all);
  double sum = 0.0, squares = 0.0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0.0, 0.002);
  EXPECT_NEAR(std::sqrt(squares / count), 0.1, 0.002);
  EXPECT_EQ(std::vector<float>(kColumns), Servers(table_of(5, adagrad(), 0.0), 1).read({4}));
}

TEST(RowShare, UpdatesAreThoseOfTheRule) {
  const kernels::UpdateRule sgd{.kind = kernels::RuleKind::kSgd, .lr = 0.25};
  Servers plain(table_of(10, sgd, 0.0), 2);
  plain.update({2, 7}, sgd, 2.0);
  EXPECT_EQ(plain.read({2}), (std::vector<float>{-1.5f, -2.0f, -2.5f}));
  EXPECT_EQ(plain.read({7}), (std::vector<float>{-4.0f, -4.5f, -5.0f}));
  Servers adaptive(table_of(10, adagrad(), 0.0), 2);
  adaptive.update({2}, adagrad());
  EXPECT_FLOAT_EQ(adaptive.read({2})[0], -0.5f * 3.0f / std::sqrt(10.0f));
  adaptive.update({2}, adagrad());
  EXPECT_FLOAT_EQ(adaptive.read({2})[0],
                  -0.5f * 3.0f / std::sqrt(10.0f) - 0.5f * 3.0f / std::sqrt(19.0f));
}

TEST(RowShare, OnlyRowsThatWereAskedForAreThere) {
  RowShare large(table_of(std::uint64_t{1} << 32), 4, 3);  // 24 GiB of numbers and state
  ASSERT_TRUE(large.has_memory());
  std::vector<float> row(kColumns);
  large.read(Rows{(std::uint64_t{1} << 32) - 1}, reinterpret_cast<std::byte*>(row.data()));
  EXPECT_EQ(large.touched(), 1u);
  EXPECT_EQ(large.arrays().size(), 2u);
}

TEST(RowShare, ComesBackAsItWasAndOnAnotherNumberOfServers) {
  std::mt19937 random(1);
  constexpr std::uint64_t kRows = 50'000;
  Servers before(table_of(kRows), 3);
  Rows some;
  for (std::uint64_t row = 0; row < kRows; row += 1 + random() % 900) some.push_back(row);
  before.update(some, adagrad());
  Servers again(table_of(kRows), 3);
  for (std::size_t server = 0; server < 3; ++server) {
    std::vector<std::byte> saved;
    Writer out(saved);
    before.share(server).save(out);
    Reader in(saved);
    again.share(server).restore(in);
    ASSERT_TRUE(in.ok()) << in.error().text;
    const RowShare::Arrays from = before.share(server).arrays();
    const RowShare::Arrays to = again.share(server).arrays();
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(from[i].size(), to[i].size());
      std::copy(from[i].begin(), from[i].end(), to[i].begin());
    }
    EXPECT_EQ(again.share(server).touched(), before.share(server).touched());
    for (std::size_t cut = 0; cut < saved.size(); cut += 97) {
      Reader torn(std::span<const std::byte>(saved).first(cut));
      RowShare(table_of(kRows), 3, static_cast<int>(server)).restore(torn);
      EXPECT_FALSE(torn.ok()) << cut;
    }
  }
  Servers other(table_of(kRows), 2);
  for (std::size_t to = 0; to < 2; ++to) {
    for (std::size_t from = 0; from < 3; ++from) other.share(to).take_over(again.share(from));
  }
  for (Servers* servers : {&before, &again, &other}) servers->update(some, adagrad());
  Rows all(kRows);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<float> expected = before.read(all);
  EXPECT_EQ(again.read(all), expected);
  EXPECT_EQ(other.read(all), expected);
}

TEST(RowShare, RowsThatAreGivenAreThereFromThenOn) {
  RowTable table = table_of(10);
  table.given = true;
  Servers servers(table, 2);
  RowShare& share = servers.share(1);
  const std::vector<float> values = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
  const auto* given = reinterpret_cast<const std::byte*>(values.data());
  EXPECT_EQ(share.are_there(Rows{3}).error().text,
            "row 3 of the table 'words' is not on server 1: no worker has set it, or it was lost "
            "with a server that kept it in memory only (see --durability)");
  share.begin(Rows{3, 5}, given);
  share.begin(Rows{1, 3}, given);  // the first counts
  EXPECT_TRUE(share.are_there(Rows{1, 3, 5}).ok());
  EXPECT_FALSE(share.are_there(Rows{5, 7}).ok());
  EXPECT_EQ(servers.read({1, 3, 5}), (std::vector<float>{1, 2, 3, 1, 2, 3, 4, 5, 6}));
  servers.update({3}, adagrad());  // the sums are there, too
  EXPECT_FLOAT_EQ(servers.read({3})[0], 1.0f - 0.5f * 4.0f / std::sqrt(17.0f));
}

TEST(RowShare, WhatCannotBeIsRefused) {
  const RowShare share(table_of(10), 2, 1);
  EXPECT_TRUE(share.check(Rows{1, 3, 9}).ok());
  for (const Rows& rows : {Rows{2}, Rows{11}, Rows{3, 3}, Rows{5, 3}}) {
    EXPECT_EQ(share.check(rows).error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(share.check(Rows{2}).error().text,
            "row 2 of the table 'words' was requested from server 1, out of order or beyond the "
            "table's 10 rows");
  std::vector<std::byte> saved;
  Writer out(saved);
  out.varint(1);
  out.varint(0);
  for (int word = 0; word < 64; ++word) out.u64(word == 0 ? 1u << 5 : 0u);  // the sixth of five
  Reader in(saved);
  RowShare(table_of(10), 2, 1).restore(in);
  EXPECT_FALSE(in.ok());
}

}  // namespace
}  // namespace ciranda::ps
