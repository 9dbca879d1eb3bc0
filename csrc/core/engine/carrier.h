#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/negotiate/aggregator.h"
#include "core/transport/link/relay.h"

namespace ciranda {

// On several hosts the first rank of each host has a carrier. It sends the host's frames to host 0,
// aggregated where possible (Aggregator). The carrier of host 0 puts the frames of all hosts into
// one order and sends them to the other carriers, and each carrier delivers them on its host.
//
// Never blocks. Not thread-safe. All times are monotonic_ns().
class Carrier {
 public:
  // `control`: see RemoteMesh. `hosts` and `negotiator`, this rank's own, must outlive the carrier.
  Carrier(std::vector<ControlConnection> control, const Hosts& hosts, int host,
          const Negotiator& negotiator, std::uint64_t patience_ns);

  // Takes a frame of a rank of this host; advance() sends it to get its place in the order.
  void submit(Rank from, std::span<const std::byte> frame, std::uint64_t now_ns) {
    aggregator_.submit(from, frame, now_ns);
  }

  // Moves everything that can move without waiting. Passes frames of the order to `deliver`, one by
  // one; those for which it returns false wait for the next call. `caught_up`: the negotiator has
  // handled every frame delivered so far. Returns true if anything moved. Errors and lost_host()
  // are those of Relay.
  using Deliver = std::function<bool(Rank from, std::span<const std::byte> frame)>;
  Result<bool> advance(const Deliver& deliver, std::uint64_t now_ns, bool caught_up);
  int lost_host() const { return relay_.lost_host(); }
  // Delivers what the lost host sent before it was lost.
  void take_last_words(int host, const Deliver& deliver, std::uint64_t now_ns);
  // Closes the connection to a host that has said goodbye.
  void part_with(int host) { relay_.part_with(host); }

  // Returns an error like advance()'s if another host's kernel has not answered for `limit_ms`.
  Status check_answers(std::uint64_t limit_ms) { return relay_.check_answers(limit_ms); }

  // Reports to all other hosts that the job has failed on this one. Best effort.
  void tell_failure(const Error& why) { relay_.tell_failure(why); }
  // The failure that another host has reported.
  const std::optional<Error>& reported_failure() const { return relay_.reported_failure(); }

  // Appends the sockets that advance() waits for.
  void watched(std::vector<Watched>& out) const;
  // For a forked child: closes the connections. Async-signal-safe.
  void close_all() noexcept { relay_.close_all(); }
  // Returns true if the connections to all other hosts are closed.
  bool alone() const { return relay_.alone(); }
  // Returns true if nothing waits to be sent or delivered.
  bool idle() const;

 private:
  bool hand_over(const Deliver& deliver);
  std::size_t room() const;  // for frames that arrive

  Relay relay_;
  Aggregator aggregator_;
};

}  // namespace ciranda
