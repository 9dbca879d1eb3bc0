#include "core/transport/remote_mesh.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/clock.h"
#include "core/transport/acceptor.h"
#include "core/transport/call.h"
#include "core/transport/descriptors.h"
#include "core/transport/interfaces.h"
#include "core/transport/job_key.h"
#include "core/transport/socket_io.h"
#include "core/transport/switchboard.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kMsInNs = 1'000'000;
constexpr std::uint64_t kLookMs = 50;    // between two looks at deadlines while nobody calls
constexpr std::uint64_t kGraceMs = 500;  // for the first rank of a host to say what went wrong

// What else a rank has open: its program's files, local ranks, strangers.
constexpr std::size_t kOtherDescriptors = 1024;

enum class Message : std::uint8_t { kIntroduction = 1, kRoll = 2, kRefused = 3 };

// Sixteen bytes that say which job this is, also to those who have another key.
JobId number_of(const std::string& job_id, const Secret& key) {
  const MacTag tag = hmac_sha256(key, {std::as_bytes(std::span(job_id))});
  JobId job;
  std::memcpy(job.data(), tag.data(), job.size());
  return job;
}

std::string list(const std::vector<Rank>& ranks) {
  std::string text;
  for (const Rank rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

// Whoever looks for rank 0 looks for the one that makes the order: the first of host 0.
Status check_place(const Introduction& self) {
  if ((self.rank == 0) == (self.host == 0 && self.local_rank == 0)) return {};
  return Error{.code = ErrorCode::kInvalidArgument,
               .text = "rank " + std::to_string(self.rank) + " is local rank " +
                       std::to_string(self.local_rank) + " of host " + std::to_string(self.host) +
                       ", but rank 0 must be local rank 0 of host 0"};
}

// Bytes of any length for a rank of this host: they lie in memory that both map.
Status send_letter(int socket, PeerMessage::Kind kind, std::span<const std::byte> letter) {
  auto memory = MemorySegment::create(letter.size());
  if (!memory) return memory.error();
  const auto& [segment, fd] = memory.value();
  std::memcpy(segment.data(), letter.data(), letter.size());
  return send_message(socket,
                      {.kind = kind,
                       .segment = static_cast<std::uint32_t>(letter.size()),
                       .bytes = segment.bytes()},
                      fd.get());
}

struct Letter {
  PeerMessage::Kind kind;
  std::vector<std::byte> bytes;
};
// Waits until the deadline; nothing then.
Result<std::optional<Letter>> receive_letter(int socket, std::uint64_t deadline_ns) {
  auto readable = wait_readable(socket, deadline_ns);
  if (!readable) return readable.error();
  if (!readable.value()) return std::optional<Letter>();
  auto received = receive_message(socket);
  if (!received) return received.error();
  if (!received.value()) return std::optional<Letter>();
  const PeerMessage& message = received.value()->message;
  auto memory = MemorySegment::open(std::move(received.value()->fd), message.bytes);
  if (!memory) return memory.error();
  if (message.segment > message.bytes) {
    return Error{.code = ErrorCode::kMalformed, .text = "it sent a letter that is cut off"};
  }
  const std::byte* const bytes = memory.value().data();
  return std::optional(Letter{message.kind, {bytes, bytes + message.segment}});
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Error refused(std::span<const std::byte> text) {
  return {.code = ErrorCode::kInvalidArgument,
          .text = std::string(reinterpret_cast<const char*>(text.data()), text.size())};
}

// The meeting of one rank with all others.
class Meeting {
 public:
  Meeting(RemoteJoin join, const LocalMesh& local, const Secret& key, ChannelKeys keys)
      : join_(std::move(join)),
        local_(local),
        key_(key),
        keys_(std::make_unique<ChannelKeys>(std::move(keys))),
        incarnation_(monotonic_ns()),  // grows from one start of a rank on its host to the next
        self_(join_.self.rank),
        size_(join_.self.size),
        deadline_ns_(monotonic_ns() + join_.timeout_ms * kMsInNs),
        missing_(size_) {
    mesh_.self = self_;
    mesh_.ranks = size_;
    mesh_.host = join_.self.host;
  }

  Result<RemoteMesh> run() {
    CIRANDA_TRY(listen());
    CIRANDA_TRY(local_.self == 0 ? speak_for_host() : let_first_speak());
    CIRANDA_TRY(open_links());
    if (self_ == 0 && join_.epoch == 0 && join_.tell) join_.tell(chosen_addresses());
    return std::move(mesh_);
  }

 private:
  // The first rank of another host, as rank 0 sees it.
  struct Guest {
    ControlConnection connection;
    std::vector<Rank> ranks = {};  // that it has introduced; none: it was not heard yet
    bool heard() const { return !ranks.empty(); }
  };

  // --- Listening -------------------------------------------------------------------------------

  Status listen() {
    std::vector<Fd> listeners;
    if (self_ == 0) {
      CIRANDA_TRY(add_rendezvous(listeners));
    } else {
      CIRANDA_TRY(add_own_addresses(listeners));
    }
    auto acceptor = Acceptor::create(
        std::move(listeners), *keys_,
        {.self = self_, .incarnation = incarnation_, .ranks = size_, .versions = {}});
    if (!acceptor) return acceptor.error();
    acceptor_.emplace(std::move(acceptor).value());
    return {};
  }

  Status add_rendezvous(std::vector<Fd>& listeners) {
    if (join_.listener.valid()) {
      auto adopted = adopt_listener(std::move(join_.listener));
      if (!adopted) return adopted.error();
      listeners.push_back(std::move(adopted).value());
    } else {
      auto hosts = rendezvous_addresses();
      if (!hosts) return hosts.error();
      const std::uint16_t port = join_.rendezvous.port;
      for (const std::string& host : hosts.value()) {
        auto socket = listen_tcp(host, {port, port});
        if (!socket) {
          Error error = socket.error();
          error.text +=
              "; let the ranks meet elsewhere: CIRANDA_RENDEZVOUS=host:port for all of them";
          return error;
        }
        listeners.push_back(std::move(socket).value());
      }
    }
    return advertise(listeners.back());
  }

  Result<std::vector<std::string>> rendezvous_addresses() const {
    auto addresses = resolve(join_.rendezvous);
    if (!addresses) return addresses.error();
    const SocketAddress& first = addresses.value().front();
    std::vector<std::string> hosts = {first.endpoint().host};
    if (!is_loopback(first) || hosts.front() == join_.rendezvous.host) return hosts;
    // Debian gives the name of a host a loopback address on that host itself: its own ranks call
    // there, but others cannot.
    auto all = list_host_addresses();
    if (!all) return all.error();
    auto chosen = choose_addresses(all.value(), join_.nic);
    if (!chosen) return chosen.error();
    hosts.push_back(chosen.value().front().address);
    return hosts;
  }

  Status add_own_addresses(std::vector<Fd>& listeners) {
    if (join_.addresses.empty()) {
      auto all = list_host_addresses();
      if (!all) return all.error();
      auto chosen = choose_addresses(all.value(), join_.nic);
      if (!chosen) return chosen.error();
      for (const HostAddress& address : chosen.value()) join_.addresses.push_back(address.address);
    }
    join_.addresses.resize(std::min(join_.addresses.size(), kAddressesMax));
    Error why;
    for (const std::string& address : join_.addresses) {
      auto socket = listen_tcp(address, join_.ports);
      if (!socket) {
        why = socket.error();  // another address may do
        continue;
      }
      listeners.push_back(std::move(socket).value());
      CIRANDA_TRY(advertise(listeners.back()));
    }
    if (listeners.empty()) return why;
    return {};
  }

  Status advertise(const Fd& listener) {
    auto address = local_address(listener.get());
    if (!address) return address.error();
    Endpoint endpoint = address.value().endpoint();
    join_.self.addresses.push_back({.host = std::move(endpoint.host), .port = endpoint.port});
    return {};
  }

  // --- Who is where ----------------------------------------------------------------------------

  // The first rank of a host: gathers its ranks, meets the other hosts, and tells its ranks.
  Status speak_for_host() {
    Status met = gather_host();
    if (met) met = self_ == 0 ? lead() : follow();
    std::vector<std::byte> letter;
    if (met) {
      letter = meeting_and_roll();
    } else {
      letter = bytes_of(met.error().text);
    }
    const auto kind = met ? PeerMessage::Kind::kRoll : PeerMessage::Kind::kRefused;
    for (int local = 1; local < local_.size; ++local) {
      Status told = send_letter(socket_to(local), kind, letter);
      if (met && !told) met = told.error();
    }
    return met;
  }

  Status gather_host() {
    host_.push_back(join_.self);
    for (int local = 1; local < local_.size; ++local) {
      auto letter = receive_letter(socket_to(local), deadline_ns_);
      if (!letter || !letter.value()) {
        return Error{.code = letter ? ErrorCode::kTimeout : ErrorCode::kRankLost,
                     .text = "local rank " + std::to_string(local) + " of host " +
                             std::to_string(mesh_.host) + " ended, or did nothing, before the " +
                             "hosts had met"};
      }
      auto introduction = decode_introduction(letter.value()->bytes);
      if (!introduction) return introduction.error();
      host_.push_back(std::move(introduction).value());
    }
    return {};
  }

  Status let_first_speak() {
    std::vector<std::byte> letter;
    encode(join_.self, letter);
    CIRANDA_TRY(send_letter(socket_to(0), PeerMessage::Kind::kIntroduction, letter));
    // The first rank keeps the time, and says what was missing.
    auto answer = receive_letter(socket_to(0), deadline_ns_ + kGraceMs * kMsInNs);
    if (!answer || !answer.value()) {
      return Error{.code = answer ? ErrorCode::kTimeout : ErrorCode::kRankLost,
                   .text = "the first rank of host " + std::to_string(mesh_.host) +
                           " ended, or did nothing, before the hosts had met; its log says more"};
    }
    if (answer.value()->kind != PeerMessage::Kind::kRoll) return refused(answer.value()->bytes);
    return take_roll(answer.value()->bytes);
  }

  int socket_to(int local) const {
    return local_.peers[static_cast<std::size_t>(local)].socket.get();
  }

  Hello hello(Channel channel, Rank to) const {
    return {.channel = channel, .from = self_, .to = to, .incarnation = incarnation_};
  }

  // Rank 0: hears every host, then tells every host.
  Status lead() {
    prefer_address(join_.self.addresses.front().host);
    roll_.assign(static_cast<std::size_t>(size_), {});
    CIRANDA_TRY(enter(host_));
    std::vector<Guest> guests;
    while (missing_ > 0) {
      auto speaking = wait_for_news(guests);
      if (!speaking) return speaking.error();
      for (Guest* guest : speaking.value()) CIRANDA_TRY(hear(*guest));
      auto proven = acceptor_->poll(monotonic_ns());
      if (!proven) return proven.error();
      for (ProvenSocket& socket : proven.value()) receive(std::move(socket), guests);
      if (missing_ > 0 && monotonic_ns() >= deadline_ns_) return nobody_came();
    }
    auto hosts = seat(roll_);
    std::vector<std::byte> answer;
    if (hosts) {
      for (Introduction& one : roll_) one.settings.clear();  // they are the same
      fill_random(meeting_);
      answer = meeting_and_roll();
      if (answer.size() > kSealedPayloadBytesMax) hosts = roll_too_long(answer.size());
    }
    if (!hosts) answer = bytes_of(hosts.error().text);
    const auto type = static_cast<std::uint8_t>(hosts ? Message::kRoll : Message::kRefused);
    for (Guest& guest : guests) CIRANDA_TRY(send_whole(guest.connection, type, answer));
    if (!hosts) return hosts.error();
    mesh_.hosts = std::move(hosts).value();
    for (std::size_t host = 1; host < mesh_.hosts.size(); ++host) {
      const auto first =
          std::ranges::find(guests, mesh_.hosts[host].front(),
                            [](const Guest& guest) { return guest.connection.peer(); });
      if (first == guests.end()) return speaks_for_others(host);
      mesh_.control.push_back(std::move(first->connection));
    }
    return {};
  }

  // A rank that was started again has a newer incarnation, and takes the place of the one before,
  // which is left from an earlier try.
  void receive(ProvenSocket socket, std::vector<Guest>& guests) {
    if (socket.session.channel != Channel::kRendezvous) return acceptor_->forget(socket.session);
    std::erase_if(guests, [&](const Guest& earlier) {
      if (earlier.connection.peer() != socket.session.peer) return false;
      for (const Rank rank : earlier.ranks) roll_[static_cast<std::size_t>(rank)] = {};
      missing_ += static_cast<int>(earlier.ranks.size());
      return true;
    });
    guests.push_back({.connection = ControlConnection(std::move(socket))});
  }

  // All that a guest says while the hosts meet is who is on its host.
  Status hear(Guest& guest) {
    auto frame = guest.connection.receive();
    if (!frame) return frame.error();
    if (!frame.value()) return {};
    auto host = decode_roll(frame.value()->payload);
    if (!host) return host.error();
    CIRANDA_TRY(enter(host.value()));
    for (const Introduction& one : host.value()) guest.ranks.push_back(one.rank);
    return {};
  }

  Status enter(std::span<const Introduction> host) {
    for (const Introduction& one : host) {
      const auto rank = static_cast<std::size_t>(one.rank);
      if (rank >= roll_.size()) {
        return Error{.code = ErrorCode::kInvalidArgument,
                     .text = "rank " + std::to_string(one.rank) + " is none of this job's " +
                             std::to_string(size_) + " ranks; start every rank with the same size"};
      }
      if (roll_[rank].size != 0) {
        return Error{.code = ErrorCode::kInvalidArgument,
                     .text = "rank " + std::to_string(one.rank) + " is on host " +
                             std::to_string(roll_[rank].host) + " and on host " +
                             std::to_string(one.host) + "; start every rank once"};
      }
      roll_[rank] = one;
      --missing_;
    }
    return {};
  }

  Status follow() {
    const Endpoint candidates[] = {join_.rendezvous};
    auto socket =
        connect_authenticated(*keys_, hello(Channel::kRendezvous, 0), candidates, deadline_ns_);
    if (!socket) return socket.error();
    if (const auto own = local_address(socket.value().stream.fd())) {
      prefer_address(own.value().endpoint().host);
    }
    ControlConnection leader(std::move(socket).value());
    std::vector<std::byte> payload;
    encode(host_, payload);
    CIRANDA_TRY(send_whole(leader, static_cast<std::uint8_t>(Message::kIntroduction), payload));
    for (;;) {
      auto frame = leader.receive();
      if (!frame) return frame.error();
      if (frame.value()) {
        const bool is_roll = frame.value()->type == static_cast<std::uint8_t>(Message::kRoll);
        if (!is_roll) return refused(frame.value()->payload);
        CIRANDA_TRY(take_roll(frame.value()->payload));
        mesh_.control.push_back(std::move(leader));
        return {};
      }
      auto readable = wait_readable(leader.fd(), deadline_ns_);
      if (!readable) return readable.error();
      if (!readable.value()) {
        return Error{.code = ErrorCode::kTimeout,
                     .text = "rank 0 at " + to_string(join_.rendezvous) + " heard this rank, but " +
                             "others did not join within " +
                             std::to_string(join_.timeout_ms / 1000) + " s",
                     .rank = 0};
      }
    }
  }

  std::vector<std::byte> meeting_and_roll() const {
    std::vector<std::byte> payload(meeting_.begin(), meeting_.end());
    encode(roll_, payload);
    return payload;
  }

  Status take_roll(std::span<const std::byte> payload) {
    const Error strange{
        .code = ErrorCode::kMalformed, .text = "rank 0 sent a strange roll", .rank = 0};
    if (payload.size() < meeting_.size()) return strange;
    std::ranges::copy(payload.first<std::tuple_size_v<MeetingId>>(), meeting_.begin());
    auto roll = decode_roll(payload.subspan(meeting_.size()));
    if (!roll) return roll.error();
    roll_ = std::move(roll).value();
    if (roll_.size() != static_cast<std::size_t>(size_)) return strange;
    auto hosts = seat(roll_);
    if (!hosts) return hosts.error();
    mesh_.hosts = std::move(hosts).value();
    return {};
  }

  // The address by which hosts see each other is the likeliest one for all ranks of this host.
  void prefer_address(const std::string& host) {
    for (Introduction& one : host_) {
      std::stable_partition(one.addresses.begin(), one.addresses.end(),
                            [&](const auto& address) { return address.host == host; });
    }
  }

  // Where the hosts proved to each other who they are: the first that each of them calls later.
  std::string chosen_addresses() const {
    constexpr std::size_t kNamed = 8;
    const std::string own = join_.self.addresses.front().host;
    std::string text = std::to_string(mesh_.hosts.size()) + " hosts met";
    if (const auto all = list_host_addresses()) {
      const auto here = std::ranges::find(all.value(), own, &HostAddress::address);
      if (here != all.value().end()) text += " through " + here->interface;
    }
    text += ": host 0 at " + own;
    for (std::size_t host = 1; host < std::min(mesh_.hosts.size(), kNamed); ++host) {
      const auto first = static_cast<std::size_t>(mesh_.hosts[host].front());
      text += ", host " + std::to_string(host) + " at " + roll_[first].addresses.front().host;
    }
    if (mesh_.hosts.size() > kNamed) {
      text += " and " + std::to_string(mesh_.hosts.size() - kNamed) + " more";
    }
    return text;
  }

  Error roll_too_long(std::size_t bytes) const {
    return {.code = ErrorCode::kLimit,
            .text = "the addresses of " + std::to_string(size_) + " ranks take " +
                    std::to_string(bytes) + " bytes, at most " +
                    std::to_string(kSealedPayloadBytesMax) +
                    " can be told; let each rank use one interface (--nic, CIRANDA_NIC)"};
  }

  Error speaks_for_others(std::size_t host) const {
    return {.code = ErrorCode::kInvalidArgument,
            .text = "who introduced host " + std::to_string(host) + " is not its local rank 0"};
  }

  // --- Afterwards ------------------------------------------------------------------------------

  Status open_links() {
    CIRANDA_TRY(keys_->narrow_to(key_, meeting_));
    const auto streams = static_cast<std::size_t>(join_.streams);
    const auto shortage =
        raise_descriptor_limit(static_cast<std::size_t>(size_) * streams + kOtherDescriptors);
    if (shortage && join_.warn) join_.warn(*shortage);
    DataLinks::Directory directory{.self = hello(Channel::kData, kNoRank),
                                   .streams = join_.streams,
                                   .timeout_ms = join_.timeout_ms};
    for (const Introduction& one : roll_) {
      std::vector<Endpoint>& endpoints = directory.ranks.emplace_back();
      for (const auto& address : one.addresses) endpoints.push_back({address.host, address.port});
    }
    auto switchboard =
        Switchboard::start(std::move(keys_), std::move(*acceptor_), std::move(join_.warn));
    if (!switchboard) return switchboard.error();
    mesh_.address = roll_[static_cast<std::size_t>(self_)].addresses.front().host;
    mesh_.links = DataLinks(std::move(directory), std::move(switchboard).value());
    return {};
  }

  // --- Waiting ---------------------------------------------------------------------------------

  // Of a caller, of guests that have not been heard, which it gives, or that it is time to look at
  // deadlines.
  Result<std::vector<Guest*>> wait_for_news(std::span<Guest> guests) const {
    std::vector<pollfd> wanted = {{.fd = acceptor_->fd(), .events = POLLIN, .revents = 0}};
    for (const Guest& guest : guests) {
      wanted.push_back(
          {.fd = guest.heard() ? -1 : guest.connection.fd(), .events = POLLIN, .revents = 0});
    }
    const int count = ::poll(wanted.data(), wanted.size(), static_cast<int>(kLookMs));
    if (count < 0 && errno != EINTR) return Error::from_errno("poll", errno);
    std::vector<Guest*> speaking;
    for (std::size_t i = 0; count > 0 && i < guests.size(); ++i) {
      if (wanted[i + 1].revents != 0) speaking.push_back(&guests[i]);
    }
    return speaking;
  }

  Status send_whole(ControlConnection& connection, std::uint8_t type,
                    std::span<const std::byte> payload) const {
    CIRANDA_TRY(connection.send(type, payload));
    while (connection.has_queued()) {
      auto writable = wait_writable(connection.fd(), deadline_ns_);
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

  Error nobody_came() {
    const auto strangers = acceptor_->summary(monotonic_ns());
    std::vector<Rank> missing;
    for (Rank rank = 0; rank < size_; ++rank) {
      if (roll_[static_cast<std::size_t>(rank)].size == 0) missing.push_back(rank);
    }
    return {.code = ErrorCode::kTimeout,
            .text = "of " + std::to_string(size_) + " ranks, these did not join rank 0 at " +
                    to_string(join_.rendezvous) + " within " +
                    std::to_string(join_.timeout_ms / 1000) + " s: " + list(missing) +
                    (strangers ? "; it " + *strangers : "")};
  }

  RemoteJoin join_;
  const LocalMesh& local_;
  const Secret& key_;
  std::unique_ptr<ChannelKeys> keys_;
  const Incarnation incarnation_;
  const Rank self_;
  const int size_;
  const std::uint64_t deadline_ns_;
  int missing_;  // ranks that rank 0 has not heard of
  MeetingId meeting_ = {};
  std::optional<Acceptor> acceptor_;
  std::vector<Introduction> host_;  // the first rank: who is on this host
  std::vector<Introduction> roll_;  // size 0: not heard of yet
  RemoteMesh mesh_;
};

}  // namespace

RemoteMesh RemoteMesh::one_host(Rank self, int size) {
  RemoteMesh mesh;
  mesh.self = self;
  mesh.ranks = size;
  mesh.hosts.emplace_back();
  for (Rank rank = 0; rank < size; ++rank) mesh.hosts.front().push_back(rank);
  return mesh;
}

Result<RemoteMesh> join_remote(RemoteJoin join, const LocalMesh& local, const Secret& key) {
  CIRANDA_TRY(check_place(join.self));
  auto keys = ChannelKeys::derive(key, number_of(join.job_id, key), join.epoch);
  if (!keys) return keys.error();
  if (join.tls) {
    auto tls = Tls::create(key, keys.value().job);
    if (!tls) return tls.error();
    keys.value().tls = std::move(tls).value();
  }
  return Meeting(std::move(join), local, key, std::move(keys).value()).run();
}

}  // namespace ciranda
