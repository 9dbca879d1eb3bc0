#include "sim/member_job.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/member/arbiter.h"
#include "core/member/hosts.h"
#include "core/member/recovery.h"
#include "sim/violation.h"

namespace ciranda::sim {
namespace {

using member::AtEnd;
using member::Beat;
using member::Died;
using member::EndReason;
using member::EpochNumber;
using member::ExitKind;
using member::Formed;
using member::FromRank;
using member::HostNumber;
using member::Incarnation;
using member::LeftEarly;
using member::NewEpoch;
using member::News;
using member::NewsKind;
using member::Ready;
using member::Unreachable;

constexpr std::size_t kEventsMax = 20'000;  // of a job; the longest takes some thousand
constexpr int kFruitlessMax = 10;
constexpr int kLossesAtOneStepMax = 10;
constexpr int kErrorsAtOneStepMax = 2;
constexpr std::uint64_t kBeat = 25;
constexpr std::uint64_t kForever = 1'000'000;
constexpr std::uint64_t kHostLease = 100;
constexpr std::uint64_t kReachLimit = 60;  // so long ranks wait for a host that does not answer
constexpr std::uint64_t kSuspicion = 50;

// What is done at a moment of the program: the samples of a block, or none at the end of a pass.
struct Block {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  EpochNumber epoch = 0;  // 0: the end of a pass, which each rank reaches by itself
  bool operator==(const Block&) const = default;
};

// What training changes, and how it came about.
struct TrainingState {
  std::vector<Block> history;  // by moment
  std::uint64_t moment() const { return history.size(); }
  std::uint64_t consumed() const { return history.empty() ? 0 : history.back().end; }
};

enum class Phase : std::uint8_t {
  kStarting,
  kWaiting,     // for its first epoch
  kMeeting,     // waits for the other members
  kRecovering,  // gets the newest state
  kTraining,
  kBroken,  // its World has failed; it waits for the next epoch
  kTail,    // its program has left its last loop, and does what comes after it
  kAtEnd,
  kLeaving
};

// A process, as a real one behaves, and what the arbiter has been told of it.
struct SimRank {
  Incarnation id = 0;
  int slot = 0;
  int place = -1;  // a released member's
  HostNumber host = 0;
  bool alive = true;
  Phase phase = Phase::kStarting;
  bool beats = false;
  std::uint64_t paused_until = 0;
  std::uint64_t spoke_at = 0;                 // when it sent its latest message
  std::uint64_t resumed_at = 0;               // when it last did so after a silence
  std::deque<std::vector<std::byte>> outbox;  // sent, and not read by the launcher
  std::uint64_t up_at = 0;                    // when its latest message can be read
  std::uint64_t down_at = 0;                  // when the latest message to it arrives
  std::deque<member::FromArbiter> inbox;
  bool holds = false;
  TrainingState state;
  EpochNumber epoch = 0;            // the World that it is in
  std::optional<NewEpoch> pending;  // a newer one that it has heard of
  bool is_world_broken = false;     // and it has noticed
  std::uint64_t waits_for = 0;      // the moment whose collective it waits for; 0: none
  EpochNumber left_loop_in = 0;     // 0: it is before its last loop, or in it
  std::uint64_t tail_left = 0;      // of what comes after the loop
  bool ends_early = false;          // its program ends before that of the others
  bool has_left = false;            // its World, at its end
  bool may_leave = false;           // the arbiter lets it go, as its host leaves

  struct Told {
    bool ready = false;
    EpochNumber formed = 0;
    EpochNumber at_end = 0;
    EpochNumber end_since = 0;
    std::optional<std::uint64_t> heard_at;  // from its first Beat on
    bool done = false;                      // at its end without having been a member
    bool killed = false;
    bool died = false;  // another member has said so
    bool reaped = false;
    bool was_member = false;
    bool released = false;
  } told = {};
  bool is_there() const { return !told.reaped && !told.killed; }
  bool may_be_member() const { return is_there() && !told.done && !told.released; }
};

// A host, as its agent and the launcher see it. What goes between them waits while they are cut.
struct SimHost {
  std::uint64_t cut_until = 0;
  std::uint64_t beat_at = 0;  // when its latest beat came to the launcher
  bool is_lost = false;       // as the launcher has decided
  bool leaves = false;        // it will be gone soon
  int life = 0;               // grows when it is lost, and when it returns
  int slots = 0;
  std::string meet_at;
  bool is_usable() const { return !is_lost && !leaves; }
};

struct SimWorld {
  NewEpoch epoch;
  std::set<int> places;          // of its members
  std::set<Incarnation> formed;  // those that have said so
  std::set<Incarnation> met;
  bool broken = false;                           // a member has died or left
  std::map<Incarnation, std::uint64_t> moments;  // of its members at that time
  std::optional<member::RecoveryPlan> plan;
  TrainingState newest;  // of the source, when the plan was made
  std::map<std::uint64_t, std::map<Incarnation, Block>> given;  // by moment
  bool has_failed = false;  // a rank has died of the block that cannot be done
  bool was_cut = false;     // its members did not reach each other
};

class MemberJob {
 public:
  MemberJob(std::uint64_t seed, MemberCoverage& coverage)
      : random_(seed), seen_(coverage), options_(random_options()), arbiter_(options_) {
    faults_left_ = chance(5) ? 0 : 1 + upto(8);
    fault_rate_ = 10 + upto(60);
    fails_at_start_ = !chance(10) ? 0 : chance(3) ? 95 : 40;
    fails_by_error_ = chance(2);
    boots_slowly_ = chance(6);
    has_no_loop_ = chance(30);
    if (chance(12)) bad_moment_ = 1 + upto(4);
    if (chance(12)) early_moment_ = 1 + upto(6);
    dies_by_error_ = chance(2);
    tail_ = chance(2) ? 0 : upto(6);
    batch_ = 1 + upto(2);
    pass_samples_ = 5 + upto(60);
    passes_ = 1 + upto(1);
    hosts_.resize(std::max<std::size_t>(1, options_.hosts.size()));
    for (HostNumber host = 0; are_several() && host < hosts_.size(); ++host) {
      hosts_[host].meet_at = options_.hosts[host].meet_at;
      hosts_[host].slots = options_.hosts[host].slots;
    }
    joins_left_ = options_.hosts_may_join ? upto(2) : 0;
  }

  void play() {
    ++seen_.jobs;
    if (has_no_loop_) ++seen_.without;
    waiting_since_ = now_;
    if (are_several()) ++seen_.of_hosts;
    perform(arbiter_.start(now_));
    for (HostNumber host = 0; are_several() && host < hosts_.size(); ++host) beat_host(host);
    for (std::size_t count = 0; !ended_; ++count) {
      require(!events_.empty(), "everybody waits for ever");
      require(count < kEventsMax, "the job does not come to an end");
      const auto next = events_.begin();
      now_ = next->first.first;
      const auto event = std::move(next->second);
      events_.erase(next);
      event();
    }
    require(arbiter_.tick(now_ + 1'000'000).empty() && !arbiter_.deadline(),
            "something follows the end");
  }

  const std::string& log() const { return log_; }

 private:
  // --- Chance and time ---

  std::uint64_t upto(std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(0, most)(random_);
  }
  bool chance(std::uint64_t one_in) { return upto(one_in - 1) == 0; }

  member::ArbiterOptions random_options() {
    member::ArbiterOptions options;
    options.np = static_cast<int>(1 + upto(4));
    options.min_np = static_cast<int>(1 + upto(static_cast<std::uint64_t>(options.np) - 1));
    options.max_np = options.np + static_cast<int>(chance(2) ? 0 : upto(2));
    options.spares = static_cast<int>(chance(2) ? 0 : upto(2));
    options.reset_limit = chance(4) ? static_cast<int>(upto(3)) : -1;
    options.elastic_timeout_ns = chance(3) ? 30 + upto(200) : 3'000;
    options.start_timeout_ns = chance(3) ? 30 + upto(200) : 3'000;
    const std::uint64_t lease = chance(2) ? 120 + upto(80) : 320 + upto(200);
    options.lease_ns = chance(2) ? 0 : lease;  // shorter and longer than pauses
    if (!chance(3)) return options;
    options.hosts.resize(2 + upto(1));
    for (int slot = 0; slot < options.np + options.spares; ++slot) {
      options.homes.push_back(static_cast<HostNumber>(upto(options.hosts.size() - 1)));
      ++options.hosts[options.homes.back()].slots;
    }
    for (std::size_t host = 0; host < options.hosts.size(); ++host) {
      options.hosts[host].slots += static_cast<int>(chance(2) ? 0 : upto(2));
      options.hosts[host].meet_at = "host" + std::to_string(host) + ":1";
    }
    options.hosts_may_join = chance(2);
    options.suspicion_ns = kSuspicion;
    return options;
  }

