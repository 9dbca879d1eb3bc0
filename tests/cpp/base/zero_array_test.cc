// What could break: memory that is not zero, or begins in the middle of a line.
#include "core/base/zero_array.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ciranda {
namespace {

TEST(ZeroArray, IsZeroAndOnALine) {
  for (const std::uint64_t bytes : {0u, 1u, 100u, 1u << 20}) {
    const ZeroArray array(bytes);
    ASSERT_NE(array.data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.data) % 64, 0u);
    EXPECT_TRUE(std::all_of(array.data, array.data + bytes,
                            [](std::byte each) { return each == std::byte{0}; }));
  }
}

TEST(ZeroArray, SparseOnesMayBeLargerThanTheMemory) {
  const ZeroArray array = ZeroArray::sparse(std::uint64_t{1} << 37);
  ASSERT_NE(array.data, nullptr);
  EXPECT_EQ(array.data[(std::uint64_t{1} << 37) - 1], std::byte{0});
  array.data[std::uint64_t{1} << 36] = std::byte{1};
  EXPECT_NE(ZeroArray::sparse(0).data, nullptr);
}

TEST(ZeroArray, SaysWhereThereIsNoMemory) {
  EXPECT_EQ(ZeroArray(std::uint64_t{1} << 62).data, nullptr);
  EXPECT_EQ(ZeroArray::sparse(std::uint64_t{1} << 62).data, nullptr);
}

}  // namespace
}  // namespace ciranda
