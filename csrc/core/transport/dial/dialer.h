#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/socket_io.h"
#include "core/transport/tcp/stream.h"
#include "core/transport/tcp/tcp.h"
#include "core/wire/handshake.h"

namespace ciranda {

// Connects to the rank or server `hello.to` and proves both sides. It tries the candidate addresses
// in turn until the deadline, each for kProofMs at most: the peer may not listen yet, and an
// address may belong to another machine.
//
// Never blocks, except in the system's resolver if a candidate is a name. The caller passes in the
// time (monotonic_ns). Not thread-safe. `keys` must outlive it.
class Dialer {
 public:
  Dialer(const ConnectionKeys& keys, const Hello& hello, std::vector<Endpoint> candidates,
         std::uint64_t deadline_ns);

  Rank to() const { return hello_.to; }
  // Returns true if no host has taken a call at any of the addresses, and kUnansweredNs have passed
  // since the first one.
  bool is_unanswered(std::uint64_t now_ns) const {
    return !has_connected_ && begun_ns_ && now_ns >= *begun_ns_ + kUnansweredNs;
  }
  static constexpr std::uint64_t kUnansweredNs = 10'000'000'000;  // some calls again, on a bad line

  // Continues as far as possible without waiting. Returns the connection when it is proven, and
  // nullopt before. The dialer is done after it has returned a connection or an Error. kTimeout
  // says what was wrong with each candidate. kUnsupported means that the peer is proven but speaks
  // another version.
  Result<std::optional<ProvenSocket>> advance(std::uint64_t now_ns);

  // Return the events and the deadline (monotonic_ns) to wait for before the next advance().
  Watched watched() const;
  std::uint64_t next_deadline_ns() const;

 private:
  // One address, from the first packet to the proof.
  struct Attempt {
    SocketAddress address;
    Stream stream;
    std::uint64_t deadline_ns = 0;
    bool connected = false;
    bool cookie_sent = false;
    bool established = false;
    ClientHandshake handshake;
    std::vector<std::byte> unsent;
  };

  void begin_attempt(std::uint64_t now_ns);
  Result<std::optional<ProvenSocket>> advance_attempt(std::uint64_t now_ns);
  Result<bool> prove();
  bool send_cookie(int socket) const;
  void give_up(const Error& why);
  Error unreachable() const;

  const ConnectionKeys& keys_;
  const Hello hello_;
  const Cookie cookie_;
  const std::vector<Endpoint> candidates_;
  const std::uint64_t deadline_ns_;
  std::optional<std::uint64_t> begun_ns_;  // with the first attempt
  bool has_connected_ = false;
  std::vector<std::string> reasons_;      // of failures, by candidate
  std::size_t candidate_ = 0;             // the current or next one
  std::vector<SocketAddress> addresses_;  // of this candidate, not tried yet
  std::optional<Attempt> attempt_;
  std::uint64_t pause_ms_;       // pause after the next round over all candidates
  std::uint64_t resume_ns_ = 0;  // the end of the last pause
};

// Dials and blocks until the connection is proven; returns kTimeout at the deadline (monotonic_ns).
Result<ProvenSocket> connect_authenticated(const ConnectionKeys& keys, const Hello& hello,
                                           std::span<const Endpoint> candidates,
                                           std::uint64_t deadline_ns);

}  // namespace ciranda
