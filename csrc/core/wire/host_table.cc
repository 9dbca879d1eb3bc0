#include "core/wire/host_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace ciranda {

Result<HostTable> make_host_table(const MeetingId& meeting, std::vector<Introduction> ranks) {
  auto hosts = seat(ranks);
  if (!hosts) return hosts.error();
  for (Introduction& one : ranks) one.settings.clear();
  return HostTable{
      .meeting = meeting, .ranks = std::move(ranks), .hosts = std::move(hosts).value()};
}

void encode(const HostTable& host_table, std::vector<std::byte>& out) {
  out.insert(out.end(), host_table.meeting.begin(), host_table.meeting.end());
  encode(host_table.ranks, out);
}

Result<HostTable> decode_host_table_of(std::span<const std::byte> bytes, int size) {
  const Error strange{
      .code = ErrorCode::kMalformed, .text = "rank 0 sent a malformed table of hosts", .rank = 0};
  MeetingId meeting;
  if (bytes.size() < meeting.size()) return strange;
  std::ranges::copy(bytes.first<std::tuple_size_v<MeetingId>>(), meeting.begin());
  auto ranks = decode_introductions(bytes.subspan(meeting.size()));
  if (!ranks) return ranks.error();
  if (ranks.value().size() != static_cast<std::size_t>(size)) return strange;
  return make_host_table(meeting, std::move(ranks).value());
}

Status HostTableBuilder::enter(std::span<const Introduction> host) {
  for (const Introduction& one : host) {
    const auto rank = static_cast<std::size_t>(one.rank);
    if (rank >= ranks_.size()) {
      return Error{.code = ErrorCode::kInvalidArgument,
                   .text = "rank " + std::to_string(one.rank) + " is not one of this job's " +
                           std::to_string(ranks_.size()) +
                           " ranks; start every rank with the same size"};
    }
    if (ranks_[rank].size != 0) {
      return Error{.code = ErrorCode::kInvalidArgument,
                   .text = "rank " + std::to_string(one.rank) + " is on host " +
                           std::to_string(ranks_[rank].host) + " and on host " +
                           std::to_string(one.host) + "; start every rank once"};
    }
    ranks_[rank] = one;
    --missing_;
  }
  return {};
}

void HostTableBuilder::strike(std::span<const Rank> ranks) {
  for (const Rank rank : ranks) ranks_[static_cast<std::size_t>(rank)] = {};
  missing_ += static_cast<int>(ranks.size());
}

std::vector<Rank> HostTableBuilder::missing() const {
  std::vector<Rank> missing;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].size == 0) missing.push_back(static_cast<Rank>(rank));
  }
  return missing;
}

}  // namespace ciranda