  void after(std::uint64_t delay, std::function<void()> event) {
    events_.emplace(std::pair(now_ + delay, ++event_count_), std::move(event));
  }
  // What a rank does itself, which a pause delays and a death prevents.
  void after(std::uint64_t delay, Incarnation id, std::function<void(SimRank&)> event,
             bool is_risky = true) {
    after(delay, [this, id, event = std::move(event), is_risky] {
      SimRank& rank = ranks_.at(id);
      if (!rank.alive) return;
      if (rank.paused_until > now_) return after(rank.paused_until - now_, id, event, is_risky);
      if (is_risky) maybe_fault(rank);
      if (rank.alive && rank.paused_until <= now_) return event(rank);
      if (rank.alive) after(rank.paused_until - now_, id, event, is_risky);
    });
  }
  // What the launcher does, which it does later if it stands still.
  void at_launcher(std::uint64_t delay, std::function<void()> event) {
    after(delay, [this, event = std::move(event)] {
      if (stalled_until_ > now_) return at_launcher(stalled_until_ - now_, event);
      event();
    });
  }

  // What comes to the launcher from a host, or goes there, unless the host is lost meanwhile.
  void over_link(std::uint64_t delay, HostNumber host, bool up, std::function<void()> event) {
    over_link(delay, host, hosts_[host].life, up, std::move(event));
  }
  void over_link(std::uint64_t delay, HostNumber host, int life, bool up,
                 std::function<void()> event) {
    after(delay, [this, host, life, up, event = std::move(event)] {
      const SimHost& its = hosts_[host];
      const std::uint64_t stalled = up ? stalled_until_ : 0;
      if (its.is_lost || its.life != life) return;
      if (std::max(its.cut_until, stalled) <= now_) return event();
      over_link(std::max(its.cut_until, stalled) - now_, host, life, up, event);
    });
  }

  void say(const std::string& what) { log_ += std::to_string(now_) + ": " + what + "\n"; }
  static std::string name(Incarnation id) { return "#" + std::to_string(id); }
  static std::string names(const std::vector<Incarnation>& ids) {
    std::string text;
    for (const Incarnation id : ids) text += " " + name(id);
    return text;
  }

  // --- Faults ---

  void maybe_fault(SimRank& acting) {
    if (faults_left_ == 0 || !chance(fault_rate_)) return;
    std::vector<Incarnation> alive;
    for (const auto& [id, rank] : ranks_) {
      if (rank.alive) alive.push_back(id);
    }
    SimRank& rank = chance(2) ? acting : ranks_.at(alive[upto(alive.size() - 1)]);
    --faults_left_;
    if (joins_left_ > 0 && chance(4)) {
      --joins_left_;
      return after(upto(200), [this] { join_host(); });
    }
    if (are_several() && chance(4)) return harm_host(rank.host);
    switch (upto(11)) {
      case 0:
      case 1:
        return pause(rank);
      case 2:
        stalled_until_ = now_ + upto(300);
        return say("the launcher stands still until " + std::to_string(stalled_until_));
      case 3:
        return send_up(rank, std::vector<std::byte>(1 + upto(3), std::byte{0xee}));
      case 4:
        return die(rank, ExitKind::kError);
      case 5:
        if (chance(4)) return die(rank, ExitKind::kClean);
        [[fallthrough]];
      default:
        return die(rank, ExitKind::kSignal);
    }
  }

  bool are_several() const { return !options_.hosts.empty(); }

  // The host ends at once, or its agent is cut from the launcher.
  void harm_host(HostNumber number) {
    SimHost& host = hosts_[number];
    if (host.is_lost || host.cut_until > now_) return;
    if (chance(3)) {
      over_link(upto(20), number, /*up=*/true, [this, number] { leave_with_host(number); });
      if (chance(2)) return;
      return after(upto(600), [this, number, life = host.life] {
        if (hosts_[number].life == life) end_host(number);
      });
    }
    if (chance(2)) return cut_between(number);
    if (chance(2)) return end_host(number);
    cut_host(number);
  }

  // Its machine will be gone soon, or is gone later than it said.
  void leave_with_host(HostNumber number) {
    SimHost& host = hosts_[number];
    if (ended_ || over_ || host.leaves) return;
    ++seen_.left_hosts;
    say("host " + std::to_string(number) + " leaves");
    host.leaves = true;
    for (auto& [id, rank] : ranks_) {
      if (rank.host == number && is_outsider(rank)) must_kill_.insert(id);
    }
    look();
    perform(arbiter_.host_leaves(number, now_));
    close_if_left(number);
  }
  bool is_outsider(const SimRank& rank) const {
    return rank.may_be_member() && !is_member(rank.id);
  }
  // The agent of a host that leaves ends after its last process.
  void close_if_left(HostNumber number) {
    SimHost& host = hosts_[number];
    const bool is_empty =
        count([&](const SimRank& each) { return each.host == number && !each.told.reaped; }) == 0;
    if (!host.leaves || !is_empty || ended_) return;
    host.leaves = false;
    host.is_lost = true;
    ++host.life;
    say("host " + std::to_string(number) + " has left");
    maybe_regain(number);
  }
  void maybe_regain(HostNumber number) {
    if (!chance(2)) return;
    after(2 * kHostLease + upto(200), [this, number] { regain_host(number); });
  }

  void end_host(HostNumber number) {
    SimHost& host = hosts_[number];
    if (host.is_lost || host.cut_until > now_) return;
    say("host " + std::to_string(number) + " ends");
    host.cut_until = kForever * 1000;
    end_processes_of(number);
    after(upto(kHostLease), [this, number, life = host.life] { lose_host(number, life); });
  }

  void cut_host(HostNumber number) {
    SimHost& host = hosts_[number];
    const std::uint64_t length = chance(2) ? upto(kHostLease - 1) : kHostLease + upto(300);
    host.cut_until = now_ + length;
    say("host " + std::to_string(number) + " is cut until " + std::to_string(host.cut_until));
    if (length < kHostLease) {
      ++seen_.short_cuts;
      return;
    }
    // Either may come first. The agent hears nothing any more, and ends its processes.
    after(kHostLease + upto(40), [this, number, life = host.life] { lose_host(number, life); });
    after(kHostLease + upto(40), [this, number] { end_processes_of(number); });
  }

  // Two hosts do not reach each other any more. Both reach the launcher.
  void cut_between(HostNumber number) {
    const std::size_t further = 1 + upto(hosts_.size() - 2);
    const auto other = static_cast<HostNumber>((number + further) % hosts_.size());
    const std::uint64_t until = now_ + upto(chance(2) ? 2 * kReachLimit : 800);
    for (const auto& [one, two] : {std::pair(number, other), std::pair(other, number)}) {
      cut_until_[{one, two}] = std::max(cut_until_[{one, two}], until);
    }
    ++seen_.cuts_between;
    say("hosts " + std::to_string(number) + " and " + std::to_string(other) +
        " do not reach each other until " + std::to_string(until));
    for (const auto& [epoch, world] : worlds_) {
      after(kReachLimit, [this, epoch = epoch] { suspect(epoch); });
    }
  }
  bool is_cut(const SimRank& one, const SimRank& two) const {
    const auto cut = cut_until_.find({one.host, two.host});
    return cut != cut_until_.end() && cut->second > now_;
  }

  // Whoever is in this epoch and gets no answer from a member says so. A World that was whole ends.
  void suspect(EpochNumber epoch) {
    SimWorld& world = worlds_.at(epoch);
    std::vector<std::pair<Incarnation, Incarnation>> cuts;
    for (const Incarnation by : world.epoch.members) {
      for (const Incarnation whom : world.epoch.members) {
        const SimRank& one = ranks_.at(by);
        const SimRank& two = ranks_.at(whom);
        const bool are_in = one.alive && one.epoch == epoch && !one.has_left && two.alive &&
                            two.epoch == epoch && !two.has_left;
        if (are_in && is_cut(one, two)) cuts.emplace_back(by, whom);
      }
    }
    if (cuts.empty() || world.broken || ended_) return;
    if (world.plan) break_world(epoch, 0);
    const std::size_t first = upto(cuts.size() - 1);
    for (std::size_t cut = 0; cut < cuts.size(); ++cut) {
      if (cut != first && !chance(3)) continue;
      after(
          upto(10), cuts[cut].first,
          [this, who = cuts[cut].second, epoch](SimRank& each) {
            send_up(each, FromRank(Unreachable{.who = who, .epoch = epoch}));
          },
          /*is_risky=*/false);
    }
  }

  // All members have come, as far as they reach each other.
  void meet(EpochNumber number) {
    SimWorld& world = worlds_.at(number);
    const auto waits = [&](Incarnation id) {
      return ranks_.at(id).epoch == number && ranks_.at(id).phase == Phase::kMeeting;
    };
    if (world.broken || world.plan || !std::ranges::all_of(world.epoch.members, waits)) return;
    std::uint64_t whole_at = 0;
    for (const Incarnation one : world.epoch.members) {
      for (const Incarnation two : world.epoch.members) {
        if (!is_cut(ranks_.at(one), ranks_.at(two))) continue;
        whole_at = std::max(whole_at, cut_until_.at({ranks_.at(one).host, ranks_.at(two).host}));
      }
    }
    if (whole_at == 0) {
      if (world.was_cut) ++seen_.outlasted_cuts;
      return recover(world);
    }
    if (!std::exchange(world.was_cut, true))
      after(kReachLimit, [this, number] { suspect(number); });
    after(whole_at - now_, [this, number] { meet(number); });
  }

