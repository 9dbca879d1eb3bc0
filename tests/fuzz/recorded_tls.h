#pragma once

#define OPENSSL_SUPPRESS_DEPRECATED  // RAND_METHOD, which needs no provider of our own
#include <openssl/rand.h>

#include <memory>
#include <random>
#include <vector>

#include "core/wire/tls.h"
#include "wire/keys.h"

// Two ranks that speak TLS, recorded. OpenSSL draws the same random numbers in every run, so the
// same bytes pass again and a rank can be fed with a recording: no input depends on luck, and only
// the side that is tried does the arithmetic of a handshake.
namespace ciranda::fuzz {

using Bytes = std::vector<std::byte>;

enum class Role : std::uint8_t { kListener, kCaller };
constexpr Role other(Role role) {
  return role == Role::kListener ? Role::kCaller : Role::kListener;
}

// From here on OpenSSL draws what belongs to `seed`.
inline void draw_from(unsigned seed) {
  static std::minstd_rand random;
  static const RAND_METHOD kKnown = {
      .seed = nullptr,
      .bytes =
          [](unsigned char* into, int count) {
            for (int i = 0; i < count; ++i) into[i] = static_cast<unsigned char>(random() >> 8);
            return 1;
          },
      .cleanup = nullptr,
      .add = nullptr,
      .pseudorand = nullptr,
      .status = [] { return 1; },
  };
  static const int kSet = RAND_set_rand_method(&kKnown);
  CIRANDA_ASSERT(kSet == 1);
  random.seed(seed);
}

inline std::unique_ptr<Tls> tls_of(int key = 1, int job = 2) {
  constexpr std::uint64_t kRecordsPerKey = 3;  // so that few records renew a key
  return Tls::create(test::secret_of(key), test::job_of(job), kRecordsPerKey).value();
}
inline const Tls& tls() {
  static const std::unique_ptr<Tls> kTls = tls_of();
  return *kTls;
}

inline Bytes take_outgoing(TlsSession& session) {
  Bytes bytes(session.outgoing().begin(), session.outgoing().end());
  session.sent(bytes.size());
  return bytes;
}

// The beginning of a connection; a client has said its hello.
inline std::unique_ptr<TlsSession> begin(Role role, const Tls& tls, unsigned seed = 1) {
  draw_from(seed + (role == Role::kListener ? 1'000'000u : 0u));
  auto session = (role == Role::kListener ? tls.server() : tls.client()).value();
  std::span<const std::byte> nothing;
  if (role == Role::kCaller) CIRANDA_ASSERT(session->shake_hands(nothing).ok());
  return session;
}

// Hands `bytes` to a side that shakes hands, at most `piece` at a time. Gives how many it took
// until it was done or refused.
inline std::size_t shake(TlsSession& session, std::span<const std::byte> bytes, std::size_t piece) {
  std::size_t taken = 0;
  while (!session.established() && taken < bytes.size()) {
    std::span<const std::byte> some = bytes.subspan(taken, std::min(piece, bytes.size() - taken));
    const std::size_t size = some.size();
    const Status status = session.shake_hands(some);
    taken += size - some.size();
    if (!status.ok()) break;
    CIRANDA_ASSERT(session.established() || some.empty());
  }
  return taken;
}

// What one side says, whole.
struct Recording {
  Bytes handshake;
  struct Record {
    Bytes sealed;
    Bytes said;
  };
  std::vector<Record> records;  // after it
};

struct Conversation {
  Recording client;
  Recording server;
  const Recording& of(Role role) const { return role == Role::kListener ? server : client; }
};

inline Conversation record(const Tls& of_client, const Tls& of_server, unsigned seed = 1) {
  const auto client = begin(Role::kCaller, of_client, seed);
  Conversation heard;
  heard.client.handshake = take_outgoing(*client);
  const auto server = begin(Role::kListener, of_server, seed);
  (void)shake(*server, heard.client.handshake, SIZE_MAX);
  heard.server.handshake = take_outgoing(*server);
  (void)shake(*client, heard.server.handshake, SIZE_MAX);
  const Bytes finished = take_outgoing(*client);
  heard.client.handshake.insert(heard.client.handshake.end(), finished.begin(), finished.end());
  (void)shake(*server, finished, SIZE_MAX);
  if (!server->established()) return heard;
  for (const std::size_t size : {1u, 48u, 5u, 300u, 2u}) {
    const Bytes said(size, static_cast<std::byte>(size));
    CIRANDA_ASSERT(client->seal(said).ok() && server->seal(said).ok());
    heard.client.records.push_back({take_outgoing(*client), said});
    heard.server.records.push_back({take_outgoing(*server), said});
  }
  return heard;
}

}  // namespace ciranda::fuzz
