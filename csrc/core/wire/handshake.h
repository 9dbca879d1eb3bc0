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

// How two ranks prove to each other that they hold the job's key; docs/protocol.md has the bytes.
//
//   client                                server
//   cookie, 16 bytes              ->   in clear, also where TLS follows
//   hello, 128 bytes              ->
//                                 <-      32 random bytes
//   proof, 32 bytes               ->
//                                 <-      welcome and proof, 48 bytes
//
// The client proves first: who does not hold the key learns 32 random bytes. Everything that either
// side said is in both proofs. No socket, clock or randomness here: bytes come in, in pieces of any
// size; bytes and a verdict go out. A refusal is an Error whose text is for this side's log; the
// peer is told nothing, its connection is closed. Only to a proven one a version is told.
namespace ciranda {

using Nonce = std::array<std::byte, 32>;

// Versions of what follows the handshake; its own bytes never change.
struct Versions {
  std::uint16_t min = 2;
  std::uint16_t max = 2;
};

// What the client says first.
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

// kMalformed when a caller's first bytes are those of another protocol: "they look like HTTP".
Status check_not_another_protocol(std::span<const std::byte> bytes);

// What both sides know once they have proven themselves.
struct Session {
  Rank peer = kNoRank;
  Incarnation peer_incarnation = 0;
  Purpose purpose = Purpose::kControl;
  std::uint16_t stream = 0;
  std::uint16_t version = 0;  // the newest that both speak
  Secret send_key;
  Secret receive_key;
};

inline constexpr std::size_t kHelloBytes = 128;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kWelcomeBytes = 16 + kProofBytes;

// Collects a message of known length that comes in pieces.
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

// The side that listens. `keys` must outlive it.
class ServerHandshake {
 public:
  struct Side {
    Rank self = kNoRank;
    Incarnation incarnation = 0;
    int ranks = 0;  // of the job; a server asks none of its callers
    Versions versions = {};
    bool is_server = false;  // takes kService, and nothing else
  };
  // `nonce` is random and used for this one connection.
  ServerHandshake(const ConnectionKeys& keys, const Side& side, const Nonce& nonce);

  // How many bytes to read at most; 0 once the handshake is over.
  std::size_t wanted() const { return input_.missing(); }

  // Takes at most wanted() bytes, appends what to send. With an Error that is nothing, unless a
  // client that has proven itself speaks no version of ours: it learns so before it is hung up on.
  Status receive(std::span<const std::byte> bytes, std::vector<std::byte>& out);

  // What the client claims, once its hello was acceptable; proven when session() is there.
  const std::optional<Hello>& hello() const { return hello_; }
  // Set when the client has proven itself. The caller takes it.
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

// The side that connects. `keys` must outlive it.
class ClientHandshake {
 public:
  // `hello.job` and `hello.epoch` are set from the keys; `hello.nonce` is random and used once.
  ClientHandshake(const ConnectionKeys& keys, const Hello& hello);

  // What to send first.
  std::span<const std::byte> hello() const { return hello_bytes_; }

  // As ServerHandshake's.
  std::size_t wanted() const { return input_.missing(); }
  Status receive(std::span<const std::byte> bytes, std::vector<std::byte>& out);
  std::optional<Session>& session() { return session_; }
  // The server has answered the hello: this side's proof is on its way, and may have convinced it.
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
