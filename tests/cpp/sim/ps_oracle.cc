#include "sim/ps_oracle.h"

#include <algorithm>

#include "sim/violation.h"

namespace ciranda::sim {

using ps::ModeKind;
using ps::Outcome;
using ps::StalePolicy;

PsOracle::PsOracle(const Options& options) : options_(options), peers_(options.workers) {}

PsOracle::Peer* PsOracle::peer_of(Caller caller) {
  for (Peer& peer : peers_) {
    if (caller >= 0 && peer.caller == caller) return &peer;
  }
  return nullptr;
}

// Of those that count; where none does and `or_of` is kSilent, of those that are silent.
std::optional<std::uint64_t> PsOracle::slowest(Presence or_of) const {
  std::optional<std::uint64_t> counting;
  std::optional<std::uint64_t> silent;
  for (const Peer& peer : peers_) {
    if (peer.counts()) counting = std::min(counting.value_or(peer.clock), peer.clock);
    if (peer.presence == or_of) silent = std::min(silent.value_or(peer.clock), peer.clock);
  }
  return counting ? counting : silent;
}

bool PsOracle::gate_is_open(std::uint64_t clock) const {
  const auto others = slowest(Presence::kHere);
  return options_.mode.kind != ModeKind::kSsp || !others ||
         clock <= *others + options_.mode.staleness;
}

std::uint64_t PsOracle::clock_to_return_to(const Peer& peer, Presence or_of) const {
  return options_.mode.kind == ModeKind::kSync ? round_clock_ : slowest(or_of).value_or(peer.clock);
}

void PsOracle::hear(Peer& peer, std::uint64_t now) {
  peer.heard = now;
  if (peer.presence != Presence::kSilent) return;
  peer.clock = std::max(peer.clock, clock_to_return_to(peer, Presence::kHere));
  peer.presence = Presence::kHere;
}

void PsOracle::enter(Caller caller, const ps::Enter& entry, std::uint64_t now, Answers& answers) {
  Peer& peer = peers_[static_cast<std::size_t>(entry.worker)];
  const bool returns = entry.life == peer.life && entry.process == peer.process;
  if (entry.life <= peer.life && !returns) {
    answers.push_back({.to = caller, .kind = PsAnswer::Kind::kRefused});
    return;
  }
  if (peer.caller >= 0) {
    answers.push_back({.to = peer.caller, .kind = PsAnswer::Kind::kRefused});
    close(peer.caller, /*left=*/false, answers);
  }
  peer.life = entry.life;
  peer.process = entry.process;
  peer.caller = caller;
  peer.left = false;
  hear(peer, now);
  answers.push_back({.to = caller, .kind = PsAnswer::Kind::kWelcome, .number = peer.decided});
}

void PsOracle::declare(Caller caller, double first, std::uint64_t decided, std::uint64_t now,
                       Answers& answers) {
  Peer* peer = peer_of(caller);
  if (peer == nullptr) return;
  hear(*peer, now);
  if (peer->presence == Presence::kGone) {
    peer->clock = clock_to_return_to(*peer, Presence::kSilent);
  }
  peer->presence = Presence::kHere;
  peer->waits = true;
  peer->first = first;
  peer->decided = std::max(peer->decided, decided);
  give(answers);
}

void PsOracle::give(Answers& answers) {
  if (history_.empty()) {
    const auto giver =
        std::find_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.left; });
    if (giver == peers_.end() || !giver->waits) return;
    giver_ = number_of(*giver);
    history_.push_back(Values(options_.slots, giver->first));
  }
  for (Peer& peer : peers_) {
    if (!std::exchange(peer.waits, false)) continue;
    answers.push_back({.to = peer.caller,
                       .kind = PsAnswer::Kind::kReady,
                       .version = version(),
                       .clock = peer.clock});
  }
}

void PsOracle::push(Caller caller, const Push& push, std::uint64_t now, Answers& answers) {
  Peer* peer = peer_of(caller);
  if (peer == nullptr) return;
  hear(*peer, now);
  const ps::Worker worker = number_of(*peer);
  PsAnswer answer{.to = caller, .number = push.seq};
  if (push.seq <= peer->decided) {
    if (peer->held == push.seq) return;
    answer.outcome = Outcome::kDuplicate;
    answer.version = version();
    answer.clock = peer->clock;
    return answer_or_hold(*peer, push, answer, answers);
  }
  if (peer->held || (peer->parked && peer->parked->seq != push.seq)) {
    answers.push_back({.to = caller, .kind = PsAnswer::Kind::kRefused});
    return close(caller, /*left=*/false, answers);
  }
  const ps::Mode& mode = options_.mode;
  const std::uint64_t staleness = version() - push.base;
  peer->clock = std::max(peer->clock, push.clock);
  if (mode.kind == ModeKind::kSync && staleness == 0) {
    peer->parked = push;
    return settle(answers);
  }
  decide(*peer, push);
  if (mode.kind == ModeKind::kSync) {
    answer.outcome = Outcome::kLate;
  } else if (mode.kind == ModeKind::kAsync && mode.policy == StalePolicy::kDrop &&
             staleness > mode.max_staleness) {
    answer.outcome = Outcome::kStale;
  } else {
    const bool scaled = mode.kind == ModeKind::kAsync && mode.policy == StalePolicy::kScale;
    apply({{worker, push}}, scaled && staleness > 1 ? 1.0 / static_cast<double>(staleness) : 1.0);
  }
  answer.version = version();
  answer.clock = peer->clock;
  answer_or_hold(*peer, push, answer, answers);
  settle(answers);
}

