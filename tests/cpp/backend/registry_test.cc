#include "core/backend/registry.h"

#include <gtest/gtest.h>

#include <set>

namespace ciranda::testing {
namespace {

TEST(Registry, HasARowForEachBackendThatNeedsALibrary) {
  std::set<BackendId> ids = {BackendId::kNative};
  for (const BackendEntry& entry : backend_entries()) {
    EXPECT_TRUE(ids.insert(entry.id).second) << backend_name(entry.id);
  }
  EXPECT_EQ(ids.size(), static_cast<std::size_t>(kBackendCount));
}

TEST(Registry, SaysWhatIsMissingExactlyOfWhatIsNotAvailable) {
  const std::vector<BackendFacts> all = backend_facts();
  ASSERT_EQ(all.size(), static_cast<std::size_t>(kBackendCount));
  EXPECT_TRUE(all.front().available);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].id, static_cast<BackendId>(i));
    EXPECT_EQ(all[i].available, all[i].why_not.empty()) << all[i].why_not;
  }
}

}  // namespace
}  // namespace ciranda::testing