  void end_processes_of(HostNumber host) {
    for (auto& [id, rank] : ranks_) {
      if (rank.alive && rank.host == host) die(rank, ExitKind::kSignal);
    }
  }

  void lose_host(HostNumber number, int life) {
    SimHost& host = hosts_[number];
    if (stalled_until_ > now_) {
      return after(stalled_until_ - now_, [this, number, life] { lose_host(number, life); });
    }
    if (ended_ || host.is_lost || host.life != life) return;
    if (host.leaves) ++seen_.lost_while_leaving;
    host.leaves = false;
    host.is_lost = true;
    ++host.life;
    ++seen_.lost_hosts;
    say("host " + std::to_string(number) + " is lost");
    look();
    for (auto& [id, rank] : ranks_) {
      if (rank.host == number && !rank.told.reaped) note_loss_with_host(rank);
    }
    perform(arbiter_.host_lost(number, now_));
    require(ended_ || !is_stuck(), "a step is redone for ever");
    if (!ended_) maybe_regain(number);
  }

  // By now the host's agent has ended all that ran there.
  void regain_host(HostNumber number) {
    if (stalled_until_ > now_)
      return after(stalled_until_ - now_, [this, number] { regain_host(number); });
    if (ended_ || over_) return;
    ++seen_.returned_hosts;
    SimHost& host = hosts_[number];
    say("host " + std::to_string(number) + " returns");
    end_processes_of(number);
    for (auto& [id, rank] : ranks_) {
      if (rank.host == number) rank.outbox.clear();
    }
    ++host.life;  // so that nobody hears of their ends
    host.is_lost = false;
    host.cut_until = 0;
    host.beat_at = now_;
    host.meet_at = "host" + std::to_string(number) + ":" + std::to_string(1 + host.life);
    look();
    perform(arbiter_.host_returned(number, host.meet_at, now_));
    if (!ended_) beat_host(number);
  }

  void join_host() {
    if (stalled_until_ > now_) return after(stalled_until_ - now_, [this] { join_host(); });
    if (ended_ || over_) return;
    ++seen_.joined_hosts;
    const auto number = static_cast<HostNumber>(hosts_.size());
    hosts_.push_back({.beat_at = now_,
                      .slots = static_cast<int>(1 + upto(2)),
                      .meet_at = "host" + std::to_string(number) + ":1"});
    say("host " + std::to_string(number) + " joins");
    look();
    perform(arbiter_.host_joins(hosts_.back().slots, hosts_.back().meet_at, now_));
    if (!ended_) beat_host(number);
  }

  // A host may come on which a process can be started.
  bool may_host_come() const {
    const auto may_return = [](const SimHost& each) { return !each.is_usable(); };
    const bool may_come = options_.hosts_may_join || std::ranges::any_of(hosts_, may_return);
    const bool is_any_left = count([](const SimRank& each) { return !each.told.reaped; }) > 0;
    const bool is_released =
        count([](const SimRank& each) { return each.told.released && !each.told.reaped; }) > 0;
    return may_come && (epoch_.number != 0 || is_any_left) &&
           (!idle_slots().empty() || is_released);
  }

  int slots() const {
    return (options_.hosts_may_join ? options_.max_np : options_.np) + options_.spares;
  }
  int used_on(HostNumber host) const {
    return count([&](const SimRank& each) { return each.host == host && !each.told.reaped; });
  }
  bool has_room(HostNumber host) const {
    return !are_several() || (hosts_[host].is_usable() && used_on(host) < hosts_[host].slots);
  }
  // Slots without a process, in which one may be started.
  std::vector<int> idle_slots() const {
    const bool may_start_again = options_.reset_limit < 0 || starts_again_ < options_.reset_limit;
    std::vector<int> idle;
    for (int slot = 0; slot < slots(); ++slot) {
      const auto latest = latest_in_.find(slot);
      if (latest == latest_in_.end()) {
        idle.push_back(slot);
        continue;
      }
      const SimRank& rank = ranks_.at(latest->second);
      if (rank.told.reaped && !rank.told.done && may_start_again) idle.push_back(slot);
    }
    return idle;
  }

  void note_loss_with_host(SimRank& rank) {
    const bool was_member = is_member(rank.id) || rank.told.died;
    rank.told.reaped = true;
    if (over_ || !was_member) return;
    if (!is_stuck()) last_exit_ = rank.id;
    last_exit_kind_ = ExitKind::kSignal;
    for (auto& [number, world] : worlds_) {
      const auto& members = world.epoch.members;
      const bool belongs = std::ranges::find(members, rank.id) != members.end();
      if (!belongs || number <= rank.told.formed) continue;
      world.formed.insert(rank.id);
      if (world.formed.size() == members.size()) has_state_ = true;
    }
    if (!rank.told.died) lose(rank.id);
  }

  void beat_host(HostNumber number) {
    over_link(upto(15), number, /*up=*/true, [this, number] {
      if (ended_) return;
      for (auto& [id, rank] : ranks_) {
        while (!ended_ && rank.host == number && !rank.outbox.empty()) hear(rank);
      }
      if (ended_) return;
      hosts_[number].beat_at = now_;
      look();
      perform(arbiter_.host_beats(number, now_));
      if (ended_ || over_) return;
      after(kBeat, [this, number] { beat_host(number); });
    });
  }

  // Only a lease ends a pause for ever.
  void pause(SimRank& rank) {
    const bool has_lease = options_.lease_ns > 0 && rank.told.heard_at && !over_;
    const std::uint64_t length = has_lease && chance(3) ? kForever : upto(300);
    rank.paused_until = std::max(rank.paused_until, now_ + length);
    say(name(rank.id) + " pauses until " + std::to_string(rank.paused_until));
    if (!has_lease || length < kBeat) return;
    after(length, [this, id = rank.id] {
      if (ranks_.at(id).alive && ranks_.at(id).is_there()) ++seen_.outlasted_pauses;
    });
  }

  void die(SimRank& rank, ExitKind how) {
    constexpr const char* kHow[] = {"ends", "fails", "is killed"};
    say(name(rank.id) + " " + kHow[static_cast<std::size_t>(how)]);
    rank.alive = false;
    if (rank.epoch != 0) {
      break_world(rank.epoch, rank.id);
      if (how == ExitKind::kSignal || chance(3)) tell_death(rank);
    }
    over_link(upto(chance(3) ? 200 : 20), rank.host, /*up=*/true,
              [this, id = rank.id, how] { reap(id, how); });
  }

  // A member of its World notices the death, long before the process is reaped.
  void tell_death(const SimRank& dead) {
    std::vector<Incarnation> others;
    for (const Incarnation id : worlds_.at(dead.epoch).epoch.members) {
      const SimRank& other = ranks_.at(id);
      if (other.alive && other.epoch == dead.epoch && other.host == dead.host) others.push_back(id);
    }
    if (others.empty() || chance(4)) return;
    after(
        upto(3), others[upto(others.size() - 1)],
        [this, who = dead.id](SimRank& each) { send_up(each, FromRank(Died{.who = who})); },
        /*is_risky=*/false);
  }

  void reap(Incarnation id, ExitKind how) {
    SimRank& rank = ranks_.at(id);
    for (const auto& [each, other] : ranks_) {
      if (other.host != rank.host) continue;
      while (!ended_ && !ranks_.at(each).outbox.empty()) hear(ranks_.at(each));
    }
    if (ended_) return;
    say(name(id) + " is reaped");
    const bool is_lost = !over_ && (is_member(id) || rank.told.died);
    if (!over_ && !rank.told.was_member && how == ExitKind::kClean && !rank.told.done) {
      rank.told.done = true;
      ++done_;
    }
    const bool fruitless = rank.told.formed == 0 && (rank.told.was_member || !rank.told.ready) &&
                           !rank.told.done && !hosts_[rank.host].leaves;
    if (fruitless && !over_) ++fruitless_;
    rank.told.reaped = true;
    last_exit_ = id;
    last_exit_kind_ = how;
    if (is_lost) {
      if (!rank.told.died) lose(id);
      errors_ += how == ExitKind::kError ? 1 : 0;
      if (rank.phase == Phase::kTail) ++seen_.lost_in_tail;
      if (!has_state_) ++seen_.lost_before_state;
    }
    const bool fails_late = over_ && is_member(id) && !rank.told.killed && how == ExitKind::kError;
    const bool fails_early = !over_ && !has_state_ && how == ExitKind::kError;
    look();
    perform(arbiter_.exited(id, how, now_));
    require(ended_ || (!fails_late && !fails_early), "a failure does not end the job");
    require(ended_ || fruitless_ <= kFruitlessMax, "a wrong script is started for ever");
    // The job ends when the member is reaped whose loss was one too many, even if told before.
    require(ended_ || !is_lost || !is_stuck(), "a step is redone for ever");
    close_if_left(rank.host);
  }

  bool is_stuck() const { return losses_ > kLossesAtOneStepMax || errors_ > kErrorsAtOneStepMax; }

  void miss() {
    lost_since_epoch_ = true;
    if (!waiting_since_) waiting_since_ = now_;
  }
  void lose(Incarnation id) {
    miss();
    const auto place = std::ranges::find(epoch_.members, id) - epoch_.members.begin();
    lost_.push_back({.incarnation = id, .rank = static_cast<Rank>(place)});
    vacated_.push_back(place_of(id));
    losses_ += std::exchange(formed_since_loss_, false) ? 1 : 0;
  }

