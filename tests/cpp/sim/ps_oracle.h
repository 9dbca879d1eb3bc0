#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/ps/decide/server_protocol.h"

namespace ciranda::sim {

// An answer that a server owes.
struct PsAnswer {
  enum class Kind : std::uint8_t { kWelcome, kRefused, kReady, kAck };
  ps::ServerProtocol::Caller to = -1;
  Kind kind = Kind::kAck;
  std::uint64_t number = 0;  // kWelcome: decided; kAck: seq
  ps::Outcome outcome = ps::Outcome::kApplied;
  std::uint64_t version = 0;  // kReady, kAck
  std::uint64_t clock = 0;    // kReady, kAck
  bool operator==(const PsAnswer&) const = default;
};

// What one server must do, by the rules of docs/protocol.md in their plainest form: no memory, no
// layout, a number for each parameter. It is told what the ServerProtocol is told.
class PsOracle {
 public:
  struct Options {
    ps::Mode mode;
    std::size_t workers = 1;
    std::size_t slots = 1;
    std::uint64_t lease = 1;
  };
  explicit PsOracle(const Options& options);

  using Answers = std::vector<PsAnswer>;
  using Caller = ps::ServerProtocol::Caller;
  using Values = std::vector<double>;  // by slot

  struct Push {
    std::uint64_t seq = 0;
    std::uint64_t base = 0;
    std::uint64_t clock = 0;
    double gradient = 0.0;
    std::vector<bool> used;
  };
  // Each begins with what it means that the caller is heard.
  void enter(Caller caller, const ps::Enter& entry, std::uint64_t now, Answers& answers);
  void declare(Caller caller, double first, std::uint64_t decided, std::uint64_t now,
               Answers& answers);
  void push(Caller caller, const Push& push, std::uint64_t now, Answers& answers);
  void pull(Caller caller, std::uint64_t now, Answers& answers);
  void beat(Caller caller, std::uint64_t now);
  void close(Caller caller, bool left, Answers& answers);
  void end_leases(std::uint64_t now, Answers& answers);
  // A snapshot is made: all that there is then is there after a restart.
  void snapshot();
  // It was killed, and comes back with its snapshot and what it has decided since.
  void restart(std::uint64_t now);

  std::uint64_t version() const { return history_.empty() ? 0 : history_.size() - 1; }
  // Of all versions; none before the first parameters are given.
  const std::vector<Values>& history() const { return history_; }
  ps::Worker giver() const { return giver_; }
  bool has_applied(ps::Worker worker, std::uint64_t seq) const {
    return applied_.contains({worker, seq});
  }
  const std::set<std::pair<ps::Worker, std::uint64_t>>& applied() const { return applied_; }
  // Of the worker's pushes, those that it has decided.
  std::uint64_t pushes(std::size_t worker) const { return peers_[worker].pushes; }
  bool gate_is_open(std::uint64_t clock) const;
  std::uint64_t silences() const { return silences_; }

 private:
  enum class Presence : std::uint8_t { kExpected, kHere, kSilent, kGone };
  struct Peer {
    Presence presence = Presence::kExpected;
    bool counts() const { return presence == Presence::kExpected || presence == Presence::kHere; }
    ps::Life life = 0;
    std::uint64_t process = 0;
    Caller caller = -1;
    bool left = false;
    bool waits = false;  // for the first parameters
    double first = 0.0;  // its own
    std::uint64_t heard = 0;
    std::uint64_t decided = 0;
    std::uint64_t pushes = 0;
    std::uint64_t clock = 0;
    std::uint64_t kept_decided = 0;  // as a restart finds them
    std::uint64_t kept_clock = 0;
    std::optional<Push> parked;
    std::optional<std::uint64_t> held;  // the seq
    ps::Outcome held_as = ps::Outcome::kApplied;
    std::uint64_t held_clock = 0;
  };

  Peer* peer_of(Caller caller);
  ps::Worker number_of(const Peer& peer) const {
    return static_cast<ps::Worker>(&peer - peers_.data());
  }
  std::optional<std::uint64_t> slowest(Presence silent_too) const;
  std::uint64_t clock_to_return_to(const Peer& peer, Presence or_of) const;
  void hear(Peer& peer, std::uint64_t now);
  void apply(const std::vector<std::pair<ps::Worker, Push>>& pushes, double weight);
  void decide(Peer& peer, const Push& push);
  void answer_or_hold(Peer& peer, const Push& push, const PsAnswer& answer, Answers& answers) const;
  void give(Answers& answers);
  void settle(Answers& answers);  // who need wait no longer

  const Options options_;
  std::vector<Peer> peers_;
  std::uint64_t round_clock_ = 0;
  std::optional<std::uint64_t> expected_until_;  // after a restart: who has not come back
  std::vector<Values> history_;
  ps::Worker giver_ = -1;
  std::set<std::pair<ps::Worker, std::uint64_t>> applied_;
  std::uint64_t silences_ = 0;
};

}  // namespace ciranda::sim
