// Who is where: breaks when a rank is believed that contradicts another.
#include "core/wire/introduction.h"

#include <gtest/gtest.h>

namespace ciranda {
namespace {

// Ranks in a row, host after host.
std::vector<Introduction> introductions_of(const std::vector<int>& ranks_of_hosts) {
  std::vector<Introduction> introductions;
  for (std::size_t host = 0; host < ranks_of_hosts.size(); ++host) {
    for (int local = 0; local < ranks_of_hosts[host]; ++local) {
      introductions.push_back({.rank = static_cast<Rank>(introductions.size()),
                               .host = static_cast<std::int32_t>(host),
                               .hosts = static_cast<std::int32_t>(ranks_of_hosts.size()),
                               .local_rank = local,
                               .local_size = ranks_of_hosts[host],
                               .settings = "CIRANDA_STREAMS=3\nCIRANDA_CACHE_CAPACITY=7\n",
                               .addresses = {{"192.0.2.1", 7}, {"2001:db8::1", 65535}}});
    }
  }
  for (Introduction& one : introductions)
    one.size = static_cast<std::int32_t>(introductions.size());
  return introductions;
}

TEST(Introduction, ComesBackAsItWas) {
  const std::vector<Introduction> introductions = introductions_of({2, 1, 3});
  std::vector<std::byte> bytes;
  encode(introductions, bytes);
  const auto decoded = decode_introductions(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value(), introductions);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(decode_introductions(std::span(bytes).first(cut)).ok()) << cut;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_introductions(bytes).ok());

  bytes.clear();
  encode(introductions[3], bytes);
  EXPECT_EQ(decode_introduction(bytes).value(), introductions[3]);
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_introduction(bytes).ok());
}

TEST(Introduction, AHugeCountIsRefusedBeforeMemoryIsTaken) {
  std::vector<std::byte> bytes(3, std::byte{0xff});
  bytes.push_back(std::byte{0x7f});
  EXPECT_FALSE(decode_introductions(bytes).ok());
}

TEST(Introduction, SeatsUnequalHosts) {
  EXPECT_EQ(seat(introductions_of({2, 1, 3})).value(), (Hosts{{0, 1}, {2}, {3, 4, 5}}));
}

TEST(Introduction, ContradictionsNameTheRank) {
  const auto refused = [](auto change) {
    std::vector<Introduction> introductions = introductions_of({2, 2});
    change(introductions);
    const auto hosts = seat(introductions);
    return hosts.ok() ? std::string("accepted") : hosts.error().text;
  };
  EXPECT_NE(refused([](auto& introductions) {
              introductions[2].size = 5;
            }).find("rank 2 was started for 5 ranks"),
            std::string::npos);
  EXPECT_NE(
      refused([](auto& introductions) {
        introductions[2].settings = "CIRANDA_STREAMS=3\nCIRANDA_CACHE_CAPACITY=0\n";
      }).find("rank 2 has CIRANDA_CACHE_CAPACITY=0, rank 0 has 7; set the same for every rank"),
      std::string::npos);
  EXPECT_NE(refused([](auto& introductions) {
              introductions[3].rank = 2;
            }).find("rank 2 is in the place of rank 3"),
            std::string::npos);
  EXPECT_NE(refused([](auto& introductions) {
              introductions[3].hosts = 3;
            }).find("rank 3 was started for"),
            std::string::npos);
  EXPECT_NE(refused([](auto& introductions) { introductions[3].host = 2; }).find("on host 2 of 2"),
            std::string::npos);
  EXPECT_NE(refused([](auto& introductions) {
              introductions[1].local_rank = 0;
            }).find("rank 1 and rank 0 are both local rank 0 on host 0"),
            std::string::npos);
  EXPECT_NE(refused([](auto& introductions) {
              introductions[1].local_size = 3;
            }).find("rank 1 counts 3 ranks"),
            std::string::npos);
  EXPECT_NE(refused([](auto& introductions) {
              introductions[2].host = introductions[3].host = 0;
              introductions[0].local_size = introductions[1].local_size = 4;
              introductions[2].local_size = introductions[3].local_size = 4;
              introductions[2].local_rank = 2;
              introductions[3].local_rank = 3;
            }).find("no rank is on host 1"),
            std::string::npos);
  EXPECT_NE(refused([](auto& introductions) {
              std::swap(introductions[2].local_rank, introductions[3].local_rank);
            }).find("rank 3 is local rank 0 on host 1, and rank 2 local rank 1; number the ranks"),
            std::string::npos);
}

}  // namespace
}  // namespace ciranda
