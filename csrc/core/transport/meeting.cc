#include "core/transport/meeting.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <utility>

#include "core/base/clock.h"
#include "core/transport/call.h"
#include "core/transport/job_key.h"
#include "core/transport/socket_io.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kLookMs = 50;  // between two looks at deadlines while nobody calls

enum class Message : std::uint8_t { kIntroduction = 1, kRoll = 2, kRefused = 3 };

std::string list(const std::vector<Rank>& ranks) {
  std::string text;
  for (const Rank rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

// The address by which hosts see each other is the likeliest one for all ranks of this host.
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
                           connection.address() + " does not listen to this rank",
                   .rank = connection.peer()};
    }
    CIRANDA_TRY(connection.flush());
  }
  return {};
}

Error roll_too_long(std::size_t ranks, std::size_t bytes) {
  return {.code = ErrorCode::kLimit,
          .text = "the addresses of " + std::to_string(ranks) + " ranks take " +
                  std::to_string(bytes) + " bytes, at most " +
                  std::to_string(kSealedPayloadBytesMax) +
                  " can be told; let each rank use one interface (--nic, CIRANDA_NIC)"};
}

Error speaks_for_others(std::size_t host) {
  return {.code = ErrorCode::kInvalidArgument,
          .text = "who introduced host " + std::to_string(host) + " is not its local rank 0"};
}

// Rank 0's side.
class Leader {
 public:
  Leader(const Meeting& meeting, Acceptor& acceptor, int size)
      : meeting_(meeting), acceptor_(acceptor), roll_call_(size) {}

  Result<MetHosts> run(std::span<const Introduction> host) {
    CIRANDA_TRY(roll_call_.enter(host));
    CIRANDA_TRY(hear_everybody());
    auto roll = call_roll();
    CIRANDA_TRY(tell_everybody(roll));
    if (!roll) return roll.error();
    return seat_speakers(std::move(roll).value());
  }

 private:
  // The first rank of another host.
  struct Speaker {
    ControlConnection connection;
    std::vector<Rank> ranks = {};  // that it has introduced; none: it was not heard yet
    bool heard() const { return !ranks.empty(); }
  };

  Status hear_everybody() {
    while (!roll_call_.is_complete()) {
      auto speaking = wait_for_news();
      if (!speaking) return speaking.error();
      for (Speaker* speaker : speaking.value()) CIRANDA_TRY(hear(*speaker));
      auto proven = acceptor_.poll(monotonic_ns());
      if (!proven) return proven.error();
      for (ProvenSocket& socket : proven.value()) receive(std::move(socket));
      if (!roll_call_.is_complete() && monotonic_ns() >= meeting_.deadline_ns) {
        return nobody_came();
      }
    }
    return {};
  }

  // Of a caller, of speakers that have not been heard, which it gives, or that it is time to look
  // at deadlines.
  Result<std::vector<Speaker*>> wait_for_news() {
    std::vector<pollfd> wanted = {{.fd = acceptor_.fd(), .events = POLLIN, .revents = 0}};
    for (const Speaker& speaker : speakers_) {
      wanted.push_back(
          {.fd = speaker.heard() ? -1 : speaker.connection.fd(), .events = POLLIN, .revents = 0});
    }
    const int count = ::poll(wanted.data(), wanted.size(), static_cast<int>(kLookMs));
    if (count < 0 && errno != EINTR) return Error::from_errno("poll", errno);
    std::vector<Speaker*> speaking;
    for (std::size_t i = 0; count > 0 && i < speakers_.size(); ++i) {
      if (wanted[i + 1].revents != 0) speaking.push_back(&speakers_[i]);
    }
    return speaking;
  }

  // A rank that was started again has a newer incarnation, and takes the place of the one before,
  // which is left from an earlier try.
  void receive(ProvenSocket socket) {
    if (socket.session.channel != Channel::kRendezvous) return acceptor_.forget(socket.session);
    std::erase_if(speakers_, [&](const Speaker& earlier) {
      if (earlier.connection.peer() != socket.session.peer) return false;
      roll_call_.strike(earlier.ranks);
      return true;
    });
    speakers_.push_back({.connection = ControlConnection(std::move(socket))});
  }