  // --- Messages ---

  void send_up(SimRank& rank, std::vector<std::byte> bytes) {
    if (now_ > rank.spoke_at + 2 * kBeat) rank.resumed_at = now_;
    rank.spoke_at = now_;
    rank.outbox.push_back(std::move(bytes));
    rank.up_at = std::max(rank.up_at, now_ + upto(15));
    over_link(rank.up_at - now_, rank.host, /*up=*/true, [this, id = rank.id] {
      if (!ended_ && !ranks_.at(id).outbox.empty()) hear(ranks_.at(id));
    });
  }
  void send_up(SimRank& rank, const FromRank& message) { send_up(rank, encode(message)); }

  void hear(SimRank& rank) {
    const std::vector<std::byte> bytes = std::move(rank.outbox.front());
    rank.outbox.pop_front();
    const auto message = member::decode_from_rank(bytes);
    if (!over_ && !rank.told.reaped) {
      look();
      if (!rank.told.killed) {
        note(rank, message);
      } else if (message.ok() && std::holds_alternative<Formed>(message.value())) {
        note_formed(rank, std::get<Formed>(message.value()));
      }
    }
    perform(arbiter_.said(rank.id, bytes, now_));
  }

  // Notes what the arbiter hears, by the rules alone.
  void note(SimRank& rank, const Result<FromRank>& message) {
    if (!message.ok()) {
      ++seen_.bad_messages;
      must_kill_.insert(rank.id);
      if (is_member(rank.id)) miss();
      return;
    }
    if (std::holds_alternative<Beat>(message.value()) || rank.told.heard_at) {
      rank.told.heard_at = now_;
    }
    if (std::holds_alternative<Ready>(message.value())) rank.told.ready = true;
    if (const auto* formed = std::get_if<Formed>(&message.value())) note_formed(rank, *formed);
    if (const auto* end = std::get_if<AtEnd>(&message.value())) note_end(rank, *end);
    if (const auto* died = std::get_if<Died>(&message.value())) note_death(ranks_.at(died->who));
    if (const auto* left = std::get_if<LeftEarly>(&message.value())) note_left_early(rank, *left);
    if (const auto* other = std::get_if<Unreachable>(&message.value())) {
      note_unreachable(rank, *other);
    }
  }

  void note_unreachable(const SimRank& rank, const Unreachable& message) {
    if (message.epoch != epoch_.number || !is_member(rank.id) || rank.told.released) {
      ++seen_.old_suspicions;
      return;
    }
    const SimRank& other = ranks_.at(message.who);
    if (!is_member(message.who) || !other.is_there() || other.told.released) return;
    if (suspected_.empty()) suspected_since_ = now_;
    suspected_.insert({rank.host, other.host});
    suspected_.insert({other.host, rank.host});
  }
  // Returns how many members are on hosts that this one and the others say they cannot reach.
  int out_of_reach(HostNumber host) const {
    const std::vector<Incarnation> members = survivors();
    const auto is_cut_off = [&](Incarnation id) {
      return suspected_.contains({host, ranks_.at(id).host});
    };
    const auto is_here = [&](Incarnation id) { return ranks_.at(id).host == host; };
    if (std::ranges::none_of(members, is_here)) return 0;
    return static_cast<int>(std::ranges::count_if(members, is_cut_off));
  }
  void give_up(const member::GiveUp& order) {
    say("host " + std::to_string(order.host) + " is given up");
    ++seen_.given_up;
    require(now_ >= suspected_since_ + kSuspicion, "a host is given up too soon");
    require(!std::exchange(has_given_up_, true), "two hosts are given up at once");
    require(suspected_.contains({order.by, order.host}), "a host is given up that is reached");
    const int worst = out_of_reach(order.host);
    require(worst > 0, "a host without members is given up");
    for (HostNumber host = 0; host < hosts_.size(); ++host) {
      require(out_of_reach(host) <= worst, "a host is given up that reaches more than another one");
    }
    after(upto(kHostLease), [this, number = order.host, life = hosts_[order.host].life] {
      if (hosts_[number].life <= life + 1) end_processes_of(number);
    });
    after(0,
          [this, number = order.host, life = hosts_[order.host].life] { lose_host(number, life); });
  }

  void note_left_early(const SimRank& rank, const LeftEarly& message) {
    if (message.epoch != epoch_.number) {
      ++seen_.left_for_others;
      return;
    }
    require(is_member(rank.id), "somebody speaks of an epoch that it is not in");
    needed_ = message;
  }
  // The rank that is needed and has ended its program.
  bool is_missed() const {
    return needed_ && is_member(needed_->who) && ranks_.at(needed_->who).is_there() &&
           ranks_.at(needed_->who).told.at_end == epoch_.number;
  }

  void note_death(SimRank& dead) {
    if (dead.told.reaped || dead.told.died || dead.told.released) return;
    require(!dead.alive && is_member(dead.id), "a process is said to have died that has not");
    ++seen_.told_deaths;
    if (!dead.told.killed) must_kill_.insert(dead.id);
    dead.told.died = true;
    lose(dead.id);
  }

  void note_formed(SimRank& rank, const Formed& message) {
    rank.told.formed = message.epoch;
    SimWorld& world = worlds_.at(message.epoch);
    world.formed.insert(rank.id);
    if (world.formed.size() == world.epoch.members.size() && !has_state_) {
      has_state_ = true;
      const bool all_live = std::ranges::all_of(
          world.epoch.members, [&](Incarnation id) { return ranks_.at(id).is_there(); });
      if (!all_live || message.epoch != epoch_.number) ++seen_.state_of_the_lost;
    }
    fruitless_ = 0;
    formed_since_loss_ = true;
    if (message.step <= step_) return;
    step_ = message.step;
    losses_ = errors_ = 0;
  }

  void note_end(SimRank& rank, const AtEnd& message) {
    if (!rank.told.was_member) {
      done_ += rank.told.done ? 0 : 1;
      rank.told.done = true;
      return;
    }
    if (rank.told.released) finished_places_.insert(rank.place);
    rank.told.end_since = message.since;
    if (rank.told.formed == epoch_.number) rank.told.at_end = epoch_.number;
  }

  // The arbiter is called, and looks for silent processes.
  void look() {
    if (now_ > looked_at_ + options_.lease_ns / 2) {
      awake_since_ = now_;
      if (options_.lease_ns > 0) ++seen_.stalls;
    }
    looked_at_ = now_;
  }

  void deliver(SimRank& rank, const member::FromArbiter& message) {
    if (const NewEpoch* epoch = std::get_if<NewEpoch>(&message)) {
      require(epoch->number > rank.epoch, "an epoch comes to a rank that is in a newer one");
      rank.pending = *epoch;
      const bool waits = rank.phase != Phase::kTraining && rank.phase != Phase::kTail &&
                         rank.phase != Phase::kStarting;
      require(rank.phase != Phase::kStarting && rank.phase != Phase::kLeaving,
              "an epoch comes to a rank that is not ready, or leaves");
      if (waits) enter(rank);
      return;
    }
    if (rank.phase == Phase::kTraining || rank.phase == Phase::kTail) {
      require(rank.told.released, "a rank that is not at its end is told to leave");
      rank.may_leave = true;
      return;
    }
    require(rank.phase == Phase::kAtEnd || (rank.told.released && rank.phase == Phase::kBroken),
            "a rank that is not at its end is told to leave");
    leave(rank);
  }

  void leave(SimRank& rank) {
    rank.phase = Phase::kLeaving;
    after(upto(30), rank.id, [this](SimRank& leaving) {
      die(leaving, !chance(50) ? ExitKind::kClean
                   : chance(2) ? ExitKind::kError
                               : ExitKind::kSignal);
    });
  }

  // --- A rank's life ---

  void beat(SimRank& rank) {
    if (over_) return;
    send_up(rank, FromRank(Beat{}));
    after(
        kBeat, rank.id, [this](SimRank& each) { beat(each); }, /*is_risky=*/false);
  }

  void boot(SimRank& rank) {
    if (fails_at_start_ > 0 && ranks_.size() > static_cast<std::size_t>(options_.np) &&
        upto(99) < fails_at_start_) {
      return die(rank, fails_by_error_ ? ExitKind::kError : ExitKind::kSignal);
    }
    if (rank.beats) beat(rank);
    if (has_no_loop_ && rank.slot < options_.np) {
      if (chance(2)) send_up(rank, FromRank(AtEnd{}));
      return after(upto(100), rank.id, [this](SimRank& each) { die(each, ExitKind::kClean); });
    }
    rank.phase = Phase::kWaiting;
    send_up(rank, FromRank(Ready{}));
  }

  void break_world(EpochNumber number, Incarnation by) {
    SimWorld& world = worlds_.at(number);
    const bool is_first = !std::exchange(world.broken, true);
    for (const Incarnation other : world.epoch.members) {
      // Who has still to recover is then as far as the source.
      const std::uint64_t recovered = world.plan ? world.newest.moment() : 0;
      if (is_first) world.moments[other] = std::max(ranks_.at(other).state.moment(), recovered);
      if (other == by) continue;
      after(upto(10), other, [this, number, by](SimRank& rank) { notice(rank, number, by); });
    }
  }

