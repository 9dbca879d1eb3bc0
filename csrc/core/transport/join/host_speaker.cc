#include "core/transport/join/host_speaker.h"

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/transport/local/memory_segment.h"
#include "core/transport/local/peer_message.h"
#include "core/transport/tcp/socket_io.h"

namespace ciranda {
namespace {

constexpr std::uint64_t kGraceNs = 500'000'000;  // time for the first rank to report an error

// The first byte of a refusal says why the meeting failed; its text follows.
constexpr std::byte kContradiction{0};
constexpr std::byte kLoss{1};  // a rank has ended, or the meeting was interrupted

// Sends bytes of any length to a rank of this host, in memory that both ranks map.
Status send_bytes(int socket, PeerMessage::Kind kind, std::span<const std::byte> bytes) {
  auto memory = MemorySegment::create(bytes.size());
  if (!memory) return memory.error();
  const auto& [segment, fd] = memory.value();
  std::memcpy(segment.data(), bytes.data(), bytes.size());
  return send_message(
      socket,
      {.kind = kind, .segment = static_cast<std::uint32_t>(bytes.size()), .bytes = segment.bytes()},
      fd.get());
}

struct Arrived {
  PeerMessage::Kind kind;
  std::vector<std::byte> bytes;
};
// Blocks until bytes come; returns nullopt at the deadline.
Result<std::optional<Arrived>> receive_bytes(int socket, const SpeakerWait& wait) {
  auto readable = wait_readable_or_interrupted(socket, wait.deadline_ns, wait.interrupt);
  if (!readable) return readable.error();
  if (!readable.value()) return std::optional<Arrived>();
  auto received = receive_message(socket);
  if (!received) return received.error();
  if (!received.value()) return std::optional<Arrived>();
  const PeerMessage& message = received.value()->message;
  auto memory = MemorySegment::open(std::move(received.value()->fd), message.bytes);
  if (!memory) return memory.error();
  if (message.segment > message.bytes) {
    return Error{.code = ErrorCode::kMalformed, .text = "it sent a payload that is cut off"};
  }
  const std::byte* const bytes = memory.value().data();
  return std::optional(Arrived{message.kind, {bytes, bytes + message.segment}});
}

int socket_to(const LocalMesh& mesh, int local) {
  CIRANDA_ASSERT(local != mesh.self && static_cast<std::size_t>(local) < mesh.peers.size());
  return mesh.peers[static_cast<std::size_t>(local)].socket.get();
}

Status tell_all(const LocalMesh& mesh, PeerMessage::Kind kind, std::span<const std::byte> bytes) {
  CIRANDA_ASSERT(mesh.self == 0);  // the first rank speaks
  Status all;
  for (int local = 1; local < mesh.size; ++local) {
    Status told = send_bytes(socket_to(mesh, local), kind, bytes);
    if (all && !told) all = std::move(told);
  }
  return all;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Result<std::vector<Introduction>> gather_host(const LocalMesh& mesh, const Introduction& self,
                                              const SpeakerWait& wait) {
  CIRANDA_ASSERT(mesh.self == 0);
  std::vector<Introduction> host = {self};
  for (int local = 1; local < mesh.size; ++local) {
    auto payload = receive_bytes(socket_to(mesh, local), wait);
    if (!payload && payload.error().code == ErrorCode::kShutdown) return payload.error();
    if (!payload || !payload.value()) {
      return Error{.code = payload ? ErrorCode::kTimeout : ErrorCode::kRankLost,
                   .text = "local rank " + std::to_string(local) + " of host " +
                           std::to_string(self.host) + " ended, or did nothing, before the " +
                           "hosts had met"};
    }
    auto introduction = decode_introduction(payload.value()->bytes);
    if (!introduction) return introduction.error();
    host.push_back(std::move(introduction).value());
  }
  return host;
}

Status tell_host(const LocalMesh& mesh, const HostTable& host_table) {
  std::vector<std::byte> payload;
  encode(host_table, payload);
  return tell_all(mesh, PeerMessage::Kind::kHostTable, payload);
}

void refuse_host(const LocalMesh& mesh, const Error& why) {
  const bool is_loss = why.code == ErrorCode::kRankLost || why.code == ErrorCode::kShutdown;
  std::vector<std::byte> payload = {is_loss ? kLoss : kContradiction};
  const auto text = std::as_bytes(std::span(why.text));
  payload.insert(payload.end(), text.begin(), text.end());
  (void)tell_all(mesh, PeerMessage::Kind::kRefused, payload);
}

Result<HostTable> let_first_speak(const LocalMesh& mesh, const Introduction& self,
                                  const SpeakerWait& wait) {
  CIRANDA_ASSERT(mesh.self != 0);
  std::vector<std::byte> payload;
  encode(self, payload);
  CIRANDA_TRY(send_bytes(socket_to(mesh, 0), PeerMessage::Kind::kIntroduction, payload));
  // The first rank watches the deadline and reports the missing rank, so wait a little longer for
  // it.
  auto answer = receive_bytes(socket_to(mesh, 0), {.deadline_ns = wait.deadline_ns + kGraceNs,
                                                   .interrupt = wait.interrupt});
  if (!answer && answer.error().code == ErrorCode::kShutdown) return answer.error();
  if (!answer || !answer.value()) {
    return Error{.code = answer ? ErrorCode::kTimeout : ErrorCode::kRankLost,
                 .text = "the first rank of host " + std::to_string(self.host) +
                         " ended, or did nothing, before the hosts had met; its log says more"};
  }
  if (answer.value()->kind != PeerMessage::Kind::kHostTable) {
    const std::span<const std::byte> why = answer.value()->bytes;
    if (why.empty())
      return Error{.code = ErrorCode::kMalformed, .text = "it refused without a word"};
    return Error{.code = why[0] == kLoss ? ErrorCode::kRankLost : ErrorCode::kInvalidArgument,
                 .text = text_of(why.subspan(1))};
  }
  return decode_host_table_of(answer.value()->bytes, self.size);
}

}  // namespace ciranda
