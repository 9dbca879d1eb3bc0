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

// A frame and the rank that sent it.
struct CarriedFrame {
  Rank from = kNoRank;
  std::vector<std::byte> bytes = {};
};

// Aggregates frames on the first rank of each host. When all members on a host have sent a Request
// for the same known operation, the host reports it to host 0 in one ReadyOp. When all hosts with
// members have reported it, host 0 sends one ReadyOp for all. So a known operation costs each host
// one short frame each way, whatever the number of ranks. Ranks and hosts outside of a group play
// no part in its operations.
//
// A Request is held until the last member on the host has sent it, and a report is held on host 0
// until the last host has sent it. A held Request or report is sent alone as soon as its operation
// may not be aggregated any more (Negotiator::may_aggregate). So all ranks learn of errors and
// leaves as they would without aggregation. It is also sent alone after `patience` to 1.5 *
// `patience` ticks, so that reports of stalls name the missing ranks.
//
// The order of frames in host 0's outbox is the order of the job. Pure: no I/O, no clock. Not
// thread-safe.
class Aggregator {
 public:
  // `hosts` and `negotiator` (this rank's own) must outlive the aggregator.
  Aggregator(const Hosts& hosts, int host, const Negotiator& negotiator, std::uint64_t patience);

  // Takes a frame of a rank of this host. A frame that does not decode is forwarded unchanged, and
  // every rank refuses it.
  void submit(Rank from, std::span<const std::byte> frame, std::uint64_t tick);
  // On host 0: takes a frame that the first rank of another host sent. On another host: takes the
  // next frame of host 0's order. Returns kMalformed if a ready frame does not decode, reports for
  // a host that is not its sender's, or names an operation that this host has not reported.
  Status arrive(Rank from, std::span<const std::byte> frame, std::uint64_t tick);

  // Sends the operations completed since the last call, and alone those that must not wait any more
  // or have waited too long. `caught_up`: the negotiator has handled every frame taken from the
  // inbox. Errors as arrive().
  Status flush(std::uint64_t tick, bool caught_up);

  // The frames to send to host 0; on host 0: to every other host.
  std::deque<CarriedFrame>& outbox() { return outbox_; }
  // The next frames of the order, for this host's log.
  std::deque<CarriedFrame>& inbox() { return inbox_; }
  const std::deque<CarriedFrame>& outbox() const { return outbox_; }
  const std::deque<CarriedFrame>& inbox() const { return inbox_; }

  // Returns true if an operation is held for its last rank or its last host.
  bool holds() const;

 private:
  // A known operation that members on this host have submitted. After the last of them it is
  // reported to host 0. The contributions stay here until host 0 has put the operation in order.
  struct Submitted {
    std::vector<std::optional<Contribution>> contributions;  // by local rank
    std::size_t ranks = 0;                                   // members that have submitted it
    std::size_t members = 0;                                 // members on this host
    std::uint64_t since_tick = 0;
  };
  // On host 0: a known operation that some hosts have reported.
  struct Reported {
    std::vector<bool> by;          // by host: has reported
    std::size_t hosts = 0;         // hosts that have reported
    std::size_t with_members = 0;  // hosts with members
    std::uint64_t since_tick = 0;
  };

  bool orders() const { return host_ == 0; }
  const std::vector<Rank>& local_ranks() const { return hosts_[static_cast<std::size_t>(host_)]; }
  bool complete(const Submitted& op) const { return op.ranks == op.members; }
  // Returns the operation's group; nullptr if its Requests are sent alone.
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
  bool reviewed_ = true;  // false: a frame that may stop aggregation has come since the last review
  std::uint64_t next_review_tick_ = 0;
  std::map<KnownOp, Submitted> submitted_;
  std::map<KnownOp, Reported> reported_;
  std::vector<ReadyOp> complete_here_;                // not reported yet
  std::vector<ReadyOp> complete_everywhere_;          // not in the order yet
  std::vector<std::vector<Request>> alone_;           // by local rank; not sent yet
  std::vector<std::vector<ReadyOp>> reported_alone_;  // by host; not in the order yet
  std::deque<CarriedFrame> outbox_, inbox_;
  Frame scratch_;
};

}  // namespace ciranda
