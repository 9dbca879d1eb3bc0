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

// What the first rank of a host does for the others, where there are several: carries their frames
// to the one order of the job, aggregated where that can be (Aggregator), and brings the order
// back. On host 0 it makes the order.
//
// Never blocks; not thread-safe. Times are of monotonic_ns().
class Carrier {
 public:
  // `control` as in RemoteMesh. `hosts` and `negotiator`, this rank's own, outlive the carrier.
  Carrier(std::vector<ControlConnection> control, const Hosts& hosts, int host,
          const Negotiator& negotiator, std::uint64_t patience_ns);

  // A frame of a rank of this host wants its place in the order; advance() sends it.
  void submit(Rank from, std::span<const std::byte> frame, std::uint64_t now_ns) {
    aggregator_.submit(from, frame, now_ns);
  }

  // Moves all that can be moved without waiting. Frames of the order go to `deliver`, one by one;
  // where that gives false they wait for the next call. `caught_up`: the negotiator has handled all
  // that was delivered. True if anything moved. Errors and lost_host() as Relay's.
  using Deliver = std::function<bool(Rank from, std::span<const std::byte> frame)>;
  Result<bool> advance(const Deliver& deliver, std::uint64_t now_ns, bool caught_up);
  int lost_host() const { return relay_.lost_host(); }
  // What the lost host sent before it was lost.
  void take_last_words(int host, const Deliver& deliver, std::uint64_t now_ns);
  // That host said goodbye before: no more from it.
  void part_with(int host) { relay_.part_with(host); }

  // Whether the other hosts' kernels answer: see ControlConnection. Errors as advance()'s.
  Status check_answers(std::uint64_t limit_ms) { return relay_.check_answers(limit_ms); }

  // The job has failed on this host: all others shall know. Best effort.
  void tell_failure(const Error& why) { relay_.tell_failure(why); }
  // What another host told.
  const std::optional<Error>& reported_failure() const { return relay_.reported_failure(); }

  // Appends what advance() waits for.
  void watched(std::vector<Watched>& out) const;
  // In a forked child: closes the connections. Async-signal-safe.
  void close_all() noexcept { relay_.close_all(); }
  // Parted with everybody.
  bool alone() const { return relay_.alone(); }
  // Nothing waits to be sent or delivered.
  bool idle() const;

 private:
  bool hand_over(const Deliver& deliver);
  std::size_t room() const;  // for frames that arrive

  Relay relay_;
  Aggregator aggregator_;
};

}  // namespace ciranda
