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

// The keys and the cookie that all connections of a job share.
namespace ciranda {

using JobId = std::array<std::byte, 16>;
using MeetingId = std::array<std::byte, 16>;  // drawn for each meeting of all ranks

// The purpose of a connection. The values are on the wire: append only.
enum class Purpose : std::uint8_t { kControl = 0, kData = 1, kRendezvous = 2, kService = 3 };
inline constexpr int kPurposeCount = 4;
std::string_view purpose_name(Purpose purpose);

// Return "rank 2", "worker 2" or "server 0". With kService the caller is a worker and the called
// process is a parameter server; otherwise both are ranks.
std::string caller_name(Purpose purpose, Rank caller);
std::string called_name(Purpose purpose, Rank called);

// The keys of one epoch of one job. Const members are thread-safe.
struct ConnectionKeys {
  static Result<ConnectionKeys> derive(const Secret& job_key, const JobId& job, Epoch epoch);
  // Derives the keys of the job named `job_id`, with a TLS context if `with_tls`. The JobId is a
  // MAC of the name, because callers send it in clear, also to processes with another key.
  static Result<std::unique_ptr<ConnectionKeys>> of_job(const Secret& job_key,
                                                        const std::string& job_id, Epoch epoch,
                                                        bool with_tls);
  // Replaces the key for kData by one of this meeting alone. A process that is left from an earlier
  // meeting holds the same job key, but its data connections to these ranks fail in the handshake.
  Status narrow_to(const Secret& job_key, const MeetingId& meeting);
  const Secret& of(Purpose purpose) const { return keys[static_cast<std::size_t>(purpose)]; }

  JobId job;
  Epoch epoch;
  std::array<Secret, kPurposeCount> keys;
  std::unique_ptr<const Tls> tls = {};  // null: connections are in clear
};

// The first bytes of a client. Computing the cookie takes the job's key, but it is the same each
// time, so an eavesdropper can repeat it. The cookie proves nothing and its absence refuses nobody:
// it tells a rank which callers to serve first while strangers flood it.
using Cookie = std::array<std::byte, 16>;
// Returns the cookie for a client that calls `to`. Asserts that the keys are intact, which they are
// except in a forked child.
Cookie cookie_of(const ConnectionKeys& keys, Rank to);

}  // namespace ciranda
