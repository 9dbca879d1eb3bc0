#include "core/transport/remote_mesh.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

#include "core/base/clock.h"
#include "core/transport/acceptor.h"
#include "core/transport/interfaces.h"
#include "core/transport/job_key.h"
#include "core/transport/socket_io.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kMsInNs = 1'000'000;
constexpr std::uint64_t kLookMs = 50;  // between two looks at deadlines while nobody calls

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

// The meeting of one rank with all others.
class Meeting {
 public:
  Meeting(RemoteJoin join, ChannelKeys keys)
      : join_(std::move(join)),
        keys_(std::move(keys)),
        self_(join_.self.rank),
        size_(join_.self.size),
        deadline_ns_(monotonic_ns() + join_.timeout_ms * kMsInNs) {
    mesh_.self = self_;
    join_.self.streams = join_.streams;
    mesh_.host = join_.self.host;
    mesh_.data.resize(static_cast<std::size_t>(size_));
    fill_random(std::as_writable_bytes(std::span(&incarnation_, 1)));
  }

  Result<RemoteMesh> run() {
    CIRANDA_TRY(listen());
    CIRANDA_TRY(self_ == 0 ? lead() : follow());
    CIRANDA_TRY(connect_pairs());
    return std::move(mesh_);
  }

 private:
  // --- Listening -------------------------------------------------------------------------------

