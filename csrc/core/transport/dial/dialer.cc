#include "core/transport/dial/dialer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/transport/dial/job_key.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {
namespace {

// Pauses between two rounds over the candidates; short at first, because ranks start together.
constexpr std::uint64_t kFirstPauseMs = 10;
constexpr std::uint64_t kLongestPauseMs = 250;
// Timeout for the last answer. A dialer that calls again while a slow or lossy network delays this
// answer leaves the peer with a proven connection that nobody holds.
constexpr std::uint64_t kWelcomeMs = 10'000;

// Begins to connect, in clear or with TLS if the job uses it.
Result<Stream> begin_stream(const SocketAddress& address, const ConnectionKeys& keys) {
  auto socket = begin_connect(address);
  if (!socket) return socket.error();
  if (keys.tls == nullptr) return Stream(std::move(socket).value());
  auto tls = keys.tls->client();
  if (!tls) return tls.error();
  return Stream(std::move(socket).value(), std::move(tls).value());
}

}  // namespace

Dialer::Dialer(const ConnectionKeys& keys, const Hello& hello, std::vector<Endpoint> candidates,
               std::uint64_t deadline_ns)
    : keys_(keys),
      hello_(hello),
      cookie_(cookie_of(keys, hello.to)),
      candidates_(std::move(candidates)),
      deadline_ns_(deadline_ns),
      reasons_(candidates_.size()),
      pause_ms_(kFirstPauseMs) {
  CIRANDA_ASSERT(!candidates_.empty());
}

Result<std::optional<ProvenSocket>> Dialer::advance(std::uint64_t now_ns) {
  for (;;) {
    if (attempt_) {
      auto proven = advance_attempt(now_ns);
      if (proven) return proven;
      // Another attempt would fail in the same way.
      const ErrorCode code = proven.error().code;
      if (code == ErrorCode::kForked || code == ErrorCode::kUnsupported) return proven;
      give_up(proven.error());
    } else if (candidate_ < candidates_.size()) {
      if (now_ns < resume_ns_) return std::optional<ProvenSocket>();
      begin_attempt(now_ns);
    } else {
      if (now_ns + pause_ms_ * kMsInNs >= deadline_ns_) return unreachable();
      resume_ns_ = now_ns + pause_ms_ * kMsInNs;
      pause_ms_ = std::min(2 * pause_ms_, kLongestPauseMs);
      candidate_ = 0;
    }
  }
}

Watched Dialer::watched() const {
  if (!attempt_) return {};
  return {.socket = attempt_->stream.fd(),
          .readable = attempt_->connected,
          .writable = !attempt_->connected || (attempt_->established && !attempt_->unsent.empty())};
}

std::uint64_t Dialer::next_deadline_ns() const {
  return attempt_ ? attempt_->deadline_ns : resume_ns_;
}

void Dialer::begin_attempt(std::uint64_t now_ns) {
  CIRANDA_ASSERT(!attempt_ && candidate_ < candidates_.size());
  if (!begun_ns_) begun_ns_ = now_ns;
  if (addresses_.empty()) {
    auto found = resolve(candidates_[candidate_]);
    if (!found) return give_up(found.error());
    addresses_ = std::move(found).value();
  }
  const SocketAddress address = addresses_.front();
  addresses_.erase(addresses_.begin());
  auto stream = begin_stream(address, keys_);
  if (!stream) return give_up(stream.error());
  Hello hello = hello_;
  fill_random(hello.nonce);
  ClientHandshake handshake(keys_, hello);
  std::vector<std::byte> unsent(handshake.hello().begin(), handshake.hello().end());
  attempt_.emplace(Attempt{.address = address,
                           .stream = std::move(stream).value(),
                           .deadline_ns = std::min(deadline_ns_, now_ns + kProofMs * kMsInNs),
                           .handshake = std::move(handshake),
                           .unsent = std::move(unsent)});
}

