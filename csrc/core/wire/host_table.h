#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/wire/handshake.h"
#include "core/wire/introduction.h"

namespace ciranda {

// The place and the addresses of every rank of a job. All ranks have it after the meeting.
struct HostTable {
  MeetingId meeting = {};
  std::vector<Introduction> ranks = {};  // by rank, without settings, which are equal on all
  Hosts hosts = {};
};

// Makes the table. `ranks` has every rank's introduction, in the order of ranks. Returns
// kInvalidArgument if introductions contradict each other, see seat().
Result<HostTable> make_host_table(const MeetingId& meeting, std::vector<Introduction> ranks);

void encode(const HostTable& host_table, std::vector<std::byte>& out);
// Decodes the table of a job of `size` ranks, which rank 0 sent. Returns kMalformed if the bytes do
// not decode or have another number of ranks; kInvalidArgument as make_host_table().
Result<HostTable> decode_host_table_of(std::span<const std::byte> bytes, int size);

// Collects the introductions of all ranks on rank 0, host by host.
class HostTableBuilder {
 public:
  explicit HostTableBuilder(int size) : ranks_(static_cast<std::size_t>(size)), missing_(size) {}

  // Adds the ranks of one host. Returns kInvalidArgument, which names the rank, if one is not a
  // rank of the job or has entered before.
  Status enter(std::span<const Introduction> host);
  // Removes `ranks`, which have entered and may enter again.
  void strike(std::span<const Rank> ranks);

  bool is_complete() const { return missing_ == 0; }
  std::vector<Rank> missing() const;
  const std::vector<Introduction>& ranks() const { return ranks_; }

 private:
  std::vector<Introduction> ranks_;  // by rank; Introduction::size 0: has not entered
  int missing_;
};

}  // namespace ciranda
