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

// TLS 1.3 between two ranks, by OpenSSL. Both sides prove themselves with the job's key (an
// external pre-shared key), without certificates. Each connection also agrees on fresh keys
// (psk_dhe_ke), so a job key that is stolen later does not decrypt recorded traffic. There are no
// tickets and no early data, and the only cipher suite is TLS_AES_128_GCM_SHA256.
//
// These classes use no socket: bytes come in, in pieces of any size, and outgoing bytes wait for
// the caller to send them. OpenSSL draws the random numbers.
namespace ciranda {

class TlsSession;

// The TLS context that the connections of one job share.
class Tls {
 public:
  // Records before a key update: AES-GCM allows 2^24.5 full ones under one key (RFC 8446, 5.5).
  static constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 23;

  // `job` travels in clear as the identity of the key. Returns kUnsupported if this machine's
  // OpenSSL does not offer TLS 1.3 with the cipher suite.
  static Result<std::unique_ptr<Tls>> create(const Secret& job_key, std::span<const std::byte> job,
                                             std::uint64_t records_per_key = kRecordsPerKey);
  ~Tls();

  // Return a new session, for the dialing and for the accepting side. This object must outlive the
  // session's handshake. kForked in a forked child; kSystem without memory. Thread-safe.
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

// The TLS of one connection. After an Error it must not be used again, except for outgoing() and
// sent(). Not thread-safe.
class TlsSession {
 public:
  static constexpr std::size_t kHandshakeBytesMax = 4096;  // taken from an unproven peer

  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Takes bytes off the front of `input` and continues the handshake as far as they allow. Returns
  // kInvalidArgument if the peer is refused; the text is for this side's log. The caller then sends
  // outgoing(), also after an Error.
  Status shake_hands(std::span<const std::byte>& input);
  // Returns true once both sides have proven themselves.
  bool established() const { return established_; }

  // Encrypts `bytes` and appends the records to outgoing(). Returns kSystem if OpenSSL fails.
  Status seal(std::span<const std::byte> bytes);

  // Takes bytes off the front of `input` and decrypts them into `into`. Returns how many bytes it
  // wrote; 0 once `input` is used up. Returns kMalformed if the bytes were changed on their way,
  // kRankLost if the peer ended the TLS session.
  Result<std::size_t> open(std::span<const std::byte>& input, std::span<std::byte> into);

  std::span<const std::byte> outgoing() const { return std::span(outgoing_).subspan(sent_); }
  void sent(std::size_t bytes);  // drops them from outgoing()

 private:
  friend class Tls;
  friend struct TlsCallbacks;
  TlsSession(const Tls& tls, ssl_st* ssl, bool is_server);
  // Connects OpenSSL's I/O to input_ and outgoing_. Returns false without memory.
  bool attach();
  // Refuses a peer that does not speak TLS, before OpenSSL reads its bytes.
  Status judge_first_byte(std::byte first);
  Error refused() const;

  const Tls& tls_;  // valid during the handshake only
  const std::uint64_t records_per_key_;
  ssl_st* const ssl_;
  const bool is_server_;
  bool established_ = false;
  bool is_of_another_job_ = false;
  std::uint64_t records_ = 0;                    // sealed so far
  std::size_t heard_ = 0;                        // bytes of the handshake so far
  std::span<const std::byte>* input_ = nullptr;  // set while OpenSSL may read
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;  // of outgoing_
};

// The advice in errors about a job that mixes TLS and clear connections.
inline constexpr std::string_view kTlsForAllOrNone =
    "one side wants TLS and the other does not; give --tls (CIRANDA_TLS=1) to all ranks or to none";

// The answer to a rank that does not speak TLS: the fatal alert protocol_version.
inline constexpr std::array<std::byte, 7> kTlsRefusal = {std::byte{21}, std::byte{3}, std::byte{3},
                                                         std::byte{0},  std::byte{2}, std::byte{2},
                                                         std::byte{70}};

}  // namespace ciranda