Result<std::optional<ProvenSocket>> Dialer::advance_attempt(std::uint64_t now_ns) {
  Attempt& attempt = *attempt_;
  if (!attempt.connected) {
    auto connected = finish_connect(attempt.stream.fd(), attempt.address);
    if (!connected) return connected.error();
    attempt.connected = connected.value();
    has_connected_ = has_connected_ || attempt.connected;
  }
  if (attempt.connected) {
    const bool answered = attempt.handshake.answered();
    auto proven = prove();
    if (!proven) return proven.error();
    if (!answered && attempt.handshake.answered()) {
      attempt.deadline_ns = std::min(deadline_ns_, now_ns + kWelcomeMs * kMsInNs);
    }
    if (proven.value()) {
      return std::optional(ProvenSocket{.stream = std::move(attempt.stream),
                                        .session = std::move(*attempt.handshake.session()),
                                        .address = to_string(attempt.address.endpoint())});
    }
  }
  if (now_ns < attempt.deadline_ns) return std::optional<ProvenSocket>();
  return Error{.code = ErrorCode::kTimeout,
               .text = attempt.connected ? "it did not prove in time that it belongs to this job"
                                         : "nobody answered at " +
                                               to_string(attempt.address.endpoint()) + " in time"};
}

// Continues the handshake. Returns true when both sides are proven.
Result<bool> Dialer::prove() {
  Attempt& attempt = *attempt_;
  const Error hung_up{
      .code = ErrorCode::kRankLost,
      .text =
          "it closed the connection: it may belong to another job, epoch or version, hold another "
          "key, or have this rank already; its log says which"};
  if (!attempt.cookie_sent) {
    if (!send_cookie(attempt.stream.fd())) return hung_up;
    attempt.cookie_sent = true;
  }
  if (!attempt.established) {
    auto established = attempt.stream.establish();
    // A peer that speaks TLS sends an alert before it closes the connection.
    if (!established && established.error().code == ErrorCode::kRankLost) {
      return Error{.code = ErrorCode::kRankLost,
                   .text = "it closed the connection when TLS began: probably " +
                           std::string(kTlsForAllOrNone)};
    }
    if (!established || !established.value()) return established;
    attempt.established = true;
  }
  std::byte buffer[kHelloBytes];
  for (;;) {
    if (!attempt.unsent.empty()) {
      auto sent = attempt.stream.send(attempt.unsent);
      if (!sent) return hung_up;
      attempt.unsent.erase(attempt.unsent.begin(),
                           attempt.unsent.begin() + static_cast<std::ptrdiff_t>(sent.value()));
      if (!attempt.unsent.empty()) return false;
    }
    if (attempt.handshake.session().has_value()) return true;
    CIRANDA_ASSERT(attempt.handshake.wanted() > 0 && attempt.handshake.wanted() <= sizeof buffer);
    auto count = attempt.stream.receive(std::span(buffer).first(attempt.handshake.wanted()));
    if (!count) return hung_up;
    if (count.value() == 0) return false;
    CIRANDA_TRY(attempt.handshake.receive(std::span(buffer).first(count.value()), attempt.unsent));
  }
}

// MSG_MORE puts the cookie and the following bytes into one packet. The filter of the listener
// would drop a second packet, which does not begin with the cookie (see cookie_filter.h).
bool Dialer::send_cookie(int socket) const {
  return ::send(socket, cookie_.data(), cookie_.size(), MSG_MORE | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(cookie_.size());  // a new connection has room for all of it
}

// Ends the attempt at one address; the candidate may have more of them.
void Dialer::give_up(const Error& why) {
  CIRANDA_ASSERT(candidate_ < reasons_.size());
  attempt_.reset();
  // A timeout does not replace an earlier reason, which says more.
  std::string& reason = reasons_[candidate_];
  if (reason.empty() || why.code != ErrorCode::kTimeout) reason = why.text;
  if (addresses_.empty()) ++candidate_;
}

Error Dialer::unreachable() const {
  std::string text = called_name(hello_.purpose, hello_.to) + " could not be reached in time";
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    text += "; at " + to_string(candidates_[i]) + ": " + reasons_[i];
  }
  return {.code = ErrorCode::kTimeout, .text = std::move(text), .rank = hello_.to};
}

Result<ProvenSocket> connect_authenticated(const ConnectionKeys& keys, const Hello& hello,
                                           std::span<const Endpoint> candidates,
                                           std::uint64_t deadline_ns) {
  Dialer dialer(keys, hello, {candidates.begin(), candidates.end()}, deadline_ns);
  for (;;) {
    auto proven = dialer.advance(monotonic_ns());
    if (!proven) return proven.error();
    if (proven.value()) return std::move(*proven.value());
    CIRANDA_TRY(wait_for(dialer.watched(), dialer.next_deadline_ns()));
  }
}

}  // namespace ciranda
