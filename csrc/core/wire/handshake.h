#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/secret.h"
#include "core/wire/connection_keys.h"
#include "core/wire/types.h"

// Two ranks, or a worker and a parameter server, prove to each other that they hold the job's key;
// docs/protocol.md has the bytes.
//
//   client                                server
//   cookie, 16 bytes              ->   in clear, even if TLS follows
//   hello, 128 bytes              ->
//                                 <-      32 random bytes
//   proof, 32 bytes               ->
//                                 <-      welcome and proof, 48 bytes
//
// The client proves first, so a client without the key learns only 32 random bytes. Each proof
// covers everything said before it except the cookie. These classes use no socket, clock or
// randomness: bytes come in, in pieces of any size; bytes and a verdict go out. A refusal is an
// Error whose text is for this side's log. The peer only sees its connection closed; a proven peer
// also learns the version.
namespace ciranda {

using Nonce = std::array<std::byte, 32>;

// Versions of the protocol after the handshake. The handshake's own bytes never change.
struct Versions {
  std::uint16_t min = 2;
  std::uint16_t max = 2;
};

// The client's message of 128 bytes.
struct Hello {
  Versions versions = {};
  Purpose purpose = Purpose::kControl;
  std::uint16_t stream = 0;  // numbers the connections of one purpose between two ranks
  JobId job = {};
  Rank from = kNoRank;
  Rank to = kNoRank;
  Epoch epoch = 0;
  Incarnation incarnation = 0;  // the client's
  Nonce nonce = {};
};

// Returns kMalformed if a caller's first bytes are those of another protocol: "they look like
// HTTP".
Status check_not_another_protocol(std::span<const std::byte> bytes);

// The result of a handshake, after both sides have proven themselves.
struct Session {
  Rank peer = kNoRank;
  Incarnation peer_incarnation = 0;
  Purpose purpose = Purpose::kControl;
  std::uint16_t stream = 0;
  std::uint16_t version = 0;  // the newest that both sides speak
  Secret send_key;
  Secret receive_key;
};

inline constexpr std::size_t kHelloBytes = 128;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kWelcomeBytes = 16 + kProofBytes;

// Collects a message of known length that arrives in pieces.
class Intake {
 public:
  std::size_t missing() const { return size_ - have_; }
  std::span<const std::byte> bytes() const { return std::span(buffer_).first(have_); }
  void expect(std::size_t size);
  void take(std::span<const std::byte> bytes);  // asserts that they fit

 private:
  std::array<std::byte, kHelloBytes> buffer_ = {};
  std::size_t size_ = 0;
  std::size_t have_ = 0;
};

// The server's side of one handshake. `keys` must outlive it. Not thread-safe.
class ServerHandshake {
 public:
  struct Side {
    Rank self = kNoRank;
    Incarnation incarnation = 0;
    int ranks = 0;  // size of the job; a parameter server does not use it
    Versions versions = {};
    bool is_server = false;  // a parameter server: accepts kService and nothing else
  };
  // `nonce` is random and used for this connection only.
  ServerHandshake(const ConnectionKeys& keys, const Side& side, const Nonce& nonce);

  // Returns how many bytes to read at most; 0 once the handshake is over.
  std::size_t wanted() const { return input_.missing(); }

  // Takes at most wanted() bytes and appends the reply to `out`. Errors: kMalformed,
  // kInvalidArgument (refused), kForked, kUnsupported (no common version). After an Error the
  // caller closes the connection. Only kUnsupported has a reply, which tells a proven client the
  // version.
  Status receive(std::span<const std::byte> bytes, std::vector<std::byte>& out);

  // Returns the client's claims, set once its hello is accepted. They are proven once session() is
  // set.
  const std::optional<Hello>& hello() const { return hello_; }
  // Returns the session, set once the client has proven itself. The caller moves it out.
  std::optional<Session>& session() { return session_; }

 private:
  Status take_hello(std::vector<std::byte>& out);
  Status take_proof(std::vector<std::byte>& out);
  Status judge(const Hello& hello) const;

  const ConnectionKeys& keys_;
  const Side side_;
  const Nonce nonce_;
  Intake input_;
  std::array<std::byte, kHelloBytes> hello_bytes_ = {};
  std::optional<Hello> hello_;
  std::optional<Session> session_;
};

// The client's side of one handshake. `keys` must outlive it. Not thread-safe.
class ClientHandshake {
 public:
  // The constructor takes job and epoch from the keys. `hello.nonce` is random and used once.
  ClientHandshake(const ConnectionKeys& keys, const Hello& hello);

  // Returns the bytes to send first, after the cookie.
  std::span<const std::byte> hello() const { return hello_bytes_; }

  // These work as in ServerHandshake. No Error has a reply.
  std::size_t wanted() const { return input_.missing(); }
  Status receive(std::span<const std::byte> bytes, std::vector<std::byte>& out);
  std::optional<Session>& session() { return session_; }
  // Returns true once the server has answered the hello. This side's proof is then on its way and
  // may have convinced the server.
  bool answered() const { return server_nonce_.has_value(); }

 private:
  Status take_welcome();

  const ConnectionKeys& keys_;
  Hello hello_;
  std::array<std::byte, kHelloBytes> hello_bytes_ = {};
  std::optional<Nonce> server_nonce_;
  MacTag proof_ = {};
  Intake input_;
  std::optional<Session> session_;
};

}  // namespace ciranda
