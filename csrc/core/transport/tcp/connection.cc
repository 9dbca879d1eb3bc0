#include "core/transport/tcp/connection.h"

#include <algorithm>

#include "core/base/assert.h"

namespace ciranda {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} * 1024;

}  // namespace

ControlConnection::ControlConnection(ProvenSocket socket)
    : stream_(std::move(socket.stream)),
      peer_(socket.session.peer),
      address_(std::move(socket.address)),
      sealer_(std::move(socket.session.send_key)),
      opener_(std::move(socket.session.receive_key)) {
  CIRANDA_ASSERT(socket.session.purpose != Purpose::kData);
}

Error ControlConnection::about_peer(Error error) const {
  error.text = "rank " + std::to_string(peer_) + " at " + address_ + ": " + error.text;
  error.rank = peer_;
  return error;
}

Status ControlConnection::send(std::uint8_t type, std::span<const std::byte> payload) {
  sealer_.seal(type, payload, queued_);
  return flush();
}

Status ControlConnection::flush() {
  while (has_queued()) {
    auto count = stream_.send(std::span(queued_).subspan(sent_));
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
  const Status answers = ciranda::check_answers(stream_.fd(), limit_ms);
  return answers ? answers : about_peer(answers.error());
}

Result<std::optional<OpenedFrame>> ControlConnection::receive() {
  for (;;) {
    if (!unread_.empty()) {
      auto frame = opener_.open(unread_);
      if (!frame) return about_peer(frame.error());
      if (frame.value().has_value()) return frame;
    }
    CIRANDA_ASSERT(unread_.empty());  // open() takes all bytes before it asks for more
    received_.resize(kReadBytes);
    auto count = stream_.receive(received_);
    if (!count) return about_peer(count.error());
    if (count.value() == 0) return std::optional<OpenedFrame>();
    unread_ = std::span(received_).first(count.value());
  }
}

}  // namespace ciranda
