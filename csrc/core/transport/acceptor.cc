#include "core/transport/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "core/transport/job_key.h"
#include "core/transport/tcp.h"

namespace ciranda {
namespace {

Fd open_spare() {
  return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

// Whoever has an IPv6 address has a whole network of 64 bits of them.
Throttle::Source source_of(const SocketAddress& address) {
  Throttle::Source source = 0;
  if (address.family() == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    std::memcpy(&source, &in6->sin6_addr, sizeof source);
  } else {
    source = reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr;
  }
  return source;
}

bool is_out_of_descriptors(int reason) {
  return reason == EMFILE || reason == ENFILE;
}

}  // namespace

Result<Acceptor> Acceptor::create(std::vector<Fd> listeners, const ChannelKeys& keys,
                                  const ServerHandshake::Side& side, std::uint64_t proof_ms) {
  CIRANDA_ASSERT(!listeners.empty());
  Acceptor acceptor(keys, side, proof_ms);
  acceptor.epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!acceptor.epoll_.valid()) return Error::from_errno("epoll_create1", errno);
  acceptor.spare_ = open_spare();
  acceptor.listeners_ = std::move(listeners);
  for (const Fd& listener : acceptor.listeners_) CIRANDA_TRY(acceptor.watch(listener.get()));
  return acceptor;
}

Status Acceptor::watch(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return Error::from_errno("epoll_ctl", errno);
}

std::optional<std::uint64_t> Acceptor::next_deadline_ns() const {
  if (strangers_.empty()) return std::nullopt;
  const Stranger& oldest = strangers_.front();  // all have the same patience
  return paused_ ? oldest.turn_over_ns : oldest.deadline_ns;
}

Result<std::vector<ProvenSocket>> Acceptor::poll(std::uint64_t now_ns) {
  if (!keys_->of(Channel::kControl).intact()) {
    return Error{.code = ErrorCode::kForked, .text = "a forked child takes no calls of the job"};
  }
  std::vector<ProvenSocket> proven;
  expire(now_ns);
  epoll_event events[kStrangersMax + 2];
  const int count = ::epoll_wait(epoll_.get(), events, std::size(events), 0);
  if (count < 0 && errno != EINTR) return Error::from_errno("epoll_wait", errno);
  // Those who are here already first: new calls may cost them their place.
  for (int i = 0; i < count; ++i) {
    const auto stranger = std::ranges::find(strangers_, events[i].data.fd,
                                            [](const Stranger& each) { return each.stream.fd(); });
    if (stranger == strangers_.end()) continue;  // a listener
    auto connection = hear(*stranger);
    if (!connection) {
      drop(stranger, connection.error().text);
    } else if (connection.value().has_value()) {
      proven.push_back(std::move(*connection.value()));
      strangers_.erase(stranger);
    }
  }
  int budget = kAcceptedPerPollMax;
  for (const Fd& listener : listeners_) CIRANDA_TRY(take_calls(listener.get(), now_ns, budget));
  pause(full(now_ns));
  return proven;
}

Status Acceptor::take_calls(int listener, std::uint64_t now_ns, int& budget) {
  for (; budget > 0; --budget) {
    if (full(now_ns)) break;
    Fd socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      take_call(std::move(socket), now_ns);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (is_out_of_descriptors(errno)) {
      shed_call(listener);
    } else if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EOPNOTSUPP) {
      return Error::from_errno("cannot take calls", errno);
    }  // else: the caller is gone already, or the network had a fault; the next call may be good
  }
  return {};
}

void Acceptor::take_call(Fd socket, std::uint64_t now_ns) {
  const auto address = peer_address(socket.get());
  if (!address) return;  // gone already
  const Endpoint endpoint = address.value().endpoint();
  const Throttle::Source source = source_of(address.value());
  if (!throttle_.admit(source, now_ns)) {
    ++turned_away_;
    last_reason_ = to_string(endpoint) + ": too many come from its address";
    return turn_away(std::move(socket));
  }
  if (strangers_.size() == kStrangersMax) make_room(now_ns);
  std::unique_ptr<TlsSession> tls;
  if (keys_->tls != nullptr) {
    auto session = keys_->tls->server();
    if (!session) {
      ++turned_away_;
      last_reason_ = session.error().text;
      return;
    }
    tls = std::move(session).value();
  }
  Nonce nonce;
  fill_random(nonce);
  const Status watched = watch(socket.get());
  strangers_.push_back({.stream = Stream(std::move(socket), std::move(tls)),
                        .host = endpoint.host,
                        .address = to_string(endpoint),
                        .source = source,
                        .turn_over_ns = now_ns + std::min(kTurnMs * 1'000'000, proof_ns_),
                        .deadline_ns = now_ns + proof_ns_,
                        .handshake = ServerHandshake(*keys_, side_, nonce)});
  if (!watched) drop(std::prev(strangers_.end()), watched.error().text);
}

