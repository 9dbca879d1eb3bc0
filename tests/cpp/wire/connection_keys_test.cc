// What could break: two jobs, epochs or purposes that share a key, a cookie that tells which.
#include "core/wire/connection_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "wire/keys.h"

namespace ciranda {
namespace {

using test::keys_of;
using test::secret_of;
using Bytes = std::vector<std::byte>;

TEST(ConnectionKeys, EachJobEpochAndPurposeHasItsOwn) {
  std::set<Bytes> seen;
  for (const int job : {1, 2}) {
    for (const Epoch epoch : {0u, 1u, 256u}) {
      const ConnectionKeys keys = keys_of(1, job, epoch);
      for (int purpose = 0; purpose < kPurposeCount; ++purpose) {
        const auto bytes = keys.of(static_cast<Purpose>(purpose)).bytes();
        seen.insert(Bytes(bytes.begin(), bytes.end()));
      }
    }
  }
  EXPECT_EQ(seen.size(), 2u * 3u * kPurposeCount);
}

TEST(ConnectionKeys, AJobsNumberIsOfItsNameAndItsKey) {
  const auto job_of = [](int key, const char* name) {
    return ConnectionKeys::of_job(secret_of(key), name, 0, /*with_tls=*/false).value()->job;
  };
  EXPECT_EQ(job_of(1, "a"), job_of(1, "a"));
  EXPECT_NE(job_of(1, "a"), job_of(1, "b"));
  EXPECT_NE(job_of(1, "a"), job_of(2, "a"));
  EXPECT_NE(ConnectionKeys::of_job(secret_of(1), "a", 0, /*with_tls=*/true).value()->tls, nullptr);
}

TEST(ConnectionKeys, ACookieIsOfOneKeyJobEpochAndRank) {
  const Cookie cookie = cookie_of(keys_of(), 0);
  EXPECT_EQ(cookie, cookie_of(keys_of(), 0));
  for (const Cookie& other : {cookie_of(keys_of(9), 0), cookie_of(keys_of(1, 9), 0),
                              cookie_of(keys_of(1, 2, 9), 0), cookie_of(keys_of(), 1)}) {
    EXPECT_NE(cookie, other);
  }
  ConnectionKeys narrowed = keys_of();
  ASSERT_TRUE(narrowed.narrow_to(test::secret_of(1), MeetingId{}).ok());
  EXPECT_EQ(cookie, cookie_of(narrowed, 0)) << "ranks that did not meet yet show it too";
}

}  // namespace
}  // namespace ciranda
