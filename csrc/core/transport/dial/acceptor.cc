#include "core/transport/dial/acceptor.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/assert.h"
#include "core/transport/dial/cookie_filter.h"
#include "core/transport/dial/job_key.h"

namespace ciranda {
namespace {

Fd open_spare() {
  return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

bool is_out_of_descriptors(int reason) {
  return reason == EMFILE || reason == ENFILE;
}

// Returns an invalid Fd if nobody calls or accept4 fails; errno says which.
Fd accept_call(int listener, SocketAddress& from) {
  from.length = sizeof from.storage;
  return Fd(::accept4(listener, reinterpret_cast<sockaddr*>(&from.storage), &from.length,
                      SOCK_NONBLOCK | SOCK_CLOEXEC));
}

}  // namespace

Result<Acceptor> Acceptor::create(std::vector<Fd> listeners, const ConnectionKeys& keys,
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
  if (strangers_.empty()) return guard_ends_ns_;
  const Stranger& oldest = strangers_.front();  // all strangers get the same time
  const std::uint64_t next_ns = paused_ ? oldest.turn_over_ns : oldest.deadline_ns;
  return std::min(next_ns, guard_ends_ns_.value_or(next_ns));
}

Result<std::vector<ProvenSocket>> Acceptor::poll(std::uint64_t now_ns) {
  if (!keys_->of(Purpose::kControl).intact()) {
    return Error{.code = ErrorCode::kForked,
                 .text = "a forked child accepts no connections of the job"};
  }
  std::vector<ProvenSocket> proven;
  expire(now_ns);
  lower_guard(now_ns);
  epoll_event events[kStrangersMax + 2];
  const int count = ::epoll_wait(epoll_.get(), events, std::size(events), 0);
  if (count < 0 && errno != EINTR) return Error::from_errno("epoll_wait", errno);
  // Hears the present strangers first, because new callers may take their places.
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
  pause(!has_place(/*showed_cookie=*/true, now_ns));
  return proven;
}

Status Acceptor::take_calls(int listener, std::uint64_t now_ns, int& budget) {
  for (; budget > 0; --budget) {
    if (!has_place(/*showed_cookie=*/true, now_ns)) break;
    SocketAddress from;
    Fd socket = accept_call(listener, from);
    if (socket.valid()) {
      take_call(std::move(socket), from, now_ns);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (is_out_of_descriptors(errno)) {
      if (!take_call_with_spare(listener, now_ns)) break;
    } else if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EOPNOTSUPP) {
      return Error::from_errno("cannot accept connections", errno);
    }  // else: the caller is gone already or the network failed; the next call may succeed
  }
  return {};
}

void Acceptor::take_call(Fd socket, const SocketAddress& from, std::uint64_t now_ns) {
  let_all_in(socket.get());
  Stranger caller{.stream = Stream(std::move(socket)),
                  .from = from,
                  .turn_over_ns = now_ns + std::min(kTurnMs * 1'000'000, proof_ns_),
                  .deadline_ns = now_ns + proof_ns_};
  caller.cookie.expect(sizeof(Cookie));
  const Status heard = hear_cookie(caller);
  if (!caller.showed_cookie && !gets_turn(now_ns)) {
    return refuse(std::move(caller.stream), from,
                  "too many callers came without the job's cookie; for " +
                      std::to_string(kGuardMs / 1'000) +
                      " s this process answers only callers that have it");
  }
  if (!heard) return refuse(std::move(caller.stream), from, heard.error().text);
  CIRANDA_ASSERT(strangers_.size() <= kStrangersMax);
  if (strangers_.size() == kStrangersMax) {
    CIRANDA_ASSERT(caller.showed_cookie || !least_welcome()->showed_cookie);  // by gets_turn()
    drop(least_welcome(), "it was the oldest of " + std::to_string(kStrangersMax) +
                              " callers that had not proven the job's key");
  }
  strangers_.push_back(std::move(caller));
  const Status watched = watch(strangers_.back().stream.fd());
  if (!watched) drop(std::prev(strangers_.end()), watched.error().text);
}

// Returns true if a caller without the cookie may have a place, else raises the guard. Such a
// caller never takes the place of one that showed the cookie.
bool Acceptor::gets_turn(std::uint64_t now_ns) {
  if (!guard_ends_ns_ && has_place(/*showed_cookie=*/false, now_ns) && throttle_.admit(now_ns)) {
    return true;
  }
  raise_guard(now_ns);
  return false;
}

// Returns true if a place is free or may be taken from the least welcome stranger. A caller with
// the cookie may take the place of a stranger without it. Otherwise a stranger keeps its place
// until its turn is over.
bool Acceptor::has_place(bool showed_cookie, std::uint64_t now_ns) {
  if (strangers_.size() < kStrangersMax) return true;
  const Entry other = least_welcome();
  const bool had_its_turn = other->turn_over_ns <= now_ns;
  return showed_cookie ? had_its_turn || !other->showed_cookie
                       : had_its_turn && !other->showed_cookie;
}

void Acceptor::raise_guard(std::uint64_t now_ns) {
  if (guard_ends_ns_) return;
  guard_ends_ns_ = now_ns + kGuardMs * 1'000'000;
  // If the kernel takes no filter, take_call() turns these callers away one by one.
  for (const Fd& listener : listeners_) (void)let_in_only(listener.get(), cookie_);
}

void Acceptor::lower_guard(std::uint64_t now_ns) {
  if (!guard_ends_ns_ || now_ns < *guard_ends_ns_) return;
  guard_ends_ns_.reset();
  for (const Fd& listener : listeners_) let_all_in(listener.get());
}

// Returns the stranger that loses its place to a caller with the cookie.
Acceptor::Entry Acceptor::least_welcome() {
  CIRANDA_ASSERT(!strangers_.empty());
  const auto showed_none = [](const Stranger& each) { return !each.showed_cookie; };
  const Entry oldest_without = std::ranges::find_if(strangers_, showed_none);
  return oldest_without != strangers_.end() ? oldest_without : strangers_.begin();
}

// While the listeners are not watched, callers wait in the kernel and wake no thread.
void Acceptor::pause(bool paused) {
  if (std::exchange(paused_, paused) == paused) return;
  for (const Fd& listener : listeners_) {
    epoll_event event{.events = paused ? 0u : static_cast<unsigned>(EPOLLIN),
                      .data = {.fd = listener.get()}};
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener.get(), &event);
  }
}

// Gives up the spare descriptor to take a call: without one the call could not even be refused, and
// the listener would stay readable. Returns false if nobody called. An accept without a descriptor
// does not tell, because the kernel looks for the descriptor first.
bool Acceptor::take_call_with_spare(int listener, std::uint64_t now_ns) {
  spare_.reset();
  SocketAddress from;
  Fd socket = accept_call(listener, from);
  spare_ = open_spare();
  if (!socket.valid()) return false;
  if (spare_.valid()) {  // another descriptor became free meanwhile
    take_call(std::move(socket), from, now_ns);
  } else {
    refuse(Stream(std::move(socket)), from,
           "this process has no file descriptor left for the caller; raise the limit (ulimit -n)");
    spare_ = open_spare();
  }
  return true;
}

Status Acceptor::hear_cookie(Stranger& stranger) {
  CIRANDA_ASSERT(!stranger.handshake);
  std::byte buffer[sizeof(Cookie)];
  CIRANDA_ASSERT(stranger.cookie.missing() <= sizeof buffer);
  auto count =
      receive_some(stranger.stream.fd(), std::span(buffer).first(stranger.cookie.missing()));
  if (!count) return count.error();
  stranger.cookie.take(std::span(buffer).first(count.value()));
  stranger.showed_cookie = equal_in_constant_time(stranger.cookie.bytes(), cookie_);
  return stranger.showed_cookie ? Status() : check_not_another_protocol(stranger.cookie.bytes());
}

// A caller with a wrong cookie gets a handshake too: its hello shows what is wrong with it.
Status Acceptor::begin_handshake(Stranger& stranger) {
  CIRANDA_ASSERT(stranger.cookie.missing() == 0 && !stranger.handshake);
  if (keys_->tls != nullptr) {
    auto tls = keys_->tls->server();
    if (!tls) return tls.error();
    stranger.stream = Stream(stranger.stream.release(), std::move(tls).value());
  }
  Nonce nonce;
  fill_random(nonce);
  stranger.handshake.emplace(*keys_, side_, nonce);
  return {};
}

// Reads and answers as much of the handshake as has come. Returns the connection when it is proven.
Result<std::optional<ProvenSocket>> Acceptor::hear(Stranger& stranger) {
  if (!stranger.handshake) {
    const bool took_turn = !stranger.showed_cookie;
    CIRANDA_TRY(hear_cookie(stranger));
    if (stranger.cookie.missing() > 0) return std::optional<ProvenSocket>();
    if (took_turn && stranger.showed_cookie) throttle_.give_back();
    CIRANDA_TRY(begin_handshake(stranger));
  }
  auto established = stranger.stream.establish();
  if (!established) return established.error();
  if (!established.value()) return std::optional<ProvenSocket>();
  ServerHandshake& handshake = *stranger.handshake;
  std::byte buffer[kHelloBytes];
  std::vector<std::byte> reply;
  for (;;) {
    CIRANDA_ASSERT(handshake.wanted() > 0 && handshake.wanted() <= sizeof buffer);
    auto count = stranger.stream.receive(std::span(buffer).first(handshake.wanted()));
    if (!count) return count.error();
    if (count.value() == 0) return std::optional<ProvenSocket>();
    const Status heard = handshake.receive(std::span(buffer).first(count.value()), reply);
    if (!heard) {
      (void)answer(stranger, reply);  // a version refusal, see ServerHandshake::receive
      return heard.error();
    }
    if (handshake.session().has_value()) break;  // the roster decides before the last answer
    CIRANDA_TRY(answer(stranger, reply));
    reply.clear();
  }
  CIRANDA_TRY(set_connection_options(stranger.stream.fd()));
  std::string address = to_string(stranger.from.endpoint());
  // A server has no roster: its protocol tells a worker that it came twice.
  if (!side_.is_server) {
    auto admitted = roster_.admit(*handshake.hello(), address);
    if (!admitted) return admitted.error();
  }
  if (Status answered = answer(stranger, reply); !answered) {
    forget(*handshake.session());
    return answered.error();
  }
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger.stream.fd(), nullptr);
  return std::optional(ProvenSocket{.stream = std::move(stranger.stream),
                                    .session = std::move(*handshake.session()),
                                    .address = std::move(address)});
}

// An answer is shorter than any socket's buffer, so a caller without room for it has read nothing.
Status Acceptor::answer(Stranger& stranger, std::span<const std::byte> reply) {
  auto sent = stranger.stream.send(reply);
  if (!sent) return sent.error();
  if (sent.value() == reply.size()) return {};
  return Error{.code = ErrorCode::kRankLost, .text = "it reads no answer"};
}

void Acceptor::refuse(Stream stream, const SocketAddress& from, const std::string& why) {
  ++turned_away_;
  last_reason_ = to_string(from.endpoint()) + ": " + why;
  turn_away(stream.release());
}

void Acceptor::drop(Entry stranger, const std::string& why) {
  // Closing is not enough: a forked child may hold the socket too.
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger->stream.fd(), nullptr);
  refuse(std::move(stranger->stream), stranger->from, why);
  strangers_.erase(stranger);
}

void Acceptor::close_listeners() noexcept {
  for (Fd& listener : listeners_) listener.reset();
}

void Acceptor::expire(std::uint64_t now_ns) {
  while (!strangers_.empty() && strangers_.front().deadline_ns <= now_ns) {
    drop(strangers_.begin(), "it did not prove the job's key in time");
  }
}

std::optional<std::string> Acceptor::summary(std::uint64_t now_ns) {
  if (turned_away_ == turned_away_reported_ || now_ns < next_summary_ns_) return std::nullopt;
  const std::uint64_t count = turned_away_ - turned_away_reported_;
  turned_away_reported_ = turned_away_;
  next_summary_ns_ = now_ns + kSummaryMs * 1'000'000;
  return "turned away " + std::to_string(count) + (count == 1 ? " caller" : " callers") +
         "; the last, " + last_reason_;
}

}  // namespace ciranda