  void notice(SimRank& rank, EpochNumber number, Incarnation by) {
    if (rank.epoch != number) return;
    rank.is_world_broken = true;
    if (rank.phase == Phase::kMeeting || rank.phase == Phase::kRecovering) {
      rank.phase = Phase::kBroken;
      return;
    }
    if (rank.phase != Phase::kTraining || rank.waits_for == 0) return;
    const SimWorld& world = worlds_.at(number);
    const auto& given = world.given.at(rank.waits_for);
    // The result may be there all the same.
    if (given.size() == world.epoch.members.size() && chance(2)) return;
    for (const Incarnation other : world.epoch.members) {
      if (ranks_.at(other).state.moment() >= rank.waits_for) ++seen_.half_applied;
    }
    if (by != 0 && ranks_.at(by).alive) say_who_left(rank, by);
    give_up(rank);
  }

  void say_who_left(SimRank& rank, Incarnation who) {
    send_up(rank,
            FromRank(LeftEarly{.who = who, .epoch = rank.epoch, .step = rank.state.moment()}));
  }

  // A rank that has left its World at its end takes part in nothing more.
  void miss_who_left(const SimWorld& world) {
    for (const Incarnation id : world.epoch.members) {
      const SimRank& rank = ranks_.at(id);
      const std::uint64_t moment = rank.waits_for;
      if (rank.epoch != world.epoch.number || moment == 0) continue;
      for (const Incarnation who : world.epoch.members) {
        const SimRank& other = ranks_.at(who);
        const bool has_left = other.has_left && other.epoch == rank.epoch;
        if (!has_left || world.given.at(moment).contains(who)) continue;
        after(upto(10), id, [this, number = rank.epoch, moment, who](SimRank& each) {
          if (each.epoch != number || each.waits_for != moment) return;
          say_who_left(each, who);
          give_up(each);
        });
      }
    }
  }

  void give_up(SimRank& rank) {
    rank.waits_for = 0;
    rank.phase = Phase::kBroken;
    if (rank.may_leave) return leave(rank);
    if (rank.pending) enter(rank);
  }

  void enter(SimRank& rank) {
    if (rank.phase == Phase::kAtEnd) ++seen_.called_back;
    if (rank.phase == Phase::kMeeting || rank.phase == Phase::kRecovering) ++seen_.interrupted;
    if (rank.epoch != 0) break_world(rank.epoch, rank.id);
    const NewEpoch epoch = *std::exchange(rank.pending, std::nullopt);
    rank.epoch = epoch.number;
    rank.is_world_broken = false;
    rank.has_left = false;
    rank.waits_for = 0;
    rank.phase = Phase::kMeeting;
    SimWorld& world = worlds_.at(epoch.number);
    world.met.insert(rank.id);
    say(name(rank.id) + " enters epoch " + std::to_string(epoch.number) + " at moment " +
        std::to_string(rank.state.moment()));
    if (world.met.size() == world.epoch.members.size()) meet(epoch.number);
  }

  // All members have met and say what they have.
  void recover(SimWorld& world) {
    std::vector<member::Standing> standings;
    std::uint64_t newest = 0;
    bool is_held = false;
    for (const Incarnation id : world.epoch.members) {
      const SimRank& rank = ranks_.at(id);
      standings.push_back({.holds_state = rank.holds, .moment = rank.state.moment()});
      if (rank.holds) newest = std::max(newest, rank.state.moment());
      is_held = is_held || rank.holds;
    }
    require(is_held || !has_state_, "I6: nobody in an epoch holds the state");
    require(is_held || !has_made_step_, "I6: a job that has made a step begins anew");
    const member::RecoveryPlan plan = member::plan_recovery(standings);
    require(plan.moment == newest, "I6: an epoch does not start from the newest state");
    const SimRank& source =
        ranks_.at(world.epoch.members.at(static_cast<std::size_t>(plan.source)));
    require(source.holds == is_held && source.state.moment() == newest,
            "I6: the source is not a rank with the newest state");
    world.plan = plan;
    world.newest = source.state;
    for (std::size_t place = 0; place < standings.size(); ++place) {
      SimRank& rank = ranks_.at(world.epoch.members[place]);
      rank.phase = Phase::kRecovering;
      const auto is_in = [&](const std::vector<Rank>& ranks) {
        return std::ranges::find(ranks, static_cast<Rank>(place)) != ranks.end();
      };
      const bool copies = is_in(plan.behind) || is_in(plan.newcomers);
      if (is_in(plan.behind)) ++seen_.behind;
      after(
          upto(copies ? 30 : 5), rank.id,
          [this, number = rank.pending ? 0 : rank.epoch, from = source.id, copies](SimRank& each) {
            if (each.epoch == number) finish_recovery(each, from, copies);
          });
    }
  }

  void finish_recovery(SimRank& rank, Incarnation from, bool copies) {
    if (rank.phase != Phase::kRecovering) return;
    const SimRank& source = ranks_.at(from);
    if (copies && (!source.alive || source.epoch != rank.epoch)) {
      rank.phase = Phase::kBroken;
      return;
    }
    const std::uint64_t moment = worlds_.at(rank.epoch).plan->moment;
    if (copies) rank.state = worlds_.at(rank.epoch).newest;
    require(rank.state.moment() == moment, "I6: a member starts from another state");
    require_alike(rank);
    rank.holds = true;
    rank.phase = Phase::kTraining;
    send_up(rank, FromRank(Formed{.epoch = rank.epoch, .step = moment}));
    go_on(rank);
  }

  void go_on(SimRank& rank) {
    after(upto(10), rank.id, [this, number = rank.epoch](SimRank& each) {
      if (each.epoch == number && each.phase == Phase::kTraining) begin_block(each);
    });
  }

  void begin_block(SimRank& rank) {
    if (rank.pending) return enter(rank);
    const std::uint64_t consumed = rank.state.consumed();
    const std::uint64_t pass = consumed / pass_samples_;  // that the next sample is in
    const auto blocks = static_cast<std::uint64_t>(std::ranges::count_if(
        rank.state.history, [](const Block& each) { return each.epoch > 0; }));
    const std::uint64_t passes_said = rank.state.moment() - blocks;
    if (consumed % pass_samples_ == 0 && passes_said < pass) {
      rank.state.history.push_back({.begin = consumed, .end = consumed});
      require_alike(rank);
      return go_on(rank);
    }
    SimWorld& world = worlds_.at(rank.epoch);
    const std::uint64_t moment = rank.state.moment() + 1;
    if (moment == early_moment_ && world.epoch.members.size() > 1) {
      rank.ends_early = true;
      early_moment_.reset();
    }
    if (pass == passes_ || rank.ends_early) return leave_loop(rank);
    if (rank.may_leave) return leave(rank);
    if (rank.is_world_broken) return give_up(rank);
    const Block block{
        .begin = consumed,
        .end = std::min(consumed + batch_ * world.epoch.members.size(), (pass + 1) * pass_samples_),
        .epoch = rank.epoch};
    if (moment == bad_moment_ && !std::exchange(world.has_failed, true)) {
      return die(rank, dies_by_error_ ? ExitKind::kError : ExitKind::kSignal);
    }
    rank.waits_for = moment;
    auto& given = world.given[moment];
    require(given.empty() || given.begin()->second == block, "ranks deal samples differently");
    given[rank.id] = block;
    if (given.size() < world.epoch.members.size()) return miss_who_left(world);
    for (const Incarnation each : world.epoch.members) {
      after(upto(10), each, [this, number = rank.epoch, moment](SimRank& other) {
        if (other.epoch == number && other.waits_for == moment) apply(other);
      });
    }
  }

  void leave_loop(SimRank& rank) {
    if (rank.left_loop_in == 0) {
      rank.left_loop_in = rank.epoch;
      rank.tail_left = tail_;
    }
    run_tail(rank);
  }

  void run_tail(SimRank& rank) {
    if (rank.tail_left > 0) {
      rank.phase = Phase::kTail;
      --rank.tail_left;
      return after(upto(20), rank.id, [this](SimRank& each) { run_tail(each); });
    }
    rank.phase = Phase::kAtEnd;
    send_up(rank, FromRank(AtEnd{.since = rank.left_loop_in}));
    rank.has_left = true;
    miss_who_left(worlds_.at(rank.epoch));
    if (rank.may_leave) return leave(rank);
    if (rank.pending) enter(rank);
  }

  void apply(SimRank& rank) {
    if (rank.phase != Phase::kTraining) return;
    SimWorld& world = worlds_.at(rank.epoch);
    for (const Incarnation other : world.epoch.members) {
      require(ranks_.at(other).state.moment() + 1 >= rank.waits_for,
              "I5: a step is applied before all have the one before");
    }
    for (const auto& [number, newer] : worlds_) {
      require(is_outcast(rank) || number <= rank.epoch || !newer.plan,
              "I31: a step is applied after a newer epoch has begun to recover");
    }
    // Who left may have given its part of this step and of the next, with the end of a pass
    // between.
    require(!world.broken || rank.state.moment() <= world.moments.at(rank.id) + 2,
            "a rank goes on by itself after a member has left");
    rank.state.history.push_back(world.given.at(rank.waits_for).at(rank.id));
    rank.waits_for = 0;
    has_made_step_ = true;
    ++seen_.steps;
    require_alike(rank);
    go_on(rank);
  }