  Status listen() {
    std::vector<Fd> listeners;
    if (self_ == 0) {
      CIRANDA_TRY(add_rendezvous(listeners));
    } else {
      CIRANDA_TRY(add_own_addresses(listeners));
    }
    auto acceptor = Acceptor::create(
        std::move(listeners), keys_,
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
        if (!socket) return socket.error();
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

  Hello hello(Channel channel, Rank to, int lane) const {
    return {.channel = channel,
            .lane = static_cast<std::uint16_t>(lane),
            .from = self_,
            .to = to,
            .incarnation = incarnation_};
  }

  // Rank 0: hears everybody, then tells everybody.
  Status lead() {
    std::vector<std::optional<ControlConnection>> guests(static_cast<std::size_t>(size_));
    roll_.assign(static_cast<std::size_t>(size_), {});
    roll_[0] = join_.self;
    std::vector<bool> introduced(static_cast<std::size_t>(size_), false);
    introduced[0] = true;
    for (int missing = size_ - 1; missing > 0;) {
      CIRANDA_TRY(take_calls([&](ProvenSocket socket) {
        if (socket.session.channel != Channel::kRendezvous) return;
        guests[static_cast<std::size_t>(socket.session.peer)].emplace(std::move(socket));
      }));
      for (auto& guest : guests) {
        if (!guest || introduced[static_cast<std::size_t>(guest->peer())]) continue;
        auto frame = guest->receive();
        if (!frame) return frame.error();
        if (!frame.value()) continue;
        auto introduction = decode_introduction(frame.value()->payload);
        if (!introduction) return introduction.error();
        const auto rank = static_cast<std::size_t>(guest->peer());
        introduction.value().rank = guest->peer();
        roll_[rank] = std::move(introduction).value();
        introduced[rank] = true;
        --missing;
      }
      if (missing > 0 && late()) return nobody_came(introduced);
    }
    auto hosts = seat(roll_);
    std::vector<std::byte> answer;
    if (hosts) {
      encode(roll_, answer);
    } else {
      const auto text = std::as_bytes(std::span(hosts.error().text));
      answer.assign(text.begin(), text.end());
    }
    const auto type = static_cast<std::uint8_t>(hosts ? Message::kRoll : Message::kRefused);
    for (auto& guest : guests) {
      if (guest) CIRANDA_TRY(send_whole(*guest, type, answer));
    }
    if (!hosts) return hosts.error();
    for (std::size_t host = 1; host < hosts.value().size(); ++host) {
      const auto first = static_cast<std::size_t>(hosts.value()[host].front());
      mesh_.control.push_back(std::move(*guests[first]));
    }
    mesh_.hosts = std::move(hosts).value();
    return {};
  }

  Status follow() {
    const Endpoint candidates[] = {join_.rendezvous};
    auto socket =
        connect_authenticated(keys_, hello(Channel::kRendezvous, 0, 0), candidates, deadline_ns_);
    if (!socket) return socket.error();
    prefer_the_way_to_rank_0(socket.value().fd);
    ControlConnection leader(std::move(socket).value());
    std::vector<std::byte> payload;
    encode(join_.self, payload);
    CIRANDA_TRY(send_whole(leader, static_cast<std::uint8_t>(Message::kIntroduction), payload));
    for (;;) {
      auto frame = leader.receive();
      if (!frame) return frame.error();
      if (frame.value()) {
        CIRANDA_TRY(take_answer(*frame.value()));
        break;
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
    if (join_.self.local_rank == 0) mesh_.control.push_back(std::move(leader));
    return {};
  }

  Status take_answer(const OpenedFrame& frame) {
    if (frame.type == static_cast<std::uint8_t>(Message::kRefused)) {
      const auto* text = reinterpret_cast<const char*>(frame.payload.data());
      return Error{.code = ErrorCode::kInvalidArgument,
                   .text = std::string(text, frame.payload.size())};
    }
    auto roll = decode_roll(frame.payload);
    if (!roll) return roll.error();
    roll_ = std::move(roll).value();
    if (roll_.size() != static_cast<std::size_t>(size_)) {
      return Error{.code = ErrorCode::kMalformed, .text = "rank 0 sent a strange roll", .rank = 0};
    }
    auto hosts = seat(roll_);
    if (!hosts) return hosts.error();
    mesh_.hosts = std::move(hosts).value();
    return {};
  }

  // The address by which this rank reached rank 0 is the likeliest to be reached itself.
  void prefer_the_way_to_rank_0(const Fd& socket) {
    const auto own = local_address(socket.get());
    if (!own) return;
    auto& addresses = join_.self.addresses;
    std::stable_partition(addresses.begin(), addresses.end(), [&](const auto& address) {
      return address.host == own.value().endpoint().host;
    });
  }

  // --- Pairs -----------------------------------------------------------------------------------

  // Everybody calls the ranks below and takes the calls of those above.
  Status connect_pairs() {
    for (Rank below = 0; below < self_; ++below) {
      std::vector<Endpoint> candidates;
      for (const auto& address : roll_[static_cast<std::size_t>(below)].addresses) {
        candidates.push_back({.host = address.host, .port = address.port});
      }
      for (int stream = 0; stream < join_.streams; ++stream) {
        auto socket = connect_authenticated(keys_, hello(Channel::kData, below, stream), candidates,
                                            deadline_ns_);
        if (!socket) return socket.error();
        mesh_.data[static_cast<std::size_t>(below)].emplace_back(std::move(socket).value());
      }
    }
    const auto streams = static_cast<std::size_t>(join_.streams);
    std::vector<std::vector<std::optional<DataLink>>> called(static_cast<std::size_t>(size_));
    for (auto& links : called) links.resize(streams);
    for (auto& early : early_) enter(std::move(early), called);
    early_.clear();
    const auto missing = [&] {
      std::vector<Rank> ranks;
      for (Rank above = self_ + 1; above < size_; ++above) {
        const auto& links = called[static_cast<std::size_t>(above)];
        if (!std::all_of(links.begin(), links.end(), [](const auto& link) { return !!link; })) {
          ranks.push_back(above);
        }
      }
      return ranks;
    };
    while (!missing().empty()) {
      CIRANDA_TRY(take_calls([&](ProvenSocket socket) { enter(std::move(socket), called); }));
      if (late() && !missing().empty()) {
        return Error{.code = ErrorCode::kTimeout,
                     .text = "these ranks know of this one but did not connect to it within " +
                             std::to_string(join_.timeout_ms / 1000) + " s: " + list(missing())};
      }
    }
    for (Rank above = self_ + 1; above < size_; ++above) {
      for (auto& link : called[static_cast<std::size_t>(above)]) {
        mesh_.data[static_cast<std::size_t>(above)].push_back(std::move(*link));
      }
    }
    return {};
  }

  void enter(ProvenSocket socket, std::vector<std::vector<std::optional<DataLink>>>& called) const {
    const Session& session = socket.session;
    if (session.channel != Channel::kData || session.lane >= join_.streams) return;
    if (session.peer <= self_ || session.peer >= size_) return;
    called[static_cast<std::size_t>(session.peer)][session.lane].emplace(std::move(socket));
  }

  // --- Waiting ---------------------------------------------------------------------------------

  template <typename Fn>
  Status take_calls(Fn fn) {
    pollfd wanted{.fd = acceptor_->fd(), .events = POLLIN, .revents = 0};
    // Introductions arrive on other sockets: look again soon.
    ::poll(&wanted, 1, self_ == 0 && roll_incomplete() ? 1 : static_cast<int>(kLookMs));
    auto proven = acceptor_->poll(monotonic_ns());
    if (!proven) return proven.error();
    for (ProvenSocket& socket : proven.value()) {
      if (socket.session.channel == Channel::kData && mesh_.hosts.empty()) {
        early_.push_back(std::move(socket));  // its rank has the roll already
      } else {
        fn(std::move(socket));
      }
    }
    return {};
  }

  bool roll_incomplete() const { return mesh_.hosts.empty(); }
  bool late() const { return monotonic_ns() >= deadline_ns_; }

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

  Error nobody_came(const std::vector<bool>& introduced) const {
    std::vector<Rank> missing;
    for (Rank rank = 0; rank < size_; ++rank) {
      if (!introduced[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    }
    return {.code = ErrorCode::kTimeout,
            .text = "of " + std::to_string(size_) + " ranks, these did not join rank 0 at " +
                    to_string(join_.rendezvous) + " within " +
                    std::to_string(join_.timeout_ms / 1000) + " s: " + list(missing)};
  }

  RemoteJoin join_;
  const ChannelKeys keys_;
  const Rank self_;
  const int size_;
  const std::uint64_t deadline_ns_;
  Incarnation incarnation_ = 0;
  std::optional<Acceptor> acceptor_;
  std::vector<Introduction> roll_;
  std::vector<ProvenSocket> early_;
  RemoteMesh mesh_;
};

}  // namespace

RemoteMesh RemoteMesh::one_host(Rank self, int size) {
  RemoteMesh mesh;
  mesh.self = self;
  mesh.hosts.emplace_back();
  for (Rank rank = 0; rank < size; ++rank) mesh.hosts.front().push_back(rank);
  mesh.data.resize(static_cast<std::size_t>(size));
  return mesh;
}

Result<RemoteMesh> join_remote(RemoteJoin join, const Secret& key) {
  auto keys = ChannelKeys::derive(key, number_of(join.job_id, key), /*epoch=*/0);
  if (!keys) return keys.error();
  return Meeting(std::move(join), std::move(keys).value()).run();
}

}  // namespace ciranda
