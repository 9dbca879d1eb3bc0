#include "core/transport/join/local_meeting.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/transport/join/origin.h"
#include "core/transport/local/control_block.h"
#include "core/transport/local/job_folder.h"
#include "core/transport/tcp/socket_io.h"
#include "core/transport/tcp/users.h"
#include "core/wire/settings.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kWordOfRank0Ns = 1'000'000'000;
constexpr std::uint32_t kMagic = 0x43524e44;  // "CRND"
constexpr std::uint32_t kProtocol = 2;  // version of these messages and of ControlBlock's layout
constexpr std::size_t kPacketBytesMax = 2048;
constexpr std::uint64_t kLookAfterMs = 1'000;  // rank 0 listens microseconds after its lock

// Sent by a client to the leader, with the client's doorbell.
struct LocalHello {
  std::uint32_t magic = kMagic;
  std::uint32_t protocol = kProtocol;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  char job_id[64] = {};
  char settings[kSettingsBytesMax + 1] = {};
};
static_assert(sizeof(LocalHello) <= kPacketBytesMax);

// Sent by the leader to a client. kControl carries the control memory and the leader's doorbell,
// kPeer a socket to `peer` and its doorbell. kRefused carries an error, which ends the attempt.
struct Answer {
  enum class Kind : std::uint32_t { kControl = 1, kPeer = 2, kRefused = 3 };
  std::uint32_t magic = kMagic;
  Kind kind = Kind::kControl;
  std::int32_t peer = 0;
  std::int32_t pid = 0;
  std::uint64_t control_bytes = 0;
  ErrorCode code = ErrorCode::kInvalidArgument;  // of kRefused
  char text[1024] = {};
};
static_assert(sizeof(Answer) <= kPacketBytesMax);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <std::size_t N>
void set_text(char (&field)[N], const std::string& text) {
  const std::size_t length = std::min(text.size(), N - 1);
  std::memcpy(field, text.data(), length);
  field[length] = '\0';
}

template <std::size_t N>
std::string get_text(const char (&field)[N]) {
  return {field, ::strnlen(field, N)};
}

Error invalid(std::string text, Rank rank = kNoRank) {
  return {.code = ErrorCode::kInvalidArgument, .text = std::move(text), .rank = rank};
}

void refuse(int socket, const Error& why) {
  Answer answer{.kind = Answer::Kind::kRefused, .code = why.code};
  set_text(answer.text, why.text);
  (void)send_packet(socket, bytes_of(answer), {});  // it may be gone already
}

// Rank 0's side of the meeting.
class LocalLeader {
 public:
  explicit LocalLeader(const UnixJoin& join)
      : join_(join),
        deadline_ns_(monotonic_ns() + join.timeout_ms * 1'000'000),
        folder_(std::make_unique<JobFolder>(join.folder, join.job_id)) {}

  Result<LocalMesh> run() {
    CIRANDA_ASSERT(join_.rank == 0 && join_.size > 1);  // by join_unix()
    if (Status listening = folder_->listen(join_.size); !listening) {
      const std::string heir = heir_of_a_rank(join_.rank_variable);
      return heir.empty() ? listening.error() : invalid(heir, 0);
    }
    mesh_.self = 0;
    mesh_.size = join_.size;
    mesh_.peers.resize(static_cast<std::size_t>(join_.size));
    auto doorbell = make_doorbell();
    if (!doorbell) return doorbell.error();
    mesh_.peers[0].doorbell = std::move(doorbell).value();
    mesh_.peers[0].pid = ::getpid();
    Status met = meet_everybody();
    // Stops before any rank gets its answer. A rank may finish this World sooner than rank 0 and
    // join the next World immediately. This listener would accept its call and drop it.
    folder_->stop_listening();
    if (met) met = different_;
    if (!met) {
      for (const LocalMesh::Peer& peer : mesh_.peers) {
        if (peer.socket.valid()) refuse(peer.socket.get(), met.error());
      }
      return met.error();
    }
    CIRANDA_TRY(connect_everybody());
    mesh_.place = std::move(folder_);
    return std::move(mesh_);
  }

