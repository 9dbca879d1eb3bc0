#include "core/transport/join/meeting.h"

#include <poll.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/transport/dial/dialer.h"
#include "core/transport/dial/job_key.h"
#include "core/transport/tcp/socket_io.h"
#include "core/transport/tcp/socket_set.h"

namespace ciranda {
namespace {

enum class Message : std::uint8_t { kIntroduction = 1, kHostTable = 2, kRefused = 3 };

std::string list(const std::vector<Rank>& ranks) {
  std::string text;
  for (const Rank rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

// Moves the address `host` to the front. The hosts reach each other by it, so it is likely to work
// for all ranks of this host.
void prefer_address(std::vector<Introduction>& ranks, const std::string& host) {
  for (Introduction& one : ranks) {
    std::stable_partition(one.addresses.begin(), one.addresses.end(),
                          [&](const auto& address) { return address.host == host; });
  }
}

Status send_whole(ControlConnection& connection, Message message,
                  std::span<const std::byte> payload, std::uint64_t deadline_ns) {
  CIRANDA_TRY(connection.send(static_cast<std::uint8_t>(message), payload));
  while (connection.has_queued()) {
    auto writable = wait_writable(connection.fd(), deadline_ns);
    if (!writable) return writable.error();
    if (!writable.value()) {
      return Error{.code = ErrorCode::kTimeout,
                   .text = "rank " + std::to_string(connection.peer()) + " at " +
                           connection.address() + " does not read what this rank sends",
                   .rank = connection.peer()};
    }
    CIRANDA_TRY(connection.flush());
  }
  return {};
}

Error interrupted() {
  return {.code = ErrorCode::kShutdown, .text = "the meeting of the hosts was interrupted"};
}

Error host_table_too_long(std::size_t ranks, std::size_t bytes) {
  return {.code = ErrorCode::kLimit,
          .text = "the addresses of " + std::to_string(ranks) + " ranks take " +
                  std::to_string(bytes) + " bytes; the limit is " +
                  std::to_string(kSealedPayloadBytesMax) +
                  "; let each rank use one interface (--nic, CIRANDA_NIC)"};
}

Error speaks_for_others(std::size_t host) {
  return {
      .code = ErrorCode::kInvalidArgument,
      .text = "the rank that introduced host " + std::to_string(host) + " is not its local rank 0"};
}

// Number of the acceptor in the SocketSet. A speaker's number is its rank, which is never 0.
constexpr std::uint32_t kCallers = 0;
constexpr std::uint32_t kInterrupt = kRanksMax;  // and that of the descriptor that interrupts

constexpr std::uint64_t kLookNs = 1'000'000'000;  // between looks whether rank 0 still answers

// Rank 0's side.
class Leader {
 public:
  Leader(const Meeting& meeting, Acceptor& acceptor, int size)
      : meeting_(meeting), acceptor_(acceptor), host_table_builder_(size) {}

  Result<MetHosts> run(std::span<const Introduction> host) {
    auto host_table = hear_everybody(host);
    if (!host_table) {
      tell_everybody(host_table.error());
      return host_table.error();
    }
    CIRANDA_TRY(tell_everybody(host_table.value()));
    return seat_speakers(std::move(host_table).value());
  }

 private:
  // The first rank of another host.
  struct Speaker {
    ControlConnection connection;
    std::vector<Rank> ranks = {};  // that it has introduced; empty: not heard yet
  };

  Result<HostTable> hear_everybody(std::span<const Introduction> own) {
    CIRANDA_TRY(host_table_builder_.enter(own));
    auto sockets = SocketSet::create();
    if (!sockets) return sockets.error();
    sockets_ = std::move(sockets).value();
    CIRANDA_TRY(sockets_.add(acceptor_.fd(), kCallers));
    if (meeting_.interrupt >= 0) CIRANDA_TRY(sockets_.add(meeting_.interrupt, kInterrupt));
    while (!host_table_builder_.is_complete()) {
      const std::uint64_t look_ns = acceptor_.next_deadline_ns().value_or(kNever);
      for (const std::uint32_t from : sockets_.wait(std::min(look_ns, meeting_.deadline_ns))) {
        if (from == kInterrupt) return interrupted();
        if (from != kCallers) CIRANDA_TRY(hear(*speaker(static_cast<Rank>(from))));
      }
      auto proven = acceptor_.poll(monotonic_ns());
      if (!proven) return proven.error();
      for (ProvenSocket& socket : proven.value()) CIRANDA_TRY(receive(std::move(socket)));
      if (!host_table_builder_.is_complete() && monotonic_ns() >= meeting_.deadline_ns) {
        return nobody_came();
      }
    }
    return complete_table();
  }

  std::vector<Speaker>::iterator speaker(Rank rank) {
    return std::ranges::find(speakers_, rank,
                             [](const Speaker& each) { return each.connection.peer(); });
  }

  // A rank that was started again has a newer incarnation. It takes the place of its earlier
  // connection, which an earlier attempt has left behind.
  Status receive(ProvenSocket socket) {
    const Rank rank = socket.session.peer;
    CIRANDA_ASSERT(rank > 0);  // the handshake refuses this rank's own number
    if (socket.session.purpose != Purpose::kRendezvous) {
      acceptor_.forget(socket.session);
      return {};
    }
    if (const auto earlier = speaker(rank); earlier != speakers_.end()) {
      sockets_.remove(earlier->connection.fd());
      host_table_builder_.strike(earlier->ranks);
      speakers_.erase(earlier);
    }
    speakers_.push_back({.connection = ControlConnection(std::move(socket))});
    return sockets_.add(speakers_.back().connection.fd(), static_cast<std::uint32_t>(rank));
  }

  // A speaker sends one message during the meeting: the introductions of its host.
  Status hear(Speaker& speaker) {
    CIRANDA_ASSERT(speaker.ranks.empty());
    auto frame = speaker.connection.receive();
    if (!frame) return frame.error();
    if (!frame.value()) return {};
    auto host = decode_introductions(frame.value()->payload);
    if (!host) return host.error();
    CIRANDA_TRY(host_table_builder_.enter(host.value()));
    for (const Introduction& one : host.value()) speaker.ranks.push_back(one.rank);
    sockets_.remove(speaker.connection.fd());
    return {};
  }

  Result<HostTable> complete_table() const {
    CIRANDA_ASSERT(host_table_builder_.is_complete());
    MeetingId id;
    fill_random(id);
    auto host_table = make_host_table(id, host_table_builder_.ranks());
    if (!host_table) return host_table;
    std::vector<std::byte> bytes;
    encode(host_table.value(), bytes);
    if (bytes.size() > kSealedPayloadBytesMax) {
      return host_table_too_long(host_table.value().ranks.size(), bytes.size());
    }
    return host_table;
  }

  Status tell_everybody(const HostTable& host_table) {
    std::vector<std::byte> answer;
    encode(host_table, answer);
    for (Speaker& speaker : speakers_) {
      CIRANDA_TRY(
          send_whole(speaker.connection, Message::kHostTable, answer, meeting_.deadline_ns));
    }
    return {};
  }

  // A speaker that cannot be told may be why the meeting fails.
  void tell_everybody(const Error& why) {
    const auto text = std::as_bytes(std::span(why.text));
    for (Speaker& speaker : speakers_) {
      (void)send_whole(speaker.connection, Message::kRefused, text, meeting_.deadline_ns);
    }
  }

  Result<MetHosts> seat_speakers(HostTable host_table) {
    MetHosts met{.host_table = std::move(host_table), .control = {}};
    for (std::size_t host = 1; host < met.host_table.hosts.size(); ++host) {
      const auto first = speaker(met.host_table.hosts[host].front());
      if (first == speakers_.end()) return speaks_for_others(host);
      met.control.push_back(std::move(first->connection));
    }
    return met;
  }

  Error nobody_came() {
    const auto strangers = acceptor_.summary(monotonic_ns());
    return {.code = ErrorCode::kTimeout,
            .text = "these of the " + std::to_string(host_table_builder_.ranks().size()) +
                    " ranks did not join rank 0 at " + to_string(meeting_.rendezvous) + " within " +
                    std::to_string(meeting_.timeout_ms / 1000) + " s: " +
                    list(host_table_builder_.missing()) + (strangers ? "; it " + *strangers : "")};
  }

  const Meeting& meeting_;
  Acceptor& acceptor_;
  HostTableBuilder host_table_builder_;
  std::vector<Speaker> speakers_;
  SocketSet sockets_;  // the acceptor, and by rank the speakers not heard yet
};

// As connect_authenticated(), but the meeting can be interrupted.
Result<ProvenSocket> dial(const ConnectionKeys& keys, const Hello& self, const Meeting& meeting) {
  Dialer dialer(keys, self, {meeting.rendezvous}, meeting.deadline_ns);
  std::function<void()> unanswered = meeting.unanswered;
  for (;;) {
    auto proven = dialer.advance(monotonic_ns());
    if (!proven) return proven.error();
    if (proven.value()) return std::move(*proven.value());
    if (unanswered && dialer.is_unanswered(monotonic_ns())) std::exchange(unanswered, nullptr)();
    pollfd both[] = {poll_for(dialer.watched()),
                     {.fd = meeting.interrupt, .events = POLLIN, .revents = 0}};
    (void)::poll(both, 2, poll_timeout_ms(dialer.next_deadline_ns()));
    if (both[1].revents != 0) return interrupted();
  }
}

Result<MetHosts> hear_roll(const Meeting& meeting, ControlConnection leader, int size) {
  std::function<void()> unanswered = meeting.unanswered;
  for (;;) {
    auto frame = leader.receive();
    if (!frame) return frame.error();
    if (frame.value()) {
      const bool is_table = frame.value()->type == static_cast<std::uint8_t>(Message::kHostTable);
      if (!is_table) {
        const auto text = frame.value()->payload;
        return Error{.code = ErrorCode::kInvalidArgument,
                     .text = std::string(reinterpret_cast<const char*>(text.data()), text.size())};
      }
      auto host_table = decode_host_table_of(frame.value()->payload, size);
      if (!host_table) return host_table.error();
      MetHosts met{.host_table = std::move(host_table).value(), .control = {}};
      met.control.push_back(std::move(leader));
      return met;
    }
    const std::uint64_t look_ns = unanswered ? monotonic_ns() + kLookNs : kNever;
    auto readable = wait_readable_or_interrupted(
        leader.fd(), std::min(look_ns, meeting.deadline_ns), meeting.interrupt);
    if (!readable) return readable.error();
    if (unanswered && !check_answers(leader.fd(), Dialer::kUnansweredNs / kMsInNs)) {
      std::exchange(unanswered, nullptr)();
    }
    if (!readable.value() && monotonic_ns() >= meeting.deadline_ns) {
      return Error{.code = ErrorCode::kTimeout,
                   .text = "rank 0 at " + to_string(meeting.rendezvous) + " heard this rank, but " +
                           "other ranks did not join within " +
                           std::to_string(meeting.timeout_ms / 1000) + " s",
                   .rank = 0};
    }
  }
}

}  // namespace

Result<MetHosts> lead_meeting(const Meeting& meeting, Acceptor& acceptor,
                              std::vector<Introduction> host) {
  CIRANDA_ASSERT(!host.empty() && host.front().rank == 0 && !host.front().addresses.empty());
  const Introduction& self = host.front();
  const std::string own = self.addresses.front().host;
  prefer_address(host, own);
  return Leader(meeting, acceptor, self.size).run(host);
}

Result<MetHosts> follow_meeting(const Meeting& meeting, const ConnectionKeys& keys, Hello self,
                                std::vector<Introduction> host) {
  CIRANDA_ASSERT(!host.empty() && host.front().rank == self.from && self.from > 0);
  self.purpose = Purpose::kRendezvous;
  self.to = 0;
  auto socket = dial(keys, self, meeting);
  if (!socket) return socket.error();
  if (const auto own = local_address(socket.value().stream.fd())) {
    prefer_address(host, own.value().endpoint().host);
  }
  ControlConnection leader(std::move(socket).value());
  std::vector<std::byte> payload;
  encode(host, payload);
  CIRANDA_TRY(send_whole(leader, Message::kIntroduction, payload, meeting.deadline_ns));
  return hear_roll(meeting, std::move(leader), host.front().size);
}

}  // namespace ciranda
