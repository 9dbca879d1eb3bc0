// What could break: the step from the inline elements to the others and back, and what a move
// leaves behind.
#include "core/base/inline_vector.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

namespace ciranda {
namespace {

using Numbers = InlineVector<int, 2>;

std::vector<int> all_of(const Numbers& numbers) {
  return {numbers.begin(), numbers.end()};
}

Numbers first(int count) {
  Numbers numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

TEST(InlineVector, HoldsWhatAVectorDoes) {
  for (int count = 0; count < 6; ++count) {
    std::vector<int> expected(static_cast<std::size_t>(count));
    std::iota(expected.begin(), expected.end(), 0);
    const Numbers numbers = first(count);
    EXPECT_EQ(all_of(numbers), expected);
    EXPECT_EQ(numbers, Numbers(expected));
    EXPECT_EQ(numbers.empty(), expected.empty());
  }
}

TEST(InlineVector, ErasesAcrossTheStep) {
  for (int count = 1; count < 6; ++count) {
    for (int at = 0; at < count; ++at) {
      Numbers numbers = first(count);
      std::vector<int> expected = all_of(numbers);
      numbers.erase(numbers.begin() + at);
      expected.erase(expected.begin() + at);
      EXPECT_EQ(all_of(numbers), expected);
      numbers.push_back(7);
      EXPECT_EQ(numbers.back(), 7);
    }
  }
}

TEST(InlineVector, IsEmptyOnceMovedFrom) {
  for (const int count : {1, 2, 3, 5}) {
    Numbers from = first(count);
    Numbers to = std::move(from);
    EXPECT_EQ(all_of(to), all_of(first(count)));
    EXPECT_TRUE(from.empty());  // NOLINT(bugprone-use-after-move): what is asked
    from = std::move(to);
    EXPECT_EQ(all_of(from), all_of(first(count)));
    from.clear();
    from.push_back(3);
    EXPECT_EQ(all_of(from), std::vector<int>{3});
  }
}

}  // namespace
}  // namespace ciranda