// Of those who had their turn, the oldest of the host that holds the most places goes: one host
// that floods does not push out the others.
void Acceptor::make_room(std::uint64_t now_ns) {
  std::map<std::string_view, int> places;
  for (const Stranger& each : strangers_) ++places[each.host];
  Place leaves = strangers_.begin();
  for (Place each = leaves; each != strangers_.end() && each->turn_over_ns <= now_ns; ++each) {
    if (places[each->host] > places[leaves->host]) leaves = each;
  }
  drop(leaves,
       "it was the oldest of " + std::to_string(kStrangersMax) + " that had proven nothing");
}

bool Acceptor::full(std::uint64_t now_ns) const {
  return strangers_.size() == kStrangersMax && strangers_.front().turn_over_ns > now_ns;
}

// While the listeners are not watched, callers wait in the kernel and wake nobody.
void Acceptor::pause(bool paused) {
  if (std::exchange(paused_, paused) == paused) return;
  for (const Fd& listener : listeners_) {
    epoll_event event{.events = paused ? 0u : static_cast<unsigned>(EPOLLIN),
                      .data = {.fd = listener.get()}};
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener.get(), &event);
  }
}

// Without a descriptor a call could not even be refused, and the listener would stay readable.
void Acceptor::shed_call(int listener) {
  spare_.reset();
  turn_away(Fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)));
  spare_ = open_spare();
  ++turned_away_;
  last_reason_ = "this process has no file descriptor left for it; raise the limit (ulimit -n)";
}

// Reads what this caller may say now and answers. Gives its connection once it is proven.
Result<std::optional<ProvenSocket>> Acceptor::hear(Stranger& stranger) {
  auto established = stranger.stream.establish();
  if (!established) return established.error();
  if (!established.value()) return std::optional<ProvenSocket>();
  ServerHandshake& handshake = stranger.handshake;
  std::byte buffer[kHelloBytes];
  std::vector<std::byte> reply;
  for (;;) {
    auto count = stranger.stream.receive(std::span(buffer).first(handshake.wanted()));
    if (!count) return count.error();
    if (count.value() == 0) return std::optional<ProvenSocket>();
    const Status heard = handshake.receive(std::span(buffer).first(count.value()), reply);
    if (!heard) {
      (void)answer(stranger, reply);  // see ServerHandshake::receive
      return heard.error();
    }
    if (handshake.session().has_value()) break;  // whether it is admitted comes first
    CIRANDA_TRY(answer(stranger, reply));
    reply.clear();
  }
  CIRANDA_TRY(set_connection_options(stranger.stream.fd()));
  auto admitted = roster_.admit(*handshake.hello(), stranger.address);
  if (!admitted) return admitted.error();
  if (Status answered = answer(stranger, reply); !answered) {
    forget(*handshake.session());
    return answered.error();
  }
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger.stream.fd(), nullptr);
  throttle_.give_back(stranger.source);
  return std::optional(ProvenSocket{.stream = std::move(stranger.stream),
                                    .session = std::move(*handshake.session()),
                                    .address = std::move(stranger.address)});
}

// An answer is shorter than any socket's buffer: who leaves no room for it has not read.
Status Acceptor::answer(Stranger& stranger, std::span<const std::byte> reply) {
  auto sent = stranger.stream.send(reply);
  if (!sent) return sent.error();
  if (sent.value() == reply.size()) return {};
  return Error{.code = ErrorCode::kRankLost, .text = "it reads no answer"};
}

void Acceptor::drop(Place stranger, const std::string& why) {
  ++turned_away_;
  last_reason_ = stranger->address + ": " + why;
  // Closing is not enough: a forked child may hold the socket too.
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger->stream.fd(), nullptr);
  turn_away(stranger->stream.release());
  strangers_.erase(stranger);
}

void Acceptor::close_listeners() noexcept {
  for (Fd& listener : listeners_) listener.reset();
}

void Acceptor::expire(std::uint64_t now_ns) {
  while (!strangers_.empty() && strangers_.front().deadline_ns <= now_ns) {
    drop(strangers_.begin(), "it proved nothing in time");
  }
}

std::optional<std::string> Acceptor::summary(std::uint64_t now_ns) {
  if (turned_away_ == turned_away_told_ || now_ns < next_summary_ns_) return std::nullopt;
  const std::uint64_t count = turned_away_ - turned_away_told_;
  turned_away_told_ = turned_away_;
  next_summary_ns_ = now_ns + kSummaryMs * 1'000'000;
  return "turned away " + std::to_string(count) + (count == 1 ? " caller" : " callers") +
         "; the last, " + last_reason_;
}

}  // namespace ciranda
