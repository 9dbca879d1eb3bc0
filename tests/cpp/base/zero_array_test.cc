// What could break: memory that is not zero, or begins in the middle of a line.
#include "core/ps/zero_array.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ciranda::ps {
namespace {

TEST(ZeroArray, IsZeroAndOnALine) {
  for (const std::uint64_t bytes : {0, 1, 100, 1 << 20}) {
    const ZeroArray array(bytes);
    ASSERT_NE(array.data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.data) % 64, 0u);
    EXPECT_TRUE(std::all_of(array.data, array.data + bytes,
                            [](std::byte each) { return each == std::byte{0}; }));
  }
}

TEST(ZeroArray, SaysWhereThereIsNoMemory) {
  EXPECT_EQ(ZeroArray(std::uint64_t{1} << 62).data, nullptr);
}

}  // namespace
}  // namespace ciranda::ps
