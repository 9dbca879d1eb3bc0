#include "core/job/member.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {
namespace {

constexpr std::size_t kOrderBytesMax = std::size_t{64} * 1024;

Error launcher_is_gone() {
  return {.code = ErrorCode::kRankLost,
          .text = "the launcher of this elastic job has ended, so nobody names its ranks any more"};
}

}  // namespace

Member::Member(const MemberConfig& config) : incarnation_(config.incarnation), socket_(config.fd) {
  CIRANDA_ASSERT(config.fd >= 0 && config.incarnation > 0);  // by read_config()
  (void)::fcntl(socket_.get(), F_SETFD, FD_CLOEXEC);
  // Without the thread the arbiter hears no beat, and never misses one.
  (void)beats_.start("ciranda-member", [socket = socket_.get()] {
    static const std::vector<std::byte> kBeat = member::encode(member::FromRank(member::Beat{}));
    // Never blocks: a launcher that does not read needs no more beats.
    (void)::send(socket, kBeat.data(), kBeat.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return Attention{.deadline_ns = monotonic_ns() + member::kBeatNs};
  });
}

Status Member::say(const member::FromRank& message) const {
  const Status sent = send_packet(socket_.get(), member::encode(message), {});
  return sent ? sent : launcher_is_gone();
}

Result<Member::Order> Member::newest() {
  const MutexLock lock(mutex_);
  std::array<std::byte, kOrderBytesMax> bytes;
  for (;;) {
    auto packet = receive_packet(socket_.get(), bytes);
    if (!packet) return packet.error();
    if (packet.value().what == Received::kNothing) return order_;
    if (packet.value().what == Received::kClosed) return launcher_is_gone();
    auto message = member::decode_from_arbiter(std::span(bytes).first(packet.value().bytes));
    if (!message) return message.error();
    if (std::holds_alternative<member::Over>(message.value())) {
      order_.over = true;
      continue;
    }
    auto& epoch = std::get<member::NewEpoch>(message.value());
    const bool listed = std::ranges::find(epoch.members, incarnation_) != epoch.members.end();
    const bool newer = !order_.epoch || epoch.number > order_.epoch->number;
    if (listed && newer) order_.epoch = std::move(epoch);
  }
}

Result<bool> Member::wait(std::uint64_t timeout_ms) const {
  return wait_readable(socket_.get(), monotonic_ns() + timeout_ms * 1'000'000);
}

}  // namespace ciranda