  // It lives on a host that the launcher has given up, or is about to leave with its host. What it
  // has done does not count. It shares no memory with the others.
  bool is_outcast(const SimRank& rank) const {
    return hosts_[rank.host].is_lost || rank.told.released;
  }

  // I33: whoever lives and is as far has done the same.
  void require_alike(const SimRank& rank) const {
    if (is_outcast(rank)) return;
    std::uint64_t next = 0;
    for (const Block& block : rank.state.history) {
      require(block.begin == next, "I33: samples count twice or never");
      next = block.end;
    }
    for (const auto& [id, other] : ranks_) {
      if (!other.alive || !other.holds || id == rank.id || is_outcast(other)) continue;
      const std::size_t both = std::min(rank.state.history.size(), other.state.history.size());
      if (both == 0) continue;
      require(rank.state.history[both - 1] == other.state.history[both - 1],
              "I33: two ranks count different samples at one moment");
    }
  }

  // --- What the arbiter does ---

  void perform(const member::Actions& actions) {
    std::vector<Incarnation> epoch_to;
    std::vector<Incarnation> over_to;
    std::optional<NewEpoch> epoch;
    for (const member::Action& action : actions) {
      require(!ended_, "something follows the end");
      if (const auto* start = std::get_if<member::Start>(&action)) {
        start_process(*start);
      } else if (const auto* order = std::get_if<member::Kill>(&action)) {
        kill(order->incarnation);
      } else if (const auto* send = std::get_if<member::Send>(&action)) {
        const member::FromArbiter message = member::decode_from_arbiter(send->bytes).value();
        if (const NewEpoch* next = std::get_if<NewEpoch>(&message)) {
          require(epoch_to.empty() || *next == *epoch, "two epochs are sent at once");
          epoch = *next;
          epoch_to.push_back(send->incarnation);
        } else {
          over_to.push_back(send->incarnation);
        }
        send_down(ranks_.at(send->incarnation), message);
      } else if (const auto* lost = std::get_if<member::GiveUp>(&action)) {
        give_up(*lost);
      } else if (const auto* news = std::get_if<News>(&action)) {
        hear_news(*news);
      } else {
        end(std::get<member::End>(action));
      }
    }
    if (epoch) check_release(*epoch, std::exchange(over_to, {}));
    if (epoch) check_epoch(*epoch, epoch_to);
    if (!over_to.empty()) check_over(over_to);
    for (const Incarnation id : std::exchange(must_kill_, {})) {
      require(ranks_.at(id).told.killed, "nonsense or silence is tolerated");
    }
    if (!ended_) check_promptness();
    watch_time();
  }

  void watch_time() {
    const auto deadline = arbiter_.deadline();
    if (ended_ || !deadline) return;
    require(*deadline > now_, "a deadline that has passed is waited for");
    require(options_.lease_ns == 0 || *deadline <= looked_at_ + options_.lease_ns / 4,
            "nobody looks for the silent");
    if (watched_ && *watched_ <= *deadline) return;
    watched_ = deadline;
    at_launcher(*deadline - now_, [this, time = *deadline] {
      if (watched_ != time) return;
      watched_.reset();
      const auto due = arbiter_.deadline();
      if (!due || *due > now_) return watch_time();
      look();
      perform(arbiter_.tick(now_));
    });
  }

  void start_process(const member::Start& start) {
    require(start.incarnation == ranks_.size() + 1, "a number is given twice, or left out");
    require(!over_, "a process is started after the end");
    require(0 <= start.slot && start.slot < slots(), "there is no such slot");
    const auto latest = latest_in_.find(start.slot);
    if (latest != latest_in_.end()) {
      const SimRank& before = ranks_.at(latest->second);
      require(!before.told.done, "a process is started in place of one that is done");
      ++starts_again_;
      if (before.host != start.host) ++seen_.started_elsewhere;
      require(start.host == before.host || !has_room(before.host),
              "a process is started on another host, and its own has room");
    }
    latest_in_[start.slot] = start.incarnation;
    require(has_room(start.host), "a process is started on a host without room, or that is lost");
    for (const auto& [id, rank] : ranks_) {
      require(rank.told.reaped || rank.slot != start.slot, "two processes have one slot");
    }
    require(options_.reset_limit < 0 || starts_again_ <= options_.reset_limit,
            "more processes are started than allowed");
    say(name(start.incarnation) + " is started in slot " + std::to_string(start.slot));
    ranks_[start.incarnation] = SimRank{
        .id = start.incarnation, .slot = start.slot, .host = start.host, .beats = !chance(8)};
    const std::uint64_t boot_time = 5 + upto(boots_slowly_ ? 600 : 60);
    over_link(0, start.host, /*up=*/false, [this, id = start.incarnation, boot_time] {
      after(boot_time, id, [this](SimRank& rank) { boot(rank); });
    });
  }

  void kill(Incarnation id) {
    SimRank& rank = ranks_.at(id);
    require(rank.is_there() && !(over_ && is_member(id)), "a process is killed without a reason");
    say(name(id) + " is to be killed");
    rank.told.killed = true;
    over_link(chance(8) ? upto(400) : upto(30), rank.host, /*up=*/false, [this, id] {
      if (ranks_.at(id).alive) die(ranks_.at(id), ExitKind::kSignal);
    });
  }

  void send_down(SimRank& rank, const member::FromArbiter& message) {
    require(rank.is_there(), "a message goes to a process that is gone");
    rank.down_at = std::max(rank.down_at, now_ + upto(15));
    rank.inbox.push_back(message);
    over_link(rank.down_at - now_, rank.host, /*up=*/false, [this, id = rank.id] {
      after(0, id, [this](SimRank& each) {
        const member::FromArbiter first = each.inbox.front();
        each.inbox.pop_front();
        deliver(each, first);
      });
    });
  }

  bool is_member(Incarnation id) const {
    return std::ranges::find(epoch_.members, id) != epoch_.members.end();
  }
  std::vector<Incarnation> survivors() const {
    std::vector<Incarnation> left;
    std::ranges::copy_if(epoch_.members, std::back_inserter(left), [&](Incarnation id) {
      return ranks_.at(id).is_there() && !ranks_.at(id).told.released;
    });
    return left;
  }
  int place_of(Incarnation id) const {
    return std::ranges::find(places_, id, [](const auto& each) { return each.second; })->first;
  }
  // The epoch in which the first of those who have said AtEnd has left its last loop.
  std::optional<EpochNumber> end_began() const {
    std::optional<EpochNumber> first;
    for (const Incarnation id : survivors()) {
      const EpochNumber since = ranks_.at(id).told.end_since;
      if (since > 0) first = std::min(first.value_or(since), since);
    }
    return first;
  }
  // Nobody is missing who came to the end before it was released.
  int missing_since(EpochNumber epoch) const {
    std::set<int> missing = worlds_.at(epoch).places;
    for (const int place : finished_places_) missing.erase(place);
    return untaken(missing);
  }
  int untaken(std::set<int> missing) const {
    for (const Incarnation id : survivors()) missing.erase(place_of(id));
    return static_cast<int>(missing.size());
  }
  int room() const {
    if (const auto epoch = end_began()) return untaken(worlds_.at(*epoch).places);
    return options_.max_np - static_cast<int>(survivors().size());
  }
  int missing() const {
    const auto epoch = end_began();
    return epoch ? missing_since(*epoch) : room();
  }
  bool are_all_at_end() const {
    return !survivors().empty() &&
           all_survivors([&](const SimRank& each) { return each.told.at_end == epoch_.number; });
  }
  bool is_candidate(const SimRank& rank) const {
    return rank.told.ready && rank.may_be_member() && !is_member(rank.id);
  }
  int count(const std::function<bool(const SimRank&)>& is) const {
    return static_cast<int>(
        std::ranges::count_if(ranks_, [&](const auto& each) { return is(each.second); }));
  }
  int candidates() const {
    return count([&](const SimRank& each) { return is_candidate(each); });
  }
  bool is_reaping() const {
    return count([](const SimRank& each) { return each.told.killed && !each.told.reaped; }) > 0;
  }
  bool is_dying() const {
    return count([](const SimRank& each) {
             return each.told.killed && !each.told.died && !each.told.reaped;
           }) > 0;
  }
  int possible_members() const {
    return count([](const SimRank& each) { return each.may_be_member(); });
  }
  bool all_survivors(const std::function<bool(const SimRank&)>& is) const {
    return std::ranges::all_of(survivors(), [&](Incarnation id) { return is(ranks_.at(id)); });
  }
  bool has_formed() const {
    return epoch_.number != 0 && !lost_since_epoch_ &&
           all_survivors([&](const SimRank& each) { return each.told.formed == epoch_.number; });
  }

  // Without a loop, before any epoch.
  bool program_is_done() const { return epoch_.number == 0 && done_ >= options_.np; }

