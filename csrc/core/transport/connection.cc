#include "core/transport/connection.h"

#include <poll.h>

#include <algorithm>

#include "core/base/clock.h"
#include "core/transport/job_key.h"
#include "core/transport/socket_io.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kMsInNs = 1'000'000;
constexpr std::size_t kReadBytes = std::size_t{64} * 1024;
// Between two rounds over the candidates: soon at first, because ranks start together.
constexpr std::uint64_t kFirstPauseMs = 10;
constexpr std::uint64_t kLongestPauseMs = 250;

Status send_all(int socket, std::span<const std::byte> bytes, std::uint64_t deadline_ns) {
  while (!bytes.empty()) {
    auto sent = send_some(socket, bytes);
    if (!sent) return sent.error();
    bytes = bytes.subspan(sent.value());
    if (bytes.empty()) break;
    auto writable = wait_writable(socket, deadline_ns);
    if (!writable) return writable.error();
    if (!writable.value()) return Error{.code = ErrorCode::kTimeout, .text = "it reads nothing"};
  }
  return {};
}

Result<Session> prove(int socket, const ChannelKeys& keys, const Hello& hello,
                      std::uint64_t deadline_ns) {
  ClientHandshake handshake(keys, hello);
  CIRANDA_TRY(send_all(socket, handshake.hello(), deadline_ns));
  std::byte buffer[kHelloBytes];
  std::vector<std::byte> reply;
  while (!handshake.session().has_value()) {
    auto readable = wait_readable(socket, deadline_ns);
    if (!readable) return readable.error();
    if (!readable.value()) {
      return Error{.code = ErrorCode::kTimeout,
                   .text = "it did not prove in time that it is a rank of this job"};
    }
    auto count = receive_some(socket, std::span(buffer).first(handshake.wanted()));
    if (!count) {
      return Error{.code = ErrorCode::kRankLost,
                   .text =
                       "it hung up: it may be of another job, epoch or version, have another "
                       "key or have this rank already; its own log says which"};
    }
    CIRANDA_TRY(handshake.receive(std::span(buffer).first(count.value()), reply));
    CIRANDA_TRY(send_all(socket, reply, deadline_ns));
    reply.clear();
  }
  return std::move(*handshake.session());
}

Result<ProvenSocket> attempt(const ChannelKeys& keys, Hello hello, const SocketAddress& address,
                             std::uint64_t deadline_ns) {
  auto socket = connect_tcp(address, deadline_ns);
  if (!socket) return socket.error();
  fill_random(hello.nonce);
  auto session = prove(socket.value().get(), keys, hello, deadline_ns);
  if (!session) return session.error();
  return ProvenSocket{.fd = std::move(socket).value(),
                      .session = std::move(session).value(),
                      .address = to_string(address.endpoint())};
}

// Tries all addresses of one candidate.
Result<ProvenSocket> attempt(const ChannelKeys& keys, const Hello& hello, const Endpoint& candidate,
                             std::uint64_t deadline_ns) {
  auto addresses = resolve(candidate);
  if (!addresses) return addresses.error();
  Error why;
  for (const SocketAddress& address : addresses.value()) {
    const std::uint64_t limit_ns = std::min(deadline_ns, monotonic_ns() + kProofMs * kMsInNs);
    auto proven = attempt(keys, hello, address, limit_ns);
    if (proven) return proven;
    why = proven.error();
  }
  return why;
}

Error unreachable(Rank rank, std::span<const Endpoint> candidates,
                  std::span<const std::string> reasons) {
  std::string text = "rank " + std::to_string(rank) + " could not be reached in time";
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    text += "; at " + to_string(candidates[i]) + ": " + reasons[i];
  }
  return {.code = ErrorCode::kTimeout, .text = std::move(text), .rank = rank};
}

}  // namespace

Result<ProvenSocket> connect_authenticated(const ChannelKeys& keys, Hello hello,
                                           std::span<const Endpoint> candidates,
                                           std::uint64_t deadline_ns) {
  CIRANDA_ASSERT(!candidates.empty());
  std::vector<std::string> reasons(candidates.size());
  std::uint64_t pause_ms = kFirstPauseMs;
  for (;;) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      auto proven = attempt(keys, hello, candidates[i], deadline_ns);
      if (proven || proven.error().code == ErrorCode::kForked) return proven;
      // Whoever was too slow in the last round may have said in an earlier one what was wrong.
      if (reasons[i].empty() || proven.error().code != ErrorCode::kTimeout) {
        reasons[i] = proven.error().text;
      }
    }
    if (monotonic_ns() + pause_ms * kMsInNs >= deadline_ns) {
      return unreachable(hello.to, candidates, reasons);
    }
    ::poll(nullptr, 0, static_cast<int>(pause_ms));
    pause_ms = std::min(2 * pause_ms, kLongestPauseMs);
  }
}

ControlConnection::ControlConnection(ProvenSocket socket)
    : fd_(std::move(socket.fd)),
      peer_(socket.session.peer),
      address_(std::move(socket.address)),
      sealer_(std::move(socket.session.send_key)),
      opener_(std::move(socket.session.receive_key)) {
  CIRANDA_ASSERT(socket.session.channel != Channel::kData);
}

Error ControlConnection::about_peer(Error error) const {
  error.text = "rank " + std::to_string(peer_) + " at " + address_ + ": " + error.text;
  error.rank = peer_;
  return error;
}

Status ControlConnection::send(std::uint8_t type, std::span<const std::byte> payload) {
  if (queued_.size() - sent_ > kQueuedBytesMax) {
    return about_peer({.code = ErrorCode::kLimit,
                       .text = "it reads nothing, and " + std::to_string(queued_.size() - sent_) +
                               " bytes wait for it"});
  }
  sealer_.seal(type, payload, queued_);
  return flush();
}

Status ControlConnection::flush() {
  while (has_queued()) {
    auto count = send_some(fd_.get(), std::span(queued_).subspan(sent_));
    if (!count) return about_peer(count.error());
    if (count.value() == 0) break;
    sent_ += count.value();
  }
  if (2 * sent_ >= queued_.size()) {  // moves each byte at most once
    queued_.erase(queued_.begin(), queued_.begin() + static_cast<std::ptrdiff_t>(sent_));
    sent_ = 0;
  }
  return {};
}

Status ControlConnection::check_answers(std::uint64_t limit_ms) const {
  const Status answers = ciranda::check_answers(fd_.get(), limit_ms);
  return answers ? answers : about_peer(answers.error());
}

Result<std::optional<OpenedFrame>> ControlConnection::receive() {
  for (;;) {
    if (!unread_.empty()) {
      auto frame = opener_.open(unread_);
      if (!frame) return about_peer(frame.error());
      if (frame.value().has_value()) return frame;
    }
    received_.resize(kReadBytes);
    auto count = receive_some(fd_.get(), received_);
    if (!count) return about_peer(count.error());
    if (count.value() == 0) return std::optional<OpenedFrame>();
    unread_ = std::span(received_).first(count.value());
  }
}

}  // namespace ciranda