  // All that a speaker says while the hosts meet is who is on its host.
  Status hear(Speaker& speaker) {
    auto frame = speaker.connection.receive();
    if (!frame) return frame.error();
    if (!frame.value()) return {};
    auto host = decode_roll(frame.value()->payload);
    if (!host) return host.error();
    CIRANDA_TRY(roll_call_.enter(host.value()));
    for (const Introduction& one : host.value()) speaker.ranks.push_back(one.rank);
    return {};
  }

  Result<Roll> call_roll() const {
    MeetingId id;
    fill_random(id);
    auto roll = make_roll(id, roll_call_.ranks());
    if (!roll) return roll;
    std::vector<std::byte> bytes;
    encode(roll.value(), bytes);
    if (bytes.size() > kSealedPayloadBytesMax) {
      return roll_too_long(roll.value().ranks.size(), bytes.size());
    }
    return roll;
  }

  Status tell_everybody(const Result<Roll>& roll) {
    std::vector<std::byte> answer;
    if (roll) {
      encode(roll.value(), answer);
    } else {
      const auto text = std::as_bytes(std::span(roll.error().text));
      answer.assign(text.begin(), text.end());
    }
    const Message message = roll ? Message::kRoll : Message::kRefused;
    for (Speaker& speaker : speakers_) {
      CIRANDA_TRY(send_whole(speaker.connection, message, answer, meeting_.deadline_ns));
    }
    return {};
  }

  Result<MetHosts> seat_speakers(Roll roll) {
    MetHosts met{.roll = std::move(roll), .control = {}};
    for (std::size_t host = 1; host < met.roll.hosts.size(); ++host) {
      const auto first =
          std::ranges::find(speakers_, met.roll.hosts[host].front(),
                            [](const Speaker& speaker) { return speaker.connection.peer(); });
      if (first == speakers_.end()) return speaks_for_others(host);
      met.control.push_back(std::move(first->connection));
    }
    return met;
  }

  Error nobody_came() {
    const auto strangers = acceptor_.summary(monotonic_ns());
    return {.code = ErrorCode::kTimeout,
            .text = "of " + std::to_string(roll_call_.ranks().size()) +
                    " ranks, these did not join rank 0 at " + to_string(meeting_.rendezvous) +
                    " within " + std::to_string(meeting_.timeout_ms / 1000) +
                    " s: " + list(roll_call_.missing()) + (strangers ? "; it " + *strangers : "")};
  }

  const Meeting& meeting_;
  Acceptor& acceptor_;
  RollCall roll_call_;
  std::vector<Speaker> speakers_;
};

Result<MetHosts> hear_roll(const Meeting& meeting, ControlConnection leader, int size) {
  for (;;) {
    auto frame = leader.receive();
    if (!frame) return frame.error();
    if (frame.value()) {
      const bool is_roll = frame.value()->type == static_cast<std::uint8_t>(Message::kRoll);
      if (!is_roll) {
        const auto text = frame.value()->payload;
        return Error{.code = ErrorCode::kInvalidArgument,
                     .text = std::string(reinterpret_cast<const char*>(text.data()), text.size())};
      }
      auto roll = decode_roll_of(frame.value()->payload, size);
      if (!roll) return roll.error();
      MetHosts met{.roll = std::move(roll).value(), .control = {}};
      met.control.push_back(std::move(leader));
      return met;
    }
    auto readable = wait_readable(leader.fd(), meeting.deadline_ns);
    if (!readable) return readable.error();
    if (!readable.value()) {
      return Error{.code = ErrorCode::kTimeout,
                   .text = "rank 0 at " + to_string(meeting.rendezvous) + " heard this rank, but " +
                           "others did not join within " +
                           std::to_string(meeting.timeout_ms / 1000) + " s",
                   .rank = 0};
    }
  }
}

}  // namespace

Result<MetHosts> lead_meeting(const Meeting& meeting, Acceptor& acceptor,
                              std::vector<Introduction> host) {
  const Introduction& self = host.front();
  const std::string own = self.addresses.front().host;
  prefer_address(host, own);
  return Leader(meeting, acceptor, self.size).run(host);
}

Result<MetHosts> follow_meeting(const Meeting& meeting, const ChannelKeys& keys, Hello self,
                                std::vector<Introduction> host) {
  self.channel = Channel::kRendezvous;
  self.to = 0;
  const Endpoint candidates[] = {meeting.rendezvous};
  auto socket = connect_authenticated(keys, self, candidates, meeting.deadline_ns);
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
