#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/wire/handshake.h"
#include "core/wire/introduction.h"

namespace ciranda {

// Where every rank of a job is; all ranks have it once their hosts have met.
struct HostTable {
  MeetingId meeting = {};
  std::vector<Introduction> ranks = {};  // by rank, without settings: they are the same
  Hosts hosts = {};
};

// kInvalidArgument: the introductions contradict each other, see seat(). Each rank's is there.
Result<HostTable> make_host_table(const MeetingId& meeting, std::vector<Introduction> ranks);

void encode(const HostTable& host_table, std::vector<std::byte>& out);
// Of a job of `size` ranks. kMalformed names rank 0, which sent it.
Result<HostTable> decode_host_table_of(std::span<const std::byte> bytes, int size);

// Collects the introductions of all ranks on rank 0, host by host.
class HostTableBuilder {
 public:
  explicit HostTableBuilder(int size) : ranks_(static_cast<std::size_t>(size)), missing_(size) {}

  // kInvalidArgument names a rank that is none of the job's, or that was there already.
  Status enter(std::span<const Introduction> host);
  // Removes ranks, which may enter again.
  void strike(std::span<const Rank> ranks);

  bool is_complete() const { return missing_ == 0; }
  std::vector<Rank> missing() const;
  const std::vector<Introduction>& ranks() const { return ranks_; }

 private:
  std::vector<Introduction> ranks_;  // size 0: not heard of yet
  int missing_;
};

}  // namespace ciranda
