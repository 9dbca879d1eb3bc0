#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "core/member/arbiter.h"

// What the arbiter decides about hosts, and where processes start.

namespace ciranda::member {

// The processes that the job is to have.
int Arbiter::slots() const {
  return (options_.hosts_may_join ? options_.max_np : options_.np) + options_.spares;
}

void Arbiter::replace(Incarnation incarnation, const Process& process, ExitKind how) {
  if (how == ExitKind::kError && !has_state_) return end(EndReason::kFailedAtStart, incarnation);
  if (process.stage == Stage::kDone) return;
  const bool was_member = process.stage == Stage::kMember || process.stage == Stage::kReleased;
  if (!was_member && how == ExitKind::kClean) {
    ++done_;
    return;
  }
  // A member that ends before any state is held, and not by a signal, would do so again.
  if (how == ExitKind::kClean && !has_state_) return end(EndReason::kFailedAtStart, incarnation);
  // A ready process that was no member says nothing about whether starts succeed, nor does one that
  // was killed because its host leaves.
  const bool has_failed = !process.holds_state() && process.stage != Stage::kReady;
  if (has_failed && !hosts_.is_lost(process.host) && futility_.start_fails()) {
    return end(EndReason::kFailedAtStart, incarnation);
  }
  if (program_has_no_loop()) return;
  idle_slots_[process.slot] = process.host;
  if (starts_left_ != 0) return;
  actions_.emplace_back(
      News{.kind = NewsKind::kNoMoreStarts, .incarnation = incarnation, .epoch = epoch_});
}

// Starts processes where hosts have room for them, unless no more may be started in place of lost
// ones.
void Arbiter::start_idle_slots() {
  if (has_ended_ || is_over_ || program_has_no_loop()) return;
  std::map<HostNumber, int> used;
  for (const auto& [incarnation, process] : processes_) ++used[process.host];
  for (const auto& [slot, home] : std::map(idle_slots_)) {
    const std::optional<HostNumber> host = hosts_.with_room(home, used);
    const bool is_again = begun_slots_.contains(slot);
    if (!host || (is_again && starts_left_ == 0)) continue;
    if (is_again && starts_left_ > 0) --starts_left_;
    start_one(slot, *host);
    ++used[*host];
  }
  if (starts_left_ != 0) return;
  const auto given_up = std::erase_if(
      idle_slots_, [&](const auto& each) { return begun_slots_.contains(each.first); });
  no_more_starts_ = no_more_starts_ || given_up > 0;
}

void Arbiter::start_one(int slot, HostNumber host) {
  const auto is_taken = [&](const auto& each) { return each.second.slot == slot; };
  CIRANDA_ASSERT(std::ranges::none_of(processes_, is_taken));
  idle_slots_.erase(slot);
  begun_slots_.insert(slot);
  const Incarnation incarnation = ++last_incarnation_;
  processes_[incarnation] = Process{.slot = slot, .host = host};
  actions_.emplace_back(Start{.incarnation = incarnation, .slot = slot, .host = host});
}

Actions Arbiter::host_beats(HostNumber host, std::uint64_t now_ns) {
  now_ns_ = now_ns;
  leases_.host_beats(host, now_ns);
  decide(now_ns);
  return take();
}

Actions Arbiter::host_leaves(HostNumber host, std::uint64_t now_ns) {
  now_ns_ = now_ns;
  if (has_ended_ || is_over_ || hosts_.is_lost(host)) return {};
  hosts_.lose(host);
  for (const Incarnation each : processes_on(host)) {
    Process& process = processes_.at(each);
    const bool may_join = process.stage == Stage::kStarting || process.stage == Stage::kReady;
    if (may_join) kill(each, process);
  }
  decide(now_ns);
  return take();
}

// All its processes are lost at once: the survivors are elsewhere, and share no memory with them.
Actions Arbiter::host_lost(HostNumber host, std::uint64_t now_ns) {
  now_ns_ = now_ns;
  if (has_ended_) return {};
  if (!hosts_.is_lost(host)) hosts_.lose(host);  // else it was about to leave
  for (const Incarnation each : processes_on(host)) lose_with_host(each, now_ns);
  start_idle_slots();
  decide(now_ns);
  return take();
}

// In an older epoch a member had just ended its World, to go to the next.
void Arbiter::hear_unreachable(const Process& process, const Unreachable& message,
                               std::uint64_t now_ns) {
  const auto other = processes_.find(message.who);
  if (message.epoch != epoch_ || other == processes_.end() || !other->second.is_member()) return;
  if (other->second.host != process.host) {
    suspicions_.add(process.host, other->second.host, now_ns);
  }
}

void Arbiter::give_up_out_of_reach(std::uint64_t now_ns) {
  const std::optional<std::uint64_t> due = suspicions_.deadline();
  if (!due || now_ns < *due) return;  // each message asks
  std::map<HostNumber, int> members;
  for (const auto& [incarnation, process] : processes_) {
    if (process.is_member()) ++members[process.host];
  }
  const auto verdict = suspicions_.judge(members);
  if (verdict) actions_.emplace_back(GiveUp{.host = verdict->host, .by = verdict->by});
}

Actions Arbiter::host_joins(int slots, std::string meet_at, std::uint64_t now_ns) {
  now_ns_ = now_ns;
  if (has_ended_ || is_over_) return {};
  (void)hosts_.add({.slots = slots, .meet_at = std::move(meet_at)});
  start_idle_slots();
  decide(now_ns);
  return take();
}

std::vector<Incarnation> Arbiter::processes_on(HostNumber host) const {
  std::vector<Incarnation> there;
  for (const auto& [incarnation, process] : processes_) {
    if (process.host == host) there.push_back(incarnation);
  }
  return there;
}

// Returns the members on hosts that leave, if the others can go on without them. At the program's
// end they stay. A host's members go together, because they share memory. If no other host has
// members, one keeps its own until others hold the state.
std::vector<Incarnation> Arbiter::who_can_be_released() const {
  if (!hosts_.is_any_lost()) return {};  // each message asks
  const std::vector<Incarnation> members = members_by_place();
  const auto host_of = [&](Incarnation each) { return processes_.at(each).host; };
  std::vector<Incarnation> leaving;
  for (const Incarnation each : members) {
    if (processes_.at(each).end_since != 0) return {};
    if (hosts_.is_lost(host_of(each))) leaving.push_back(each);
  }
  if (leaving.size() == members.size()) {
    std::erase_if(leaving, [&](Incarnation each) { return host_of(each) == host_of(members[0]); });
  }
  const auto staying = static_cast<int>(members.size() - leaving.size());
  const int size = staying + static_cast<int>(ready_by_slot().size());
  if (size < options_.min_np) return {};
  return leaving;
}

void Arbiter::release(Incarnation incarnation) {
  Process& process = processes_.at(incarnation);
  process.stage = Stage::kReleased;
  vacated_.push_back({.place = process.place, .incarnation = incarnation});
  actions_.emplace_back(Send{.incarnation = incarnation, .bytes = encode(Over{})});
}

void Arbiter::lose_with_host(Incarnation incarnation, std::uint64_t now_ns) {
  const auto found = processes_.find(incarnation);
  const Process gone = found->second;
  processes_.erase(found);
  leases_.close(incarnation);
  if (gone.stage != Stage::kDone) idle_slots_[gone.slot] = gone.host;
  if (is_over_) return end_late(incarnation, gone, ExitKind::kSignal);
  if (gone.stage != Stage::kMember) return;
  suppose_formed(gone);
  if (!gone.died) vacate(incarnation, gone, now_ns);
  if (futility_.step_fails(/*by_error=*/false)) end(EndReason::kStuck, incarnation);
}

Actions Arbiter::host_returned(HostNumber host, std::string meet_at, std::uint64_t now_ns) {
  now_ns_ = now_ns;
  if (has_ended_ || is_over_ || !hosts_.regain(host, std::move(meet_at))) return {};
  start_idle_slots();
  decide(now_ns);
  return take();
}

// Returns true if it makes sense to wait for a host: one that is lost, or one that has yet to join.
// A job that has lost all its processes before its first epoch ends at once.
bool Arbiter::may_host_come() const {
  const bool is_released = std::ranges::any_of(
      processes_, [](const auto& each) { return each.second.stage == Stage::kReleased; });
  const bool may_come = hosts_.is_any_lost() || options_.hosts_may_join;
  return may_come && (!idle_slots_.empty() || is_released) && (epoch_ != 0 || !processes_.empty());
}

// Its last words may have been on their way. If it had formed an epoch, so that all had, the others
// may have made a step with it.
void Arbiter::suppose_formed(const Process& gone) {
  for (auto& [number, epoch] : epochs_) {
    const bool has_it = gone.joined <= number && (!gone.died || number <= gone.died_in);
    if (number <= gone.formed || !has_it) continue;
    has_state_ = has_state_ || ++epoch.formed == epoch.places.size();
  }
}

NewEpoch Arbiter::next_epoch() const {
  NewEpoch next{.number = epoch_, .planned = planned_, .members = members_};
  if (!hosts_.are_named()) return next;
  for (const Incarnation each : members_) next.hosts.push_back(processes_.at(each).host);
  next.meet_at = hosts_.meet_at(next.hosts.front());
  return next;
}

}  // namespace ciranda::member
