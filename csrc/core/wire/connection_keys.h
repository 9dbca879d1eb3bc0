#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/base/secret.h"
#include "core/wire/tls.h"
#include "core/wire/types.h"

// What all connections of a job have in common.
namespace ciranda {

using JobId = std::array<std::byte, 16>;
using MeetingId = std::array<std::byte, 16>;  // random, of one meeting of all ranks

// What a connection is for. The values are on the wire: append only.
enum class Purpose : std::uint8_t { kControl = 0, kData = 1, kRendezvous = 2, kService = 3 };
inline constexpr int kPurposeCount = 4;
std::string_view purpose_name(Purpose purpose);

// Ranks call ranks, but for kService: there the number of who calls is a worker's, and that of who
// is called a parameter server's. "rank 2", "worker 2", "server 0".
std::string caller_name(Purpose purpose, Rank caller);
std::string called_name(Purpose purpose, Rank called);

// The keys of one epoch of one job.
struct ConnectionKeys {
  static Result<ConnectionKeys> derive(const Secret& job_key, const JobId& job, Epoch epoch);
  // Those of a job by its name, for connections through TLS where it wants that. The number that
  // the name becomes is told in clear, also to those who have another key.
  static Result<std::unique_ptr<ConnectionKeys>> of_job(const Secret& job_key,
                                                        const std::string& job_id, Epoch epoch,
                                                        bool with_tls);
  // For data, a key of this meeting alone: whoever is left from an earlier one of the same job and
  // epoch, with the same key, proves nothing to those who met now, nor they to it.
  Status narrow_to(const Secret& job_key, const MeetingId& meeting);
  const Secret& of(Purpose purpose) const { return keys[static_cast<std::size_t>(purpose)]; }

  JobId job;
  Epoch epoch;
  std::array<Secret, kPurposeCount> keys;
  std::unique_ptr<const Tls> tls = {};  // connections go through it, where there is one
};

// What a client says before all else. Only who holds the job's key can make it, or heard it on the
// way, for it is the same each time: it proves nothing and refuses nobody, but tells whom to hear
// first while strangers flood a rank.
using Cookie = std::array<std::byte, 16>;
// Asserts that the keys are intact, as they are where they were derived.
Cookie cookie_of(const ConnectionKeys& keys, Rank to);

}  // namespace ciranda
