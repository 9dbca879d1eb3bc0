#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/transport/dial/roster.h"
#include "core/transport/dial/throttle.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/stream.h"
#include "core/transport/tcp/tcp.h"
#include "core/wire/handshake.h"

namespace ciranda {

// Accepts connections from other ranks. Strangers cost little: at most kStrangersMax sockets at a
// time, 176 bytes read and 2 s of patience each. One summary() tells of many of them.
//
// Strangers cannot keep ranks away either. A caller that shows the job's cookie takes the place of
// a caller without it. The guard goes up when callers without the cookie exceed the free places or
// the throttle: for kGuardMs the kernel drops their packets. While the guard is down they get a
// handshake, so that the summary says what is wrong with them. If callers with the cookie hold all
// places, further callers wait in the kernel, and each place is kept for kTurnMs only.
//
// Never blocks. The caller passes in the time (monotonic_ns). Not thread-safe: one thread owns it.
// `keys` must outlive it.
class Acceptor {
 public:
  static constexpr std::size_t kStrangersMax = 64;    // callers that are not proven yet
  static constexpr int kAcceptedPerPollMax = 64;      // a flood must not keep the thread busy
  static constexpr std::uint64_t kTurnMs = 100;       // enough for two round trips
  static constexpr std::uint64_t kCallsAtOnce = 512;  // callers without the cookie
  static constexpr std::uint64_t kCallsPerSecond = 64;
  static constexpr std::uint64_t kGuardMs = 10'000;
  static constexpr std::uint64_t kSummaryMs = 10'000;  // between two summaries

  // `listeners` are listening, non-blocking sockets. `proof_ms` is the patience with each stranger.
  static Result<Acceptor> create(std::vector<Fd> listeners, const ConnectionKeys& keys,
                                 const ServerHandshake::Side& side,
                                 std::uint64_t proof_ms = kProofMs);

  // Returns a descriptor that is readable when poll() has work.
  int fd() const { return epoll_.get(); }

  // Returns when poll() must be called even if fd() is not readable (monotonic_ns); nullopt: never.
  std::optional<std::uint64_t> next_deadline_ns() const;

  // Accepts calls and continues handshakes as far as possible without waiting. Returns the
  // connections that were proven. A connection replaces an earlier one of the same rank, purpose
  // and stream. Returns kForked in a forked child.
  Result<std::vector<ProvenSocket>> poll(std::uint64_t now_ns);

  // Tells the acceptor that the connection of `session` has ended, so that its rank may call again.
  void forget(const Session& session) {
    roster_.forget(session.peer, session.purpose, session.stream);
  }

  // Closes the listeners in a forked child; the parent still accepts calls. Async-signal-safe.
  void close_listeners() noexcept;

  // Returns a sentence about the callers that were turned away since the last one, at most once in
  // kSummaryMs.
  std::optional<std::string> summary(std::uint64_t now_ns);

  std::uint64_t turned_away() const { return turned_away_; }  // since the start
  std::size_t unproven() const { return strangers_.size(); }

 private:
  struct Stranger {
    Stream stream;
    SocketAddress from;
    std::uint64_t turn_over_ns;  // then another caller may take its place
    std::uint64_t deadline_ns;
    Intake cookie = {};
    bool showed_cookie = false;                     // the right one
    std::optional<ServerHandshake> handshake = {};  // set when the cookie has come, right or wrong
  };
  using Entry = std::list<Stranger>::iterator;

  Acceptor(const ConnectionKeys& keys, const ServerHandshake::Side& side, std::uint64_t proof_ms)
      : keys_(&keys),
        side_(side),
        cookie_(cookie_of(keys, side.self)),
        proof_ns_(proof_ms * 1'000'000) {}

  Status watch(int fd);
  Status take_calls(int listener, std::uint64_t now_ns, int& budget);
  void take_call(Fd socket, const SocketAddress& address, std::uint64_t now_ns);
  bool gets_turn(std::uint64_t now_ns);
  void raise_guard(std::uint64_t now_ns);
  void lower_guard(std::uint64_t now_ns);
  Entry least_welcome();
  bool has_place(bool showed_cookie, std::uint64_t now_ns);
  void pause(bool paused);
  bool take_call_with_spare(int listener, std::uint64_t now_ns);
  Status hear_cookie(Stranger& stranger);
  Status begin_handshake(Stranger& stranger);
  Result<std::optional<ProvenSocket>> hear(Stranger& stranger);
  Status answer(Stranger& stranger, std::span<const std::byte> reply);
  void refuse(Stream stream, const SocketAddress& from, const std::string& why);
  void drop(Entry stranger, const std::string& why);
  void expire(std::uint64_t now_ns);

  const ConnectionKeys* keys_;
  ServerHandshake::Side side_;
  Cookie cookie_;
  std::uint64_t proof_ns_;
  Fd epoll_;
  Fd spare_;  // given up to answer a call when no descriptor is left
  std::vector<Fd> listeners_;
  std::list<Stranger> strangers_;               // the oldest first
  bool paused_ = false;                         // the listeners are not watched
  std::optional<std::uint64_t> guard_ends_ns_;  // empty: the guard is down
  Roster roster_;
  Throttle throttle_{kCallsAtOnce, kCallsPerSecond};
  std::uint64_t turned_away_ = 0;
  std::uint64_t turned_away_reported_ = 0;  // in the last summary
  std::uint64_t next_summary_ns_ = 0;
  std::string last_reason_;
};

}  // namespace ciranda
