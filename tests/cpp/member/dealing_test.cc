// What could break: a sample of a pass is trained on twice or never, or a rank has an empty batch.
#include "core/member/dealing.h"

#include <gtest/gtest.h>

#include <vector>

namespace ciranda::member {
namespace {

// Deals a whole pass, to `sizes` ranks in turn; returns how often each sample was dealt.
std::vector<int> dealt(const Deal& deal, const std::vector<std::size_t>& sizes) {
  std::vector<int> counts(deal.samples);
  std::size_t done = 0;
  for (std::size_t block = 0;; ++block) {
    const std::size_t size = sizes[block % sizes.size()];
    const std::size_t count = samples_of_block(deal, done, size);
    if (count == 0) return counts;
    for (std::size_t rank = 0; rank < size; ++rank) {
      const Share share = share_of_block(count, static_cast<Rank>(rank), size);
      EXPECT_LT(share.begin, share.end);
      EXPECT_LE(share.end - share.begin, deal.batch + 1);
      for (std::size_t at = share.begin; at < share.end; ++at) ++counts.at(done + at);
    }
    done += count;
  }
}

TEST(Dealing, EachSampleOfAPassIsDealtOnce) {
  for (std::size_t samples = 8; samples < 70; ++samples) {
    for (std::size_t size = 1; size <= 4; ++size) {
      EXPECT_EQ(dealt({.samples = samples, .batch = 3}, {size}), std::vector<int>(samples, 1));
    }
  }
}

TEST(Dealing, EachSampleIsDealtOnceThoughRanksComeAndGo) {
  EXPECT_EQ(dealt({.samples = 62, .batch = 4}, {3, 2, 1, 4}), std::vector<int>(62, 1));
}

TEST(Dealing, FewerSamplesThanRanksAreRepeated) {
  EXPECT_EQ(dealt({.samples = 3, .batch = 4}, {4}), (std::vector<int>{2, 1, 1}));
}

TEST(Dealing, DropLastLeavesOutWhatGivesNoWholeBatch) {
  EXPECT_EQ(dealt({.samples = 7, .batch = 2, .drop_last = true}, {3}),
            (std::vector<int>{1, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(dealt({.samples = 5, .batch = 2, .drop_last = true}, {3}), std::vector<int>(5, 0));
}

TEST(Dealing, TheSeedOfABlockIsTheCrcOfItsPlace) {
  EXPECT_EQ(seed_of_block(1, 2, 3, 4), 0x7d1abba8U);
  EXPECT_NE(seed_of_block(1, 2, 3, 4), seed_of_block(1, 2, 3, 5));
}

}  // namespace
}  // namespace ciranda::member
