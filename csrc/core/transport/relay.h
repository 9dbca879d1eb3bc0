#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/transport/connection.h"
#include "core/transport/remote_mesh.h"
#include "core/wire/introduction.h"

namespace ciranda {

// Carries the frames of a host to the one order of the job, and the order back. On host 0 it makes
// the order: first come, first served. A star: every other host is connected to host 0.
//
// Belongs to the first rank of each host. Never blocks; not thread-safe.
class Relay {
 public:
  // `control` as in RemoteMesh. `hosts` stays valid as long as the relay.
  Relay(std::vector<ControlConnection> control, const Hosts& hosts, int host);

  // A frame of a rank of this host wants its place in the order. Errors as advance()'s.
  Status send(Rank from, std::span<const std::byte> frame);

  // Moves all that can be moved without waiting. Ordered frames go to `deliver`, in order; where
  // that gives false they wait for the next call. True if anything moved. An Error is the end of
  // the job: kRankLost names the first rank of the host that is gone; lost_host() its number.
  using Deliver = std::function<bool(Rank from, std::span<const std::byte> frame)>;
  Result<bool> advance(const Deliver& deliver);
  int lost_host() const { return lost_host_; }
  // What the lost host sent before it was lost.
  void take_last_words(int host, const Deliver& deliver);
  // That host said goodbye before: no more from it.
  void part_with(int host);

  // The job has failed on this host: all others shall know. Best effort.
  void tell_failure(const Error& why);
  // What another host told.
  const std::optional<Error>& told_failure() const { return told_failure_; }

  // Appends what advance() waits for.
  void watched(std::vector<Watched>& out) const;
  // In a forked child: closes the connections. Async-signal-safe.
  void close_all() noexcept;
  // Parted with everybody.
  bool alone() const;
  // Nothing waits to be sent or delivered.
  bool idle() const;

 private:
  struct Frame {
    Rank from;
    std::vector<std::byte> bytes;
  };
  enum class Type : std::uint8_t { kFrame = 1, kFailure = 2 };

  bool orders() const { return host_ == 0; }
  int host_of(std::size_t connection) const {
    return orders() ? static_cast<int>(connection) + 1 : 0;
  }
  Status put_in_order(Rank from, std::span<const std::byte> frame);
  bool hand_over(const Deliver& deliver);
  Status take(std::size_t connection, const OpenedFrame& frame);
  void forward_failure(std::span<const std::byte> payload, std::size_t except);

  std::vector<std::optional<ControlConnection>> connections_;  // none: parted
  const Hosts& hosts_;
  const int host_;
  std::deque<Frame> undelivered_;
  std::vector<std::byte> payload_;  // scratch
  int lost_host_ = -1;
  std::optional<Error> told_failure_;
};

}  // namespace ciranda
