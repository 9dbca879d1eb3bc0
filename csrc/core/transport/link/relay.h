#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/socket_io.h"
#include "core/wire/introduction.h"

namespace ciranda {

// Takes control frames between the first ranks of the hosts. A star: every other host is connected
// to host 0. Also tells the others of a failure.
//
// Belongs to the first rank of each host. Never blocks; not thread-safe.
class Relay {
 public:
  // `control` as in RemoteMesh. `hosts` stays valid as long as the relay.
  Relay(std::vector<ControlConnection> control, const Hosts& hosts, int host);

  // To host 0; on host 0: to every other host. kRankLost names the first rank of a host that is
  // gone, lost_host() its number; the others have it all the same.
  Status send(Rank from, std::span<const std::byte> frame);
  // No host is so slow that the next frame should wait here rather than there: a rank that is
  // stopped is waited for, whatever the others send.
  bool has_room() const;

  // Sends what waits and takes at most `frames_max` frames that have arrived, of each host in its
  // order. True if there was one. An Error, also one of `take`, is the end of the job: kRankLost
  // names the first rank of the host that is gone; lost_host() its number.
  using Take = std::function<Status(Rank from, std::span<const std::byte> frame)>;
  Result<bool> advance(const Take& take, std::size_t frames_max);
  int lost_host() const { return lost_host_; }
  // kRankLost, as advance()'s, when the kernel of another host has answered nothing for `limit_ms`.
  Status check_answers(std::uint64_t limit_ms);
  // What the lost host sent before it was lost.
  void take_last_words(int host, const Take& take);
  // That host said goodbye before: no more from it.
  void part_with(int host);

  // Reports to all other hosts that the job has failed on this one. Best effort.
  void tell_failure(const Error& why);
  // The failure that another host has reported.
  const std::optional<Error>& reported_failure() const { return reported_failure_; }

  // Appends what advance() waits for: frames, if they are `wanted`, and room for what it sends.
  void watched(std::vector<Watched>& out, bool wanted) const;
  // In a forked child: closes the connections. Async-signal-safe.
  void close_all() noexcept;
  // Parted with everybody.
  bool alone() const;
  // Nothing waits to be sent.
  bool idle() const;

 private:
  enum class Type : std::uint8_t { kFrame = 1, kFailure = 2 };

  bool at_centre() const { return host_ == 0; }
  int host_of(std::size_t connection) const {
    return at_centre() ? static_cast<int>(connection) + 1 : 0;
  }
  Status open(std::size_t connection, const OpenedFrame& frame, const Take& take);
  void forward_failure(std::span<const std::byte> payload, std::size_t except);

  std::vector<std::optional<ControlConnection>> connections_;  // none: parted
  const Hosts& hosts_;
  const int host_;
  std::vector<std::byte> payload_;  // scratch
  int lost_host_ = -1;
  std::optional<Error> reported_failure_;
};

}  // namespace ciranda