  // Members of an epoch that has formed are told to leave with their hosts, all of a host together.
  void check_release(const NewEpoch& next, const std::vector<Incarnation>& released) {
    if (released.empty()) return;
    require(next.planned && has_formed(), "a member is released from an epoch that has not formed");
    require(!end_began(), "a member is released at the program's end");
    for (const Incarnation id : released) {
      SimRank& rank = ranks_.at(id);
      require(is_member(id) && rank.is_there() && hosts_[rank.host].leaves,
              "a member is released whose host does not leave");
      require(
          std::ranges::none_of(
              next.members, [&](Incarnation other) { return ranks_.at(other).host == rank.host; }),
          "a member is released that shares memory with another one");
      rank.told.released = true;
      rank.place = place_of(id);
      vacated_.push_back(rank.place);
      ++seen_.released;
    }
  }

  // Members whose host leaves and that the others do not need.
  bool should_be_released() const {
    const std::vector<Incarnation> members = survivors();
    if (end_began()) return false;
    std::size_t leaving = 0;
    for (const Incarnation id : members) leaving += hosts_[ranks_.at(id).host].leaves ? 1U : 0U;
    const std::size_t staying = members.size() - leaving;
    const bool enough = static_cast<int>(staying) + candidates() >= options_.min_np && staying > 0;
    return leaving > 0 && enough;
  }

  void check_epoch(const NewEpoch& next, const std::vector<Incarnation>& sent_to) {
    say("epoch " + std::to_string(next.number) + (next.planned ? " (planned)" : "") + ":" +
        names(next.members));
    require(!over_ && !ended_, "an epoch follows the end");
    require(sent_to == next.members, "an epoch is not sent to its members, or to others");
    require(next.number == epoch_.number + 1, "epochs are not counted");
    const int size = static_cast<int>(next.members.size());
    require(options_.min_np <= size && size <= options_.max_np, "an epoch has a wrong size");
    require(!is_dying(), "I32: an epoch is sent although a process that is killed may still act");
    for (const auto& [id, rank] : ranks_) {
      const bool belongs = std::ranges::find(next.members, id) != next.members.end();
      require(!belongs || (rank.is_there() && (is_member(id) || is_candidate(rank))),
              "a member is gone or is not ready");
      const bool is_gone =
          ((rank.told.reaped || rank.told.died) && !rank.alive) || is_outcast(rank);
      require(belongs || !rank.told.was_member || is_gone, "I32: a member is left out, and lives");
      if (rank.told.died && !rank.told.reaped) ++seen_.before_reaping;
    }
    check_hosts(next);
    const bool is_any_released = std::ranges::any_of(
        epoch_.members, [&](Incarnation id) { return ranks_.at(id).told.released; });
    const int left = static_cast<int>(survivors().size());
    require(size == left + std::min(candidates(), room()),
            "processes are left out, or join at the program's end");
    require(next.members == members_by_place(next), "a member has a wrong place");
    const bool is_held = std::ranges::any_of(
        next.members, [&](Incarnation id) { return ranks_.at(id).told.formed > 0; });
    require(is_held || !has_state_, "I6: no member holds the state");
    if (next.planned) {
      ++seen_.planned;
      require(has_formed(), "the job grows before the epoch has formed");
      const bool has_newcomer = std::ranges::any_of(
          next.members, [&](Incarnation id) { return !ranks_.at(id).told.was_member; });
      require(has_newcomer || is_any_released, "a planned epoch changes nothing");
    } else {
      require(epoch_.number == 0 || lost_since_epoch_, "an epoch without a reason");
      seen_.urgent += epoch_.number == 0 ? 0 : 1;
      const bool is_late = now_ >= *waiting_since_ + options_.elastic_timeout_ns;
      require(epoch_.number != 0 || size >= std::min(options_.np, possible_members()) || is_late,
              "the first epoch does not wait");
    }
    for (const Incarnation id : next.members) ranks_.at(id).told.was_member = true;
    epoch_ = next;
    worlds_[next.number].epoch = next;
    for (const auto& [place, id] : places_) worlds_[next.number].places.insert(place);
    lost_since_epoch_ = false;
    needed_.reset();
    suspected_.clear();
    has_given_up_ = false;
    waiting_since_.reset();
    unfinished_since_.reset();
  }

  // Each member finds its place alike, and rank 0 is where the others meet.
  void check_hosts(const NewEpoch& next) {
    require(next.hosts.empty() != are_several(), "the hosts are not named, or for nothing");
    std::set<std::pair<int, int>> seats;
    for (std::size_t rank = 0; rank < next.members.size(); ++rank) {
      const Incarnation id = next.members[rank];
      const auto place = member::place_of_member(next, id);
      require(place.rank == static_cast<int>(rank) &&
                  place.here.at(static_cast<std::size_t>(place.local_rank)) == id,
              "a member has a wrong place on its host");
      require(std::ranges::all_of(
                  place.here,
                  [&](Incarnation other) { return ranks_.at(other).host == ranks_.at(id).host; }),
              "a member of another host is said to be here");
      require(seats.insert({place.host, place.local_rank}).second, "two members have one place");
      if (!are_several()) continue;
      require(next.hosts[rank] == ranks_.at(id).host, "a member is said to be on another host");
      require(!hosts_[next.hosts[rank]].is_lost, "a member is on a lost host");
    }
    if (!are_several()) return;
    require(next.meet_at == hosts_[next.hosts.front()].meet_at,
            "the members meet where rank 0 is not");
    if (next.hosts.front() != 0) ++seen_.met_elsewhere;
  }

  // Survivors keep their places. Newcomers, in the order of their slots, take those that were
  // vacated last, then the lowest free ones.
  std::vector<Incarnation> members_by_place(const NewEpoch& next) {
    std::erase_if(places_, [&](const auto& each) {
      const SimRank& rank = ranks_.at(each.second);
      return !rank.is_there() || rank.told.released;
    });
    std::map<int, Incarnation> newcomers;  // by slot
    for (const Incarnation id : next.members) {
      if (!is_member(id)) newcomers[ranks_.at(id).slot] = id;
    }
    for (const auto& [slot, id] : newcomers) {
      int place = 0;
      while (places_.contains(place)) ++place;
      if (!vacated_.empty()) {
        place = vacated_.back();
        vacated_.pop_back();
      }
      finished_places_.erase(place);
      require(!places_.contains(place), "a place is given twice");
      places_[place] = id;
    }
    std::vector<Incarnation> members;
    for (const auto& [place, id] : places_) members.push_back(id);
    return members;
  }

  void check_over(const std::vector<Incarnation>& to) {
    std::vector<Incarnation> members = survivors();
    std::ranges::sort(members);
    require(to == members && !over_, "the end is not said once to all members");
    for (const Incarnation id : to) {
      const SimRank& rank = ranks_.at(id);
      require(rank.told.at_end == epoch_.number, "a member is told to leave before its end");
      require(rank.state.consumed() == passes_ * pass_samples_, "I33: samples never count");
      require(rank.left_loop_in > 0 && rank.tail_left == 0,
              "I34: a member has not done what comes after its last loop");
    }
    const EpochNumber began = end_began().value();
    require(missing_since(began) == 0, "I34: a rank was lost at its end, and nobody replaces it");
    const bool is_replaced = std::ranges::any_of(to, [&](Incarnation id) {
      return std::ranges::find(worlds_.at(began).epoch.members, id) ==
             worlds_.at(began).epoch.members.end();
    });
    if (is_replaced) ++seen_.replaced_at_end;
    for (const auto& [id, rank] : ranks_) {
      require(rank.told.reaped || rank.told.killed || is_member(id), "a spare is left to itself");
    }
    over_ = true;
  }

  void check_promptness() {
    if (over_) {
      require(count([](const SimRank& each) { return !each.told.reaped; }) > 0,
              "the job does not end although nobody is left");
      return;
    }
    require(!is_missed(), "a rank is waited for that has ended its program");
    const bool is_due = !suspected_.empty() && now_ >= suspected_since_ + kSuspicion;
    for (HostNumber host = 0; is_due && !has_given_up_ && host < hosts_.size(); ++host) {
      require(out_of_reach(host) == 0, "hosts are waited for that do not reach each other");
    }
    if (!program_is_done() && !idle_slots().empty()) {
      for (HostNumber host = 0; host < hosts_.size(); ++host) {
        require(!has_room(host), "a host has room for a process that is not started");
      }
    }
    const std::vector<Incarnation> left = survivors();
    const int most = static_cast<int>(left.size()) + candidates();
    if (waiting_since_ && !is_dying()) {
      const bool begins_anew = left.empty() && !has_state_;
      const bool enough = most >= (begins_anew ? options_.np : options_.min_np);
      require(!enough || program_is_done(), "the job waits although enough are ready");
      const bool in_vain = possible_members() < options_.min_np && epoch_.number != 0 &&
                           !is_reaping() && !may_host_come();
      require(!in_vain, "the job waits in vain");
    }
    if (!waiting_since_ && has_formed() && candidates() > 0) {
      require(missing() == 0 || is_dying(), "the job does not grow");
    }
    if (!waiting_since_ && has_formed() && !is_dying()) {
      require(!should_be_released(), "a host that leaves is kept waiting");
    }
    check_end();
    for (const auto& [id, rank] : ranks_) {
      if (options_.lease_ns == 0 || !rank.told.heard_at || !rank.is_there()) continue;
      const std::uint64_t until = are_several() ? hosts_[rank.host].beat_at : now_;
      require(until < std::max(*rank.told.heard_at, awake_since_) + options_.lease_ns,
              "a process may be silent for ever");
    }
  }