 private:
  Status meet_everybody() {
    for (int present = 1; present < join_.size;) {
      auto readable =
          wait_readable_or_interrupted(folder_->listener(), deadline_ns_, join_.interrupt);
      if (!readable) return readable.error();
      if (!readable.value()) return nobody_came();
      Fd socket(::accept4(folder_->listener(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) continue;
      auto joined = meet(std::move(socket));
      if (!joined) return joined.error();
      if (joined.value()) ++present;
    }
    return {};
  }

  // Returns false after it has turned away a stranger that is no rank of this job.
  Result<bool> meet(Fd socket) {
    auto pid = same_user_pid(socket.get());
    if (!pid) {
      refuse(socket.get(), pid.error());
      return false;
    }
    auto readable = wait_readable_or_interrupted(socket.get(), deadline_ns_, join_.interrupt);
    if (!readable) return readable.error();
    if (!readable.value()) return nobody_came();
    LocalHello hello;
    auto packet = receive_packet(socket.get(), std::as_writable_bytes(std::span(&hello, 1)));
    if (!packet || packet.value().what != Received::kPacket ||
        packet.value().bytes != sizeof hello || hello.magic != kMagic ||
        get_text(hello.job_id) != join_.job_id) {
      refuse(socket.get(), invalid("this socket belongs to another job"));
      return false;
    }
    if (Status ours = check_origin(hello.rank, pid.value()); !ours) {
      refuse(socket.get(), ours.error());
      stranger_ = ours.error().text;
      return false;
    }
    if (Status fits = check_hello(hello, pid.value(), packet.value().fds.size()); !fits) {
      refuse(socket.get(), fits.error());
      return fits.error();
    }
    // All ranks get this error, after the last one has come.
    Status same = check_settings(hello.rank, get_text(hello.settings), join_.settings);
    if (different_.ok()) different_ = std::move(same);
    LocalMesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(hello.rank)];
    CIRANDA_ASSERT(!peer.socket.valid());  // by check_hello()
    peer = {.socket = std::move(socket),
            .doorbell = std::move(packet.value().fds[0]),
            .pid = pid.value()};
    return true;
  }

  Status check_origin(Rank rank, pid_t pid) const {
    if (!join_.prove_origin) return {};
    return check_same_job({.pid = ::getpid(), .number = 0}, {.pid = pid, .number = rank},
                          join_.rank_variable);
  }

  Status check_hello(const LocalHello& hello, pid_t pid, std::size_t fds) const {
    const std::string who =
        "rank " + std::to_string(hello.rank) + " (pid " + std::to_string(pid) + ")";
    if (hello.protocol != kProtocol) {
      return invalid(who + " speaks protocol " + std::to_string(hello.protocol) +
                     ", rank 0 speaks " + std::to_string(kProtocol) +
                     "; install the same ciranda for every rank");
    }
    if (hello.size != join_.size) {
      return invalid(who + " expects " + std::to_string(hello.size) + " ranks, rank 0 expects " +
                     std::to_string(join_.size) + "; start every rank with the same size");
    }
    if (hello.rank <= 0 || hello.rank >= join_.size || fds != 1) {
      return invalid(who + " is not one of ranks 1 to " + std::to_string(join_.size - 1));
    }
    const LocalMesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(hello.rank)];
    if (peer.socket.valid()) {
      return invalid("expected " + std::to_string(join_.size) + " ranks, but rank " +
                     std::to_string(hello.rank) + " came twice (pid " + std::to_string(peer.pid) +
                     " and pid " + std::to_string(pid) + ")");
    }
    return {};
  }

