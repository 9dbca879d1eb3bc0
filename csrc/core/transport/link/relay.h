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

// Carries control frames between the first ranks of the hosts. The connections form a star: every
// other host is connected to host 0. The relay also reports failures to the other hosts.
//
// Owned by the first rank of each host. Never blocks. Not thread-safe.
class Relay {
 public:
  // `control` is that of RemoteMesh. `hosts` must outlive the relay.
  Relay(std::vector<ControlConnection> control, const Hosts& hosts, int host);

  // Sends a frame of rank `from` to host 0; on host 0, to every other host. If a host is gone, the
  // frame still goes to the remaining hosts. The error is then kRankLost, which names the host's
  // first rank, and lost_host() is the host's number.
  Status send(Rank from, std::span<const std::byte> frame);
  // Returns true if every connection has room in its queue. Otherwise the caller keeps the next
  // frame: a rank that is stopped delays all frames, so that its queue stays bounded.
  bool has_room() const;

  // Sends queued bytes and passes arrived frames to `take`, at most `frames_max` in total; the
  // frames of one host keep their order. Returns true if there was one. An Error, also one of
  // `take`, ends the job. lost_host() is then the number of the failed host; kRankLost names its
  // first rank.
  using Take = std::function<Status(Rank from, std::span<const std::byte> frame)>;
  Result<bool> advance(const Take& take, std::size_t frames_max);
  int lost_host() const { return lost_host_; }
  // Returns kRankLost, like advance(), if the kernel of another host has answered nothing for
  // `limit_ms`.
  Status check_answers(std::uint64_t limit_ms);
  // Passes to `take` the frames that the lost host has sent before its end.
  void take_last_words(int host, const Take& take);
  // Closes the connection to a host that has said goodbye.
  void part_with(int host);

  // Reports to all other hosts that the job has failed on this one. Best effort.
  void tell_failure(const Error& why);
  // Returns the first failure that another host has reported, or nullopt.
  const std::optional<Error>& reported_failure() const { return reported_failure_; }

  // Appends the events that advance() waits for: arriving frames if they are `wanted`, and room for
  // queued bytes.
  void watched(std::vector<Watched>& out, bool wanted) const;
  // Closes the connections in a forked child. Async-signal-safe.
  void close_all() noexcept;
  // Returns true if no connection is left.
  bool alone() const;
  // Returns true if no bytes are queued.
  bool idle() const;

 private:
  enum class Type : std::uint8_t { kFrame = 1, kFailure = 2 };

  bool at_centre() const { return host_ == 0; }
  int host_of(std::size_t connection) const {
    return at_centre() ? static_cast<int>(connection) + 1 : 0;
  }
  Status open(std::size_t connection, const OpenedFrame& frame, const Take& take);
  void forward_failure(std::span<const std::byte> payload, std::size_t except);

  std::vector<std::optional<ControlConnection>> connections_;  // empty: parted
  const Hosts& hosts_;
  const int host_;
  std::vector<std::byte> payload_;  // scratch
  int lost_host_ = -1;
  std::optional<Error> reported_failure_;
};

}  // namespace ciranda
