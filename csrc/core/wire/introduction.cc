#include "core/wire/introduction.h"

#include "core/base/assert.h"
#include "core/wire/codec.h"

namespace ciranda {
namespace {

constexpr std::size_t kIntroductionBytesMin = 8;

void write(Writer& writer, const Introduction& one) {
  for (const std::int32_t number :
       {one.rank, one.size, one.host, one.hosts, one.local_rank, one.local_size}) {
    CIRANDA_ASSERT(number >= 0);
    writer.varint(static_cast<std::uint64_t>(number));
  }
  CIRANDA_ASSERT(one.settings.size() <= kSettingsBytesMax);
  writer.varint(one.settings.size());
  writer.text(one.settings);
  CIRANDA_ASSERT(one.addresses.size() <= kAddressesMax);
  writer.varint(one.addresses.size());
  for (const Introduction::Address& address : one.addresses) {
    CIRANDA_ASSERT(address.host.size() <= kAddressTextBytesMax);
    writer.varint(address.host.size());
    writer.text(address.host);
    writer.u16(address.port);
  }
}

Introduction read(Reader& reader) {
  const auto number = [&](const char* field, std::uint64_t max) {
    return static_cast<std::int32_t>(reader.varint(field, max));
  };
  Introduction one;
  one.rank = number("introduction.rank", kRanksMax - 1);
  one.size = number("introduction.size", kRanksMax);
  one.host = number("introduction.host", kRanksMax - 1);
  one.hosts = number("introduction.hosts", kRanksMax);
  one.local_rank = number("introduction.local_rank", kRanksMax - 1);
  one.local_size = number("introduction.local_size", kRanksMax);
  const std::size_t settings = reader.count("introduction.settings", kSettingsBytesMax, 1);
  one.settings = reader.text("introduction.settings", settings);
  const std::size_t count = reader.count("introduction.addresses", kAddressesMax, 3);
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    const std::size_t bytes = reader.count("introduction.address", kAddressTextBytesMax, 1);
    const std::string_view host = reader.text("introduction.address", bytes);
    one.addresses.push_back({.host = std::string(host), .port = reader.u16("introduction.port")});
  }
  if (reader.ok() && count == 0) reader.fail("introduction.addresses", "are none");
  return one;
}

Status at_end(Reader& reader, const char* field) {
  if (reader.ok() && reader.remaining() > 0) reader.fail(field, "is followed by more");
  if (!reader.ok()) return reader.error();
  return {};
}

Error contradiction(std::string text) {
  return {.code = ErrorCode::kInvalidArgument, .text = std::move(text)};
}

// Checks that each host has ranks, and that every local rank is there, in the order of the ranks.
Status check_seats(const Hosts& hosts) {
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (std::size_t local = 0; local < hosts[host].size(); ++local) {
      if (hosts[host][local] != kNoRank) continue;
      return contradiction("no rank is local rank " + std::to_string(local) + " on host " +
                           std::to_string(host));
    }
    for (std::size_t local = 1; local < hosts[host].size(); ++local) {
      const std::vector<Rank>& ranks = hosts[host];
      if (ranks[local - 1] < ranks[local]) continue;
      return contradiction("rank " + std::to_string(ranks[local - 1]) + " is local rank " +
                           std::to_string(local - 1) + " on host " + std::to_string(host) +
                           ", and rank " + std::to_string(ranks[local]) + " local rank " +
                           std::to_string(local) +
                           "; number the ranks of a host in the order of their local ranks");
    }
    if (hosts[host].empty()) {
      return contradiction("no rank is on host " + std::to_string(host));
    }
  }
  return {};
}

}  // namespace

void encode(const Introduction& introduction, std::vector<std::byte>& out) {
  Writer writer(out);
  write(writer, introduction);
}

Result<Introduction> decode_introduction(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Introduction one = read(reader);
  CIRANDA_TRY(at_end(reader, "introduction"));
  return one;
}

void encode(std::span<const Introduction> introductions, std::vector<std::byte>& out) {
  Writer writer(out);
  writer.varint(introductions.size());
  for (const Introduction& one : introductions) write(writer, one);
}

Result<std::vector<Introduction>> decode_introductions(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const std::size_t count = reader.count("introductions", kRanksMax, kIntroductionBytesMin);
  std::vector<Introduction> introductions;
  for (std::size_t i = 0; i < count && reader.ok(); ++i) introductions.push_back(read(reader));
  CIRANDA_TRY(at_end(reader, "introductions"));
  return introductions;
}

Result<Hosts> seat(std::span<const Introduction> introductions) {
  const auto size = static_cast<std::int32_t>(introductions.size());
  CIRANDA_ASSERT(size >= 1);
  Hosts hosts(static_cast<std::size_t>(introductions.front().hosts));
  for (std::size_t place = 0; place < introductions.size(); ++place) {
    const Introduction& one = introductions[place];
    const std::string who = "rank " + std::to_string(one.rank);
    if (static_cast<std::size_t>(one.rank) != place) {
      return contradiction(who + " is in the place of rank " + std::to_string(place));
    }
    if (one.size != size || one.hosts != introductions.front().hosts) {
      return contradiction(
          who + " was started for " + std::to_string(one.size) + " ranks on " +
          std::to_string(one.hosts) + " hosts, rank 0 for " + std::to_string(size) + " on " +
          std::to_string(introductions.front().hosts) + "; start every rank with the same numbers");
    }
    CIRANDA_TRY(check_settings(one.rank, one.settings, introductions.front().settings));
    if (one.host >= one.hosts || one.local_rank >= one.local_size) {
      return contradiction(who + " says it is local rank " + std::to_string(one.local_rank) +
                           " of " + std::to_string(one.local_size) + " on host " +
                           std::to_string(one.host) + " of " + std::to_string(one.hosts));
    }
    std::vector<Rank>& seats = hosts[static_cast<std::size_t>(one.host)];
    if (seats.empty()) seats.assign(static_cast<std::size_t>(one.local_size), kNoRank);
    if (seats.size() != static_cast<std::size_t>(one.local_size)) {
      return contradiction(who + " counts " + std::to_string(one.local_size) + " ranks on host " +
                           std::to_string(one.host) + ", another rank there counts " +
                           std::to_string(seats.size()));
    }
    Rank& own = seats[static_cast<std::size_t>(one.local_rank)];
    if (own != kNoRank) {
      return contradiction(who + " and rank " + std::to_string(own) + " are both local rank " +
                           std::to_string(one.local_rank) + " on host " + std::to_string(one.host));
    }
    own = one.rank;
  }
  CIRANDA_TRY(check_seats(hosts));
  return hosts;
}

}  // namespace ciranda