  void check_end() {
    if (!are_all_at_end()) return;
    require(missing() > 0, "all are at their end and are kept");
    if (!unfinished_since_) unfinished_since_ = now_;
    require(now_ < *unfinished_since_ + options_.elastic_timeout_ns, "a rank is missed for ever");
    require(is_reaping() || may_host_come() ||
                possible_members() > static_cast<int>(survivors().size()),
            "nobody can take the place of a rank that is missed");
  }

  void hear_news(const News& news) {
    if (news.kind == NewsKind::kEndedLate) ++seen_.ended_late;
    if (news.kind == NewsKind::kWaiting) ++seen_.waits;
    if (news.kind == NewsKind::kSilent) hear_of_silence(ranks_.at(news.incarnation));
    if (news.kind != NewsKind::kFormed) return;
    require(news.epoch == epoch_.number && news.members == epoch_.members && has_formed(),
            "an epoch is said to have formed and has not");
    require(news.planned == epoch_.planned, "a planned epoch is said to be none");
    require(news.lost == lost_, "other losses are told than there were");
    std::vector<Incarnation> joined;
    std::ranges::copy_if(epoch_.members, std::back_inserter(joined),
                         [&](Incarnation id) { return !formed_.contains(id); });
    require(news.joined == joined, "others are said to join than do");
    lost_.clear();
    formed_ = {epoch_.members.begin(), epoch_.members.end()};
  }

  void hear_of_silence(const SimRank& rank) {
    ++seen_.silent;
    must_kill_.insert(rank.id);
    const std::uint64_t lease = options_.lease_ns;
    require(rank.is_there(), "a process is said to be silent that is gone");
    require(lease > 0 && rank.told.heard_at && now_ >= *rank.told.heard_at + lease,
            "a process is said to be silent, and is not");
    const bool was_silent = now_ > rank.spoke_at + 2 * kBeat || now_ <= rank.resumed_at + lease;
    require(!rank.alive || was_silent, "a process that runs is said to be silent");
    if (is_member(rank.id)) miss();
  }

  void end(const member::End& end) {
    say("the end, for reason " + std::to_string(static_cast<int>(end.reason)));
    ended_ = true;
    const SimRank* exited = last_exit_ == 0 ? nullptr : &ranks_.at(last_exit_);
    const int most = static_cast<int>(survivors().size()) + candidates();
    const bool in_vain = possible_members() < options_.min_np && !may_host_come();
    switch (end.reason) {
      case EndReason::kFinished:
        require(count([](const SimRank& each) { return !each.told.reaped; }) == 0,
                "the job ends before its processes");
        require(over_ || program_is_done(), "the job ends too early");
        if (over_) ++seen_.finished;
        return;
      case EndReason::kFailed:
        require(over_ && exited != nullptr && last_exit_kind_ == ExitKind::kError &&
                    end.incarnation == last_exit_,
                "no process has failed at the end");
        ++seen_.failed;
        return;
      case EndReason::kFailedAtStart:
        require(exited != nullptr && end.incarnation == last_exit_ && !over_,
                "no process has failed at the start");
        require((!has_state_ && last_exit_kind_ != ExitKind::kSignal) || fruitless_ > kFruitlessMax,
                "a failure does not end the job");
        // Of another host, the last Formed may be on its way.
        require(!has_made_step_ || fruitless_ > kFruitlessMax || are_several(),
                "a step was made before the start");
        ++seen_.failed_at_start;
        return;
      case EndReason::kTooFewRanks: {
        const bool is_late =
            waiting_since_ && now_ >= *waiting_since_ + options_.elastic_timeout_ns;
        require(
            waiting_since_ && ((is_late && (most < options_.min_np || is_reaping())) || in_vain),
            "the job could have gone on");
        require(epoch_.number != 0 ||
                    count([](const SimRank& each) { return each.told.ready; }) > 0 ||
                    count([](const SimRank& each) { return !each.told.reaped; }) == 0,
                "a program without a loop is ended");
        ++seen_.too_few;
        return;
      }
      case EndReason::kNoState:
        require(
            has_state_ && all_survivors([](const SimRank& each) { return each.told.formed == 0; }),
            "a survivor holds the state");
        ++seen_.no_state;
        return;
      case EndReason::kResetLimit:
        require(in_vain && starts_again_ == options_.reset_limit, "the limit is not reached");
        ++seen_.reset_limit;
        return;
      case EndReason::kStuck:
        require(is_stuck() && end.incarnation == last_exit_, "the job is not stuck");
        ++(errors_ > kErrorsAtOneStepMax ? seen_.stuck_by_errors : seen_.stuck);
        return;
      case EndReason::kUnfinished:
        return end_unfinished(end.incarnation);
      case EndReason::kLeftEarly:
        require(is_missed() && end.incarnation == needed_->who && end.step == needed_->step,
                "nobody is missed that has ended its program");
        require(ranks_.at(end.incarnation).ends_early, "a rank ends the job that is no earlier");
        ++seen_.left_early;
        return;
    }
  }

  void end_unfinished(Incarnation lost) {
    const bool is_late =
        unfinished_since_ && now_ >= *unfinished_since_ + options_.elastic_timeout_ns;
    const bool in_vain =
        possible_members() == static_cast<int>(survivors().size()) && !may_host_come();
    require(are_all_at_end() && missing() > 0 && (is_late || (in_vain && !is_reaping())),
            "the program could have been finished");
    require(lost == 0 || !ranks_.at(lost).alive || is_outcast(ranks_.at(lost)),
            "a rank is missed that is there");
    ++seen_.unfinished;
  }

  std::mt19937_64 random_;
  MemberCoverage& seen_;
  const member::ArbiterOptions options_;
  member::Arbiter arbiter_;
  std::string log_;

  std::uint64_t now_ = 0;
  std::uint64_t event_count_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::function<void()>> events_;
  std::optional<std::uint64_t> watched_;  // the deadline for which there is an event
  std::uint64_t stalled_until_ = 0;       // the launcher

  std::uint64_t faults_left_ = 0;
  std::uint64_t fault_rate_ = 1;
  std::uint64_t fails_at_start_ = 0;  // percent
  bool fails_by_error_ = false;
  bool boots_slowly_ = false;
  bool has_no_loop_ = false;
  std::optional<std::uint64_t> bad_moment_;  // of a block of which a rank dies each time
  bool dies_by_error_ = false;
  std::optional<std::uint64_t> early_moment_;  // of the block in which a rank's program ends
  std::uint64_t tail_ = 0;                     // what comes after the loop
  std::uint64_t batch_ = 1;
  std::uint64_t pass_samples_ = 1;
  std::uint64_t passes_ = 1;

  std::vector<SimHost> hosts_;
  std::map<std::pair<HostNumber, HostNumber>, std::uint64_t> cut_until_;  // from each other
  std::uint64_t joins_left_ = 0;                                          // hosts that may join
  std::map<int, Incarnation> latest_in_;                                  // by slot
  std::map<Incarnation, SimRank> ranks_;
  std::map<EpochNumber, SimWorld> worlds_;
  bool has_made_step_ = false;  // a rank

  // --- What the arbiter has said and been told ---

  NewEpoch epoch_;  // the newest
  bool lost_since_epoch_ = false;
  std::optional<std::uint64_t> waiting_since_;
  std::map<int, Incarnation> places_;
  std::vector<int> vacated_;
  std::set<int> finished_places_;  // of released members that came to their end, not taken since
  std::optional<std::uint64_t> unfinished_since_;
  std::optional<LeftEarly> needed_;  // as a member of the newest epoch has said
  std::set<std::pair<HostNumber, HostNumber>> suspected_;  // in the newest epoch
  std::uint64_t suspected_since_ = 0;
  bool has_given_up_ = false;
  std::vector<member::Lost> lost_;  // since an epoch was said to have formed
  std::set<Incarnation> formed_;    // its members
  bool has_state_ = false;
  bool over_ = false;
  bool ended_ = false;
  int starts_again_ = 0;
  int fruitless_ = 0;
  int done_ = 0;
  std::uint64_t step_ = 0;  // the newest with which an epoch was formed
  int losses_ = 0;          // of members since then; without an epoch in between they are one
  int errors_ = 0;          // of members since then
  bool formed_since_loss_ = false;
  std::uint64_t looked_at_ = 0;
  std::uint64_t awake_since_ = 0;  // the launcher
  std::set<Incarnation> must_kill_;
  Incarnation last_exit_ = 0;
  ExitKind last_exit_kind_ = ExitKind::kClean;
};

}  // namespace

std::optional<std::string> run_member_job(std::uint64_t seed, MemberCoverage& coverage) {
  MemberJob job(seed, coverage);
  try {
    job.play();
  } catch (const Violation& violation) {
    return job.log() + violation.text;
  }
  return std::nullopt;
}

}  // namespace ciranda::sim
