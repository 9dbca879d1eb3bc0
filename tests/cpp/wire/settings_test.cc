// What could break: a difference that is not seen, or a sentence that does not name it.
#include "core/wire/settings.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

std::string text(const std::string& streams, const std::string& cache) {
  return to_text({{"STREAMS", streams}, {"CACHE", cache}});
}

TEST(Settings, TheFirstDifferenceIsNamedWithBothValuesAndRanks) {
  EXPECT_TRUE(check_settings(3, text("1", "2"), text("1", "2")).ok());
  const Status differs = check_settings(3, text("1", "2"), text("1", "0"));
  ASSERT_FALSE(differs.ok());
  EXPECT_EQ(differs.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(differs.error().text, "rank 3 has CACHE=2, rank 0 has 0; set the same for every rank");
  EXPECT_EQ(check_settings(3, text("1", "2"), text("", "0")).error().text,
            "rank 3 has STREAMS=1, rank 0 has ; set the same for every rank");
}

TEST(Settings, OfAnotherVersionAreNotTheSame) {
  EXPECT_EQ(check_settings(1, "CACHE=2\n", text("1", "2")).error().text,
            "rank 1 has CACHE=2, rank 0 has STREAMS=1; set the same for every rank");
  EXPECT_FALSE(check_settings(1, text("1", "2"), "STREAMS=1\n").ok());
  EXPECT_FALSE(check_settings(1, "", text("1", "2")).ok());
  EXPECT_FALSE(check_settings(1, "nonsense", "\n\n").ok());
}

}  // namespace
}  // namespace ciranda