  Error nobody_came() const {
    std::string missing;
    for (int rank = 1; rank < join_.size; ++rank) {
      if (mesh_.peers[static_cast<std::size_t>(rank)].socket.valid()) continue;
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    return {.code = ErrorCode::kTimeout,
            .text = "these of the " + std::to_string(join_.size) + " ranks did not join within " +
                    std::to_string(join_.timeout_ms / 1000) + " s: " + missing +
                    (stranger_.empty() ? "" : "; turned away: " + stranger_)};
  }

  Status connect_everybody() {
    auto control = MemorySegment::create(ControlBlock::memory_bytes(join_.size),
                                         ControlBlock::ready_bytes(join_.size));
    if (!control) return control.error();
    mesh_.control = control.value().segment;
    for (int rank = 1; rank < join_.size; ++rank) {
      Answer answer{.kind = Answer::Kind::kControl, .pid = ::getpid()};
      answer.control_bytes = mesh_.control.bytes();
      const int fds[] = {control.value().fd.get(), mesh_.peers[0].doorbell.get()};
      CIRANDA_TRY(send_packet(socket_of(rank), bytes_of(answer), fds));
    }
    for (int a = 1; a < join_.size; ++a) {
      for (int b = a + 1; b < join_.size; ++b) CIRANDA_TRY(introduce(a, b));
    }
    return {};
  }

  Status introduce(Rank a, Rank b) {
    CIRANDA_ASSERT(a >= 1 && a < b && b < join_.size);
    auto pair = make_packet_sockets();
    if (!pair) return pair.error();
    CIRANDA_TRY(introduce_to(a, b, pair.value()[0].get()));
    return introduce_to(b, a, pair.value()[1].get());
  }

  Status introduce_to(Rank to, Rank peer, int socket) {
    const LocalMesh::Peer& facts = mesh_.peers[static_cast<std::size_t>(peer)];
    const Answer answer{.kind = Answer::Kind::kPeer, .peer = peer, .pid = facts.pid};
    const int fds[] = {socket, facts.doorbell.get()};
    return send_packet(socket_of(to), bytes_of(answer), fds);
  }

  int socket_of(Rank rank) const {
    const Fd& socket = mesh_.peers[static_cast<std::size_t>(rank)].socket;
    CIRANDA_ASSERT(socket.valid());  // by meet_everybody()
    return socket.get();
  }

  const UnixJoin& join_;
  const std::uint64_t deadline_ns_;
  Status different_;      // error of the first rank with other settings
  std::string stranger_;  // why the last caller of another origin was turned away
  LocalMesh mesh_;
  std::unique_ptr<JobFolder> folder_;
};

Status apply_answer(LocalMesh& mesh, const Answer& answer, std::vector<Fd>& fds) {
  if (answer.kind == Answer::Kind::kRefused) {
    return Error{.code = answer.code, .text = get_text(answer.text)};
  }
  if (answer.kind == Answer::Kind::kControl && fds.size() == 2) {
    if (answer.control_bytes != (ControlBlock::memory_bytes(mesh.size) + 4095) / 4096 * 4096) {
      return invalid(
          "rank 0 has a ciranda with another memory layout; install the same ciranda for every "
          "rank",
          0);
    }
    auto control = MemorySegment::open(std::move(fds[0]), answer.control_bytes,
                                       ControlBlock::ready_bytes(mesh.size));
    if (!control) return control.error();
    mesh.control = std::move(control).value();
    mesh.peers[0].doorbell = std::move(fds[1]);
    mesh.peers[0].pid = answer.pid;
    return {};
  }
  if (answer.kind == Answer::Kind::kPeer && fds.size() == 2 && answer.peer > 0 &&
      answer.peer < mesh.size && answer.peer != mesh.self) {
    mesh.peers[static_cast<std::size_t>(answer.peer)] = {
        .socket = std::move(fds[0]), .doorbell = std::move(fds[1]), .pid = answer.pid};
    return {};
  }
  return Error{.code = ErrorCode::kMalformed, .text = "rank 0 sent an invalid answer", .rank = 0};
}

// Connects to rank 0. Gives up early if the ranks have already met and this process seems to be the
// child of a rank: nobody would answer it.
Result<Fd> find_rank_0(const UnixJoin& join, std::uint64_t deadline_ns) {
  const std::uint64_t look_ns = monotonic_ns() + kLookAfterMs * 1'000'000;
  if (!join.again && look_ns < deadline_ns) {
    auto socket =
        connect_in_job_folder(join.folder, look_ns, join.timeout_ms, "rank 0", join.interrupt);
    if (socket || socket.error().code != ErrorCode::kTimeout) return socket;
    const std::string heir = heir_of_a_rank(join.rank_variable);
    if (!heir.empty() && is_taken(join.folder)) return invalid(heir, join.rank);
  }
  auto socket =
      connect_in_job_folder(join.folder, deadline_ns, join.timeout_ms, "rank 0", join.interrupt);
  if (socket || socket.error().code != ErrorCode::kTimeout || !is_taken(join.folder)) return socket;
  Error error = socket.error();
  error.text += "; another job uses this address, so give each job its own MASTER_PORT";
  return error;
}

// Receives what rank 0 sends to this rank: the control memory, then one answer for each other
// client. Its timeout may have begun later, and it knows which ranks are missing, so this waits
// longer than it does.
Status receive_answers(const UnixJoin& join, int socket, std::uint64_t deadline_ns,
                       LocalMesh& mesh) {
  const Error gone{
      .code = ErrorCode::kRankLost, .text = "rank 0 ended while the job was starting", .rank = 0};
  for (int expected = join.size - 1; expected > 0; --expected) {
    auto readable =
        wait_readable_or_interrupted(socket, deadline_ns + kWordOfRank0Ns, join.interrupt);
    if (!readable) return readable.error();
    if (!readable.value()) {
      return Error{.code = ErrorCode::kTimeout,
                   .text = "rank 0 did not answer within " +
                           std::to_string(join.timeout_ms / 1000) +
                           " s; rank 0 may still be waiting for other ranks",
                   .rank = 0};
    }
    Answer answer;
    auto packet = receive_packet(socket, std::as_writable_bytes(std::span(&answer, 1)));
    if (!packet) return packet.error();
    if (packet.value().what != Received::kPacket) return gone;
    if (packet.value().bytes != sizeof answer || answer.magic != kMagic) {
      return Error{
          .code = ErrorCode::kMalformed, .text = "rank 0 sent an invalid answer", .rank = 0};
    }
    CIRANDA_TRY(apply_answer(mesh, answer, packet.value().fds));
  }
  return {};
}

Result<LocalMesh> join_leader(const UnixJoin& join) {
  const std::uint64_t deadline_ns = monotonic_ns() + join.timeout_ms * 1'000'000;
  auto socket = find_rank_0(join, deadline_ns);
  if (!socket) return socket.error();

  LocalMesh mesh;
  mesh.self = join.rank;
  mesh.size = join.size;
  mesh.peers.resize(static_cast<std::size_t>(join.size));
  auto doorbell = make_doorbell();
  if (!doorbell) return doorbell.error();
  LocalMesh::Peer& own = mesh.peers[static_cast<std::size_t>(join.rank)];
  own.doorbell = std::move(doorbell).value();
  own.pid = ::getpid();

  LocalHello hello{.rank = join.rank, .size = join.size};
  CIRANDA_ASSERT(join.job_id.size() < sizeof hello.job_id);      // by join_unix()
  CIRANDA_ASSERT(join.settings.size() < sizeof hello.settings);  // I17: compared as a whole
  set_text(hello.job_id, join.job_id);
  set_text(hello.settings, join.settings);
  const int fds[] = {own.doorbell.get()};
  CIRANDA_TRY(send_packet(socket.value().get(), bytes_of(hello), fds));

  CIRANDA_TRY(receive_answers(join, socket.value().get(), deadline_ns, mesh));
  mesh.peers[0].socket = std::move(socket).value();
  return mesh;
}

}  // namespace

Result<LocalMesh> join_unix(const UnixJoin& join) {
  if (join.size < 1 || join.size > kLocalRanksMax || join.rank < 0 || join.rank >= join.size) {
    return invalid("rank " + std::to_string(join.rank) + " of " + std::to_string(join.size) +
                   " is outside the limits (at most " + std::to_string(kLocalRanksMax) +
                   " ranks on a host)");
  }
  if (join.job_id.size() >= sizeof(LocalHello::job_id)) return invalid("the job id is too long");
  if (join.size == 1) {
    auto alone = make_loopback(1);
    if (!alone) return alone.error();
    return std::move(alone.value()[0]);
  }
  if (join.rank == 0) return LocalLeader(join).run();
  return join_leader(join);
}

}  // namespace ciranda
