#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/wire/settings.h"
#include "core/wire/types.h"

namespace ciranda {

// A rank's message to rank 0 at the meeting: its place in the job and its addresses.
struct Introduction {
  Rank rank = kNoRank;
  std::int32_t size = 0;  // of the job, as the starter told this rank
  std::int32_t host = 0;  // the starter numbers the hosts 0, 1, …
  std::int32_t hosts = 0;
  std::int32_t local_rank = 0;
  std::int32_t local_size = 0;
  std::string settings = {};  // see to_text()
  struct Address {
    std::string host;  // numeric, as "10.0.0.1"
    std::uint16_t port = 0;
    bool operator==(const Address&) const = default;
  };
  std::vector<Address> addresses = {};  // the best first
  bool operator==(const Introduction&) const = default;
};

inline constexpr std::size_t kAddressesMax = 16;  // of one rank
inline constexpr std::size_t kAddressTextBytesMax = 64;

void encode(const Introduction& introduction, std::vector<std::byte>& out);
Result<Introduction> decode_introduction(std::span<const std::byte> bytes);

// A list of introductions: a host's to rank 0, or all of them, by rank, in the host table.
void encode(std::span<const Introduction> introductions, std::vector<std::byte>& out);
Result<std::vector<Introduction>> decode_introductions(std::span<const std::byte> bytes);

// hosts[h][l] is the rank with local rank l on host h.
using Hosts = std::vector<std::vector<Rank>>;

// Returns the rank of each place. `introductions` has every rank's, in the order of ranks, and is
// not empty. Returns kInvalidArgument if introductions contradict each other or a rank's settings
// differ from rank 0's.
Result<Hosts> seat(std::span<const Introduction> introductions);

}  // namespace ciranda
