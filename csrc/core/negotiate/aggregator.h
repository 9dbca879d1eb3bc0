#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/negotiate/negotiator.h"
#include "core/wire/introduction.h"
#include "core/wire/messages.h"

namespace ciranda {

// A frame and who said it.
struct CarriedFrame {
  Rank from = kNoRank;
  std::vector<std::byte> bytes = {};
};

// What the first rank of a host does with frames, so that a known operation costs a job one short
// frame of each host to host 0 and one back, however many ranks there are: Requests that all
// members on a host make alike go on as one "ready"; those that all hosts with members report
// become one for all. A group asks nothing of ranks and hosts outside of it.
//
// A Request waits here until the last member on the host has made it, and a report on host 0 until
// the last host has. It goes on alone as soon as it must not wait (Negotiator::may_aggregate), so
// that what is wrong, late or left becomes known to all as without aggregation; and at the latest
// when it has waited for `patience` ticks, so that reports of stalls name the missing ranks.
//
// Host 0 makes the order: what its outbox holds. Pure: no I/O, no clock. Not thread-safe.
class Aggregator {
 public:
  // `hosts` and `negotiator`, this rank's own copy, live as long as the aggregator.
  Aggregator(const Hosts& hosts, int host, const Negotiator& negotiator, std::uint64_t patience);

  // A frame of a rank of this host. What does not decode goes on as it is: every rank refuses it.
  void submit(Rank from, std::span<const std::byte> frame, std::uint64_t tick);
  // On host 0: what the first rank of another host sent. There: what host 0 put in order.
  // kMalformed, if it speaks of what this host has not reported.
  Status arrive(Rank from, std::span<const std::byte> frame, std::uint64_t tick);

  // Sends on what was completed since the last call, and alone what must not wait any more or has
  // waited too long. `caught_up`: the negotiator has handled all that left the inbox.
  Status flush(std::uint64_t tick, bool caught_up);

  // For host 0; on host 0: for every other host.
  std::deque<CarriedFrame>& outbox() { return outbox_; }
  // The next frames of the order, for this host's log.
  std::deque<CarriedFrame>& inbox() { return inbox_; }
  const std::deque<CarriedFrame>& outbox() const { return outbox_; }
  const std::deque<CarriedFrame>& inbox() const { return inbox_; }

  // Something waits here for its last rank, or its last host.
  bool holds() const;

 private:
  // A known operation that some members on this host have submitted. When all have, it is reported
  // and only keeps what they contributed until it is in the order.
  struct Submitted {
    std::vector<std::optional<Contribution>> contributions;  // by local rank
    std::size_t ranks = 0;
    std::size_t members = 0;  // on this host
    std::uint64_t since_tick = 0;
  };
  // On host 0: a known operation that some hosts have reported.
  struct Reported {
    std::vector<bool> by;  // host
    std::size_t hosts = 0;
    std::size_t with_members = 0;  // hosts
    std::uint64_t since_tick = 0;
  };

  bool orders() const { return host_ == 0; }
  const std::vector<Rank>& local_ranks() const { return hosts_[static_cast<std::size_t>(host_)]; }
  bool complete(const Submitted& op) const { return op.ranks == op.members; }
  // The operation's group; nullptr: it goes on alone.
  const Group* may_aggregate(const KnownOp& op) const {
    return aggregates_ ? negotiator_.may_aggregate(op) : nullptr;
  }

  void hold(std::size_t local, Request& request, std::uint64_t tick);
  Status count_report(int host, const KnownOp& op, std::uint64_t tick);
  void review(std::uint64_t tick, bool all);
  Status report(std::uint64_t tick);
  void send_alone();
  void order_complete();
  void forward(Rank from, std::vector<std::byte> bytes);
  void put_in_order(Rank from, std::vector<std::byte> bytes);
  Status add_contributions(Rank from, ReadyOp& ready);
  Status deliver(Rank from, std::vector<std::byte> bytes);

  const Hosts& hosts_;
  const int host_;
  const Negotiator& negotiator_;
  const std::uint64_t patience_;
  bool aggregates_ = true;  // until a rank leaves
  bool reviewed_ = true;    // since something was delivered that is not ready everywhere
  std::uint64_t next_review_tick_ = 0;
  std::map<KnownOp, Submitted> submitted_;
  std::map<KnownOp, Reported> reported_;
  std::vector<ReadyOp> complete_here_;                // not reported yet
  std::vector<ReadyOp> complete_everywhere_;          // not in the order yet
  std::vector<std::vector<Request>> alone_;           // by local rank; not sent on yet
  std::vector<std::vector<ReadyOp>> reported_alone_;  // by host; not in the order yet
  std::deque<CarriedFrame> outbox_, inbox_;
  Frame scratch_;
};

}  // namespace ciranda
