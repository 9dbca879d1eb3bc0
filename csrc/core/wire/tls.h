#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/secret.h"

struct ssl_st;
struct ssl_ctx_st;
struct ssl_session_st;

// TLS 1.3 between two ranks, by OpenSSL. The job's key is the proof of both sides (an external
// pre-shared key), so there are no certificates; each connection also draws keys of its own
// (psk_dhe_ke), so who steals the job's key later cannot read what was recorded. No tickets, no
// early data, one cipher suite: TLS_AES_128_GCM_SHA256.
//
// No socket here: bytes come in, in pieces of any size, and wait to be sent. OpenSSL draws the
// random numbers.
namespace ciranda {

class TlsSession;

// What the connections of one job have in common.
class Tls {
 public:
  // Keys wear out: AES-GCM allows 2^24.5 full records under one (RFC 8446, 5.5).
  static constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 23;

  // `job` says in clear which job it is. kUnsupported when this machine's OpenSSL does not offer
  // what it takes.
  static Result<std::unique_ptr<Tls>> create(const Secret& job_key, std::span<const std::byte> job,
                                             std::uint64_t records_per_key = kRecordsPerKey);
  ~Tls();

  // A session's side that begins, and the one that answers. This must outlive their handshakes.
  // kForked in a forked child. Thread-safe.
  Result<std::unique_ptr<TlsSession>> client() const;
  Result<std::unique_ptr<TlsSession>> server() const;

 private:
  friend class TlsSession;
  friend struct TlsCallbacks;
  Tls(Secret key, std::span<const std::byte> job, std::uint64_t records_per_key);
  bool configure();
  Result<std::unique_ptr<TlsSession>> session(bool is_server) const;
  ssl_session_st* known_session(ssl_st* ssl) const;

  const Secret key_;
  const std::vector<std::byte> job_;
  const std::uint64_t records_per_key_;
  ssl_ctx_st* context_ = nullptr;
};

// One connection. After an Error it is of no use any more. Not thread-safe.
class TlsSession {
 public:
  static constexpr std::size_t kHandshakeBytesMax = 4096;  // that are taken from an unproven peer

  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Takes bytes off the front of `input` and goes on with the handshake as far as they lead. The
  // caller sends what is outgoing, also after an Error, whose text is for this side's log.
  Status shake_hands(std::span<const std::byte>& input);
  // Both sides have proven themselves.
  bool established() const { return established_; }

  // Encrypts all of it; it is outgoing then.
  Status seal(std::span<const std::byte> bytes);

  // Takes bytes off the front of `input` and decrypts into `into`; gives how many, 0 when `input`
  // is used up. kMalformed when they were changed on their way.
  Result<std::size_t> open(std::span<const std::byte>& input, std::span<std::byte> into);

  std::span<const std::byte> outgoing() const { return std::span(outgoing_).subspan(sent_); }
  void sent(std::size_t bytes);

 private:
  friend class Tls;
  friend struct TlsCallbacks;
  TlsSession(const Tls& tls, ssl_st* ssl, bool is_server);
  // Puts input and outgoing_ where OpenSSL expects a socket; false without memory.
  bool attach();
  // What stops a peer before OpenSSL hears it.
  Status judge_first_byte(std::byte first);
  Error refused() const;

  const Tls& tls_;  // during the handshake
  const std::uint64_t records_per_key_;
  ssl_st* const ssl_;
  const bool is_server_;
  bool established_ = false;
  bool is_of_another_job_ = false;
  std::uint64_t records_ = 0;                    // sealed
  std::size_t heard_ = 0;                        // bytes of the handshake
  std::span<const std::byte>* input_ = nullptr;  // while OpenSSL may read
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;  // of outgoing_
};

// What whoever mixes both has to know.
inline constexpr std::string_view kTlsForAllOrNone =
    "one side wants TLS and the other does not; give --tls (CIRANDA_TLS=1) to all ranks or to none";

// The answer to a rank that does not speak TLS: a fatal alert, protocol_version.
inline constexpr std::array<std::byte, 7> kTlsRefusal = {std::byte{21}, std::byte{3}, std::byte{3},
                                                         std::byte{0},  std::byte{2}, std::byte{2},
                                                         std::byte{70}};

}  // namespace ciranda
