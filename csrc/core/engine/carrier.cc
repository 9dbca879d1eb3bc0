#include "core/engine/carrier.h"

#include <algorithm>
#include <utility>

namespace ciranda {
namespace {

// The largest number of frames that may wait for room in the host's log; the next ones stay in the
// sockets. Frames that wait for room in a connection are limited only by the operations that ranks
// may have in flight. A limit there could make two hosts wait for each other to read.
constexpr std::size_t kUndeliveredMax = 1024;

}  // namespace

Carrier::Carrier(std::vector<ControlConnection> control, const Hosts& hosts, int host,
                 const Negotiator& negotiator, std::uint64_t patience_ns)
    : relay_(std::move(control), hosts, host), aggregator_(hosts, host, negotiator, patience_ns) {}

Result<bool> Carrier::advance(const Deliver& deliver, std::uint64_t now_ns, bool caught_up) {
  const auto arrived = relay_.advance(
      [&](Rank from, std::span<const std::byte> frame) {
        return aggregator_.arrive(from, frame, now_ns);
      },
      room());
  if (!arrived) return arrived.error();
  CIRANDA_TRY(aggregator_.flush(now_ns, caught_up));
  bool moved = arrived.value();
  for (auto& outbox = aggregator_.outbox(); !outbox.empty() && relay_.has_room(); moved = true) {
    const CarriedFrame frame = std::move(outbox.front());
    outbox.pop_front();
    CIRANDA_TRY(relay_.send(frame.from, frame.bytes));
  }
  return hand_over(deliver) || moved;
}

void Carrier::take_last_words(int host, const Deliver& deliver, std::uint64_t now_ns) {
  relay_.take_last_words(host, [&](Rank from, std::span<const std::byte> frame) {
    return aggregator_.arrive(from, frame, now_ns);
  });
  (void)aggregator_.flush(now_ns, /*caught_up=*/false);
  hand_over(deliver);
}

bool Carrier::hand_over(const Deliver& deliver) {
  bool moved = false;
  auto& inbox = aggregator_.inbox();
  while (!inbox.empty() && deliver(inbox.front().from, inbox.front().bytes)) {
    inbox.pop_front();
    moved = true;
  }
  return moved;
}

void Carrier::watched(std::vector<Watched>& out) const {
  relay_.watched(out, /*wanted=*/room() > 0);
}

bool Carrier::idle() const {
  return aggregator_.inbox().empty() && aggregator_.outbox().empty() && relay_.idle();
}

std::size_t Carrier::room() const {
  return kUndeliveredMax - std::min(kUndeliveredMax, aggregator_.inbox().size());
}

}  // namespace ciranda
