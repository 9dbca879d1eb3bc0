#include "core/engine/peer_watch.h"

#include <algorithm>
#include <string>

namespace ciranda {
namespace {

// Keep-alives are one second apart, so the last answer within the timeout may still be on its way.
constexpr std::uint64_t kLastAnswerMs = 500;

}  // namespace

Status PeerWatch::start() {
  auto sockets = SocketSet::create();
  if (!sockets) return sockets.error();
  rank_.sockets = std::move(sockets).value();
  for (int local = 0; local < rank_.mesh.size; ++local) {
    const LocalMesh::Peer& peer = rank_.peer(local);
    const int descriptor = local == rank_.mesh.self ? peer.doorbell.get() : peer.socket.get();
    CIRANDA_TRY(rank_.sockets.add(descriptor, static_cast<std::uint32_t>(local)));
  }
  return {};
}

Result<bool> PeerWatch::receive_segments(int local) {
  const LocalMesh::Peer& peer = rank_.peer(local);
  while (peer.socket.valid()) {
    auto received = receive_message(peer.socket.get());
    if (!received && received.error().code == ErrorCode::kRankLost) return false;
    if (!received) {
      Error error = received.error();
      error.rank = rank_.global(local);
      return error;
    }
    if (!received.value()) return true;
    ReceivedMessage& message = *received.value();
    auto segment = MemorySegment::open(std::move(message.fd), message.message.bytes);
    if (!segment) return segment.error();
    CIRANDA_TRY(rank_.segments.add(local, message.message.segment, std::move(segment).value()));
  }
  return true;
}

// The owner announced the segment before it sent `ref`, so the announcement has been received or
// waits in the socket. If the owner has closed the socket since, the background thread handles
// that, after the frames that came before.
Result<std::byte*> PeerWatch::resolve(int owner, const ArenaRef& ref, std::uint64_t bytes) {
  auto place = rank_.segments.resolve(owner, ref, bytes);
  if (!place || place.value() != nullptr) return place;
  const Result<bool> open = receive_segments(owner);
  if (!open) return open.error();
  place = rank_.segments.resolve(owner, ref, bytes);
  if (!place || place.value() != nullptr) return place;
  const Rank rank = rank_.global(owner);
  return Error{.code = ErrorCode::kMalformed,
               .text = "rank " + std::to_string(rank) + " never announced arena segment " +
                       std::to_string(ref.segment),
               .rank = rank};
}

Result<std::byte*> PeerWatch::look_up(int owner, const ArenaRef& ref, std::uint64_t bytes) {
  auto place = rank_.segments.resolve(owner, ref, bytes);
  if (place && place.value() == nullptr) unannounced_ = owner;
  return place;
}

Error PeerWatch::lost(int local) const {
  const Rank rank = rank_.global(local);
  return {.code = ErrorCode::kRankLost,
          .text = "rank " + std::to_string(rank) + " (pid " +
                  std::to_string(rank_.peer(local).pid) +
                  ") was lost: it ended without shutting down",
          .rank = rank};
}

Error PeerWatch::lost_host(const DataLink& link, const std::string& why) const {
  return {.code = ErrorCode::kRankLost,
          .text = "rank " + std::to_string(link.peer) + " at " + link.address + ": " + why +
                  "; host " + std::to_string(host_of(link.peer)) + " is lost",
          .rank = link.peer};
}

bool PeerWatch::due(std::uint64_t now_ns) {
  if (now_ns < next_look_ns_) return false;
  next_look_ns_ = now_ns + kLookNs;
  return true;
}

std::uint64_t PeerWatch::answer_limit_ms() const {
  return rank_.options.peer_timeout_ms + kLastAnswerMs;
}

int PeerWatch::host_of(Rank rank) const {
  const auto on = [rank](const std::vector<Rank>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  const Hosts& hosts = rank_.remote.hosts;
  return static_cast<int>(std::find_if(hosts.begin(), hosts.end(), on) - hosts.begin());
}

}  // namespace ciranda
