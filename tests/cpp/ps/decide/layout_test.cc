// What could break: elements that no server holds, or two; servers that hold more than their share.
#include "core/ps/decide/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::model_of;

TEST(Layout, EachElementIsOnOneServer) {
  for (const int servers : {1, 2, 3, 7, 64}) {
    const Model model = model_of({{1}, {5, 0, 70'000, 3}, {3'000'000}});
    const Layout layout(model, servers);
    for (std::size_t table = 0; table < model.tables.size(); ++table) {
      std::vector<int> holders(static_cast<std::size_t>(layout.elements(table)));
      for (int server = 0; server < servers; ++server) {
        for (const Layout::Piece& piece : layout.pieces(server)) {
          if (piece.table != table) continue;
          ASSERT_LT(piece.begin, piece.end);
          for (auto i = piece.begin; i < piece.end; ++i) ++holders[static_cast<std::size_t>(i)];
        }
      }
      EXPECT_EQ(std::count(holders.begin(), holders.end(), 1),
                static_cast<std::ptrdiff_t>(holders.size()))
          << servers << " servers, table " << table;
    }
  }
}

TEST(Layout, PiecesLieOneBehindTheOtherOnTheirServer) {
  const Layout layout(model_of({{100, 200'000}, {77}}), 3);
  for (int server = 0; server < 3; ++server) {
    std::uint64_t at = 0;
    for (const Layout::Piece& piece : layout.pieces(server)) {
      EXPECT_EQ(piece.at, at);
      at += static_cast<std::uint64_t>(piece.end - piece.begin) * sizeof(float);
    }
    EXPECT_EQ(layout.share_bytes(server), at);
  }
}

TEST(Layout, SlotsAndPiecesBeginOnLines) {
  const Layout layout(model_of({{1, 17, 0, 300'000}}), 5);
  for (const Layout::Place& slot : layout.slots(0)) EXPECT_EQ(slot.begin % 16, 0);
  EXPECT_EQ(layout.slots(0)[1].begin, 16);
  EXPECT_EQ(layout.slots(0)[1].end, 33);
  EXPECT_EQ(layout.slots(0)[3].begin, 48);
  for (int server = 0; server < 5; ++server) {
    for (const Layout::Piece& piece : layout.pieces(server)) EXPECT_EQ(piece.begin % 16, 0);
  }
}

TEST(Layout, GradientsAndParametersOfAllTablesAreApart) {
  const Layout layout(model_of({{3}, {5'000}, {7}}), 2);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (std::size_t table = 0; table < 3; ++table) {
    const auto bytes = static_cast<std::uint64_t>(layout.elements(table)) * sizeof(float);
    ranges.emplace_back(layout.gradients_at(table), bytes);
    ranges.emplace_back(layout.parameters_at(table), bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 0; i + 1 < ranges.size(); ++i) {
    EXPECT_LE(ranges[i].first + ranges[i].second, ranges[i + 1].first);
  }
  EXPECT_LE(ranges.back().first + ranges.back().second, layout.memory_bytes());
}

// MobileNetV2's sizes, about: many small parameters and a few large ones.
TEST(Layout, ServersHoldEqualShares) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 150; ++i) sizes.push_back(32 + 97 * (i % 40));
  for (int i = 0; i < 8; ++i) sizes.push_back(150'000 + 130'000 * i);
  for (const int servers : {2, 3, 4, 8, 16}) {
    const Layout layout(model_of({sizes}), servers);
    std::vector<double> shares;
    for (int server = 0; server < servers; ++server) {
      shares.push_back(static_cast<double>(layout.share_bytes(server)));
    }
    const double mean = std::accumulate(shares.begin(), shares.end(), 0.0) / servers;
    EXPECT_LE(*std::max_element(shares.begin(), shares.end()), 1.07 * mean) << servers;
  }
}

TEST(Layout, ASmallModelHasServersWithoutAnything) {
  const Layout layout(model_of({{3}}), 4);
  EXPECT_EQ(layout.pieces(0).size(), 1u);
  EXPECT_EQ(layout.pieces(3).size(), 0u);
  EXPECT_EQ(layout.share_bytes(3), 0u);
}

}  // namespace
}  // namespace ciranda::ps
