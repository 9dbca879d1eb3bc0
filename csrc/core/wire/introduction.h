#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/wire/settings.h"
#include "core/wire/types.h"

namespace ciranda {

// What a rank tells rank 0 when the hosts of a job meet: its place, and where it can be called.
struct Introduction {
  Rank rank = kNoRank;
  std::int32_t size = 0;  // of the job, as this rank was told
  std::int32_t host = 0;  // hosts are numbered 0, 1, … by the starter
  std::int32_t hosts = 0;
  std::int32_t local_rank = 0;
  std::int32_t local_size = 0;
  std::string settings = {};  // see to_text()
  struct Address {
    std::string host;  // in numbers
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

// Rank 0's answer: everybody's introduction, by rank.
void encode(std::span<const Introduction> introductions, std::vector<std::byte>& out);
Result<std::vector<Introduction>> decode_introductions(std::span<const std::byte> bytes);

// hosts[h][l]: the rank with local rank l on host h.
using Hosts = std::vector<std::vector<Rank>>;

// Who is where; `introductions` is not empty. kInvalidArgument names the ranks whose introductions
// contradict each other, or whose settings are not rank 0's.
Result<Hosts> seat(std::span<const Introduction> introductions);

}  // namespace ciranda