void PsOracle::answer_or_hold(Peer& peer, const Push& push, const PsAnswer& answer,
                              Answers& answers) const {
  if (gate_is_open(push.clock)) return answers.push_back(answer);
  peer.held = push.seq;
  peer.held_as = answer.outcome;
  peer.held_clock = push.clock;
}

// What a restart knows of it, too.
void PsOracle::decide(Peer& peer, const Push& push) {
  peer.decided = push.seq;
  ++peer.pushes;
  peer.clock = std::max(peer.clock, round_clock_);
  peer.kept_decided = push.seq;
  peer.kept_clock = std::max({peer.kept_clock, push.clock, round_clock_});
}

void PsOracle::snapshot() {
  for (Peer& peer : peers_) {
    peer.kept_decided = peer.decided;
    peer.kept_clock = peer.clock;
  }
}

void PsOracle::restart(std::uint64_t now) {
  for (Peer& peer : peers_) {
    peer.presence = peer.left ? Presence::kGone : Presence::kExpected;
    peer.caller = -1;
    peer.waits = false;
    peer.decided = peer.kept_decided;
    peer.clock = peer.kept_clock;
    peer.parked.reset();
    peer.held.reset();
  }
  expected_until_ = now + options_.lease;
}

void PsOracle::apply(const std::vector<std::pair<ps::Worker, Push>>& pushes, double weight) {
  Values values = history_.back();
  for (const auto& [worker, push] : pushes) {
    for (std::size_t slot = 0; slot < values.size(); ++slot) {
      if (push.used[slot]) values[slot] -= weight * push.gradient;
    }
    require(applied_.insert({worker, push.seq}).second, "I21: a push is applied twice");
  }
  history_.push_back(std::move(values));
}

void PsOracle::settle(Answers& answers) {
  std::vector<std::pair<ps::Worker, Push>> round;
  std::uint64_t clock = UINT64_MAX;
  for (const Peer& peer : peers_) {
    if (!peer.parked) continue;
    round.push_back({number_of(peer), *peer.parked});
    clock = std::min(clock, peer.parked->clock);
  }
  std::size_t missing = 0;
  for (const Peer& peer : peers_) {
    if (!peer.parked && peer.counts() && peer.clock < clock) ++missing;
  }
  if (!round.empty() && missing <= options_.mode.backup_workers) {
    apply(round, 1.0 / static_cast<double>(round.size()));
    round_clock_ = std::max(round_clock_, clock);
    for (const auto& [worker, push] : round) {
      Peer& peer = peers_[static_cast<std::size_t>(worker)];
      peer.parked.reset();
      decide(peer, push);
      answers.push_back(
          {.to = peer.caller, .number = push.seq, .version = version(), .clock = peer.clock});
    }
  }
  for (Peer& peer : peers_) {
    if (!peer.held || !gate_is_open(peer.held_clock)) continue;
    answers.push_back({.to = peer.caller,
                       .number = *peer.held,
                       .outcome = peer.held_as,
                       .version = version(),
                       .clock = peer.clock});
    peer.held.reset();
  }
}

void PsOracle::pull(Caller caller, std::uint64_t now, Answers& answers) {
  Peer* peer = peer_of(caller);
  if (peer == nullptr) return;
  hear(*peer, now);
  answers.push_back(
      {.to = caller, .kind = PsAnswer::Kind::kReady, .version = version(), .clock = peer->clock});
}

void PsOracle::beat(Caller caller, std::uint64_t now) {
  if (Peer* peer = peer_of(caller); peer != nullptr) hear(*peer, now);
}

void PsOracle::close(Caller caller, bool left, Answers& answers) {
  Peer* peer = peer_of(caller);
  if (peer == nullptr) return;
  peer->presence = Presence::kGone;
  peer->caller = -1;
  peer->left = left;
  peer->waits = false;
  peer->parked.reset();
  peer->held.reset();
  settle(answers);
  if (left) give(answers);
}

void PsOracle::end_leases(std::uint64_t now, Answers& answers) {
  for (Peer& peer : peers_) {
    if (peer.caller < 0 || !peer.counts() || now < peer.heard + options_.lease) continue;
    peer.presence = Presence::kSilent;
    ++silences_;
  }
  if (expected_until_ && now >= *expected_until_) {
    expected_until_.reset();
    for (Peer& peer : peers_) {
      if (peer.caller < 0 && peer.counts()) peer.presence = Presence::kSilent;
    }
  }
  settle(answers);
}

}  // namespace ciranda::sim
