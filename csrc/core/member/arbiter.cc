#include "core/member/arbiter.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <utility>

namespace ciranda::member {

Arbiter::Arbiter(const ArbiterOptions& options)
    : options_(options), leases_(options.lease_ns), starts_left_(options.reset_limit) {
  CIRANDA_ASSERT(1 <= options.min_np && options.min_np <= options.np);
  CIRANDA_ASSERT(options.np <= options.max_np && options.max_np <= kLocalRanksMax);
  CIRANDA_ASSERT(options.spares >= 0 && slots() <= kLocalRanksMax);
  CIRANDA_ASSERT(options.reset_limit >= -1);
}

// -------------------------------------------------------------------------------------------
// Events

Actions Arbiter::start(std::uint64_t now_ns) {
  CIRANDA_ASSERT(last_incarnation_ == 0);
  now_ns_ = now_ns;
  leases_.begin(now_ns);
  begin_waiting(now_ns);
  loss_news_.begin(now_ns);
  for (int slot = 0; slot < slots(); ++slot) {
    const auto at = static_cast<std::size_t>(slot);
    idle_slots_[slot] = at < options_.homes.size() ? options_.homes[at] : 0;
  }
  start_idle_slots();
  return take();
}

Actions Arbiter::exited(Incarnation incarnation, ExitKind how, std::uint64_t now_ns) {
  now_ns_ = now_ns;
  const auto found = processes_.find(incarnation);
  if (has_ended_ || found == processes_.end()) return {};
  const Process gone = found->second;
  processes_.erase(found);
  leases_.close(incarnation);
  if (is_over_) {
    end_late(incarnation, gone, how);
  } else {
    if (gone.stage == Stage::kMember) {
      if (!gone.died) vacate(incarnation, gone, now_ns);
      if (futility_.step_fails(how == ExitKind::kError)) end(EndReason::kStuck, incarnation);
    }
    if (!has_ended_) replace(incarnation, gone, how);
    start_idle_slots();  // its host has room now
  }
  decide(now_ns);
  return take();
}

Actions Arbiter::said(Incarnation incarnation, std::span<const std::byte> bytes,
                      std::uint64_t now_ns) {
  now_ns_ = now_ns;
  const auto found = processes_.find(incarnation);
  if (has_ended_ || is_over_ || found == processes_.end()) return {};
  Process& process = found->second;
  const Result<FromRank> message = decode_from_rank(bytes);
  if (process.killed) {
    hear_doomed(process, message, now_ns);
  } else if (message.ok()) {
    const bool is_beat = std::holds_alternative<Beat>(message.value());
    leases_.hear(incarnation, process.host, is_beat, now_ns);
    hear(process, message.value(), now_ns);
  } else {
    actions_.emplace_back(
        News{.kind = NewsKind::kBadMessage, .incarnation = incarnation, .epoch = epoch_});
    evict(incarnation, process, now_ns);
  }
  decide(now_ns);
  return take();
}

Actions Arbiter::tick(std::uint64_t now_ns) {
  now_ns_ = now_ns;
  decide(now_ns);
  return take();
}

std::optional<std::uint64_t> Arbiter::deadline() const {
  if (has_ended_ || is_over_) return std::nullopt;
  std::optional<std::uint64_t> first = leases_.deadline();
  for (const auto& next :
       {deadline_of_waiting(), deadline_of_finishing(), suspicions_.deadline()}) {
    if (next) first = std::min(first.value_or(*next), *next);
  }
  return first;
}

std::optional<std::uint64_t> Arbiter::deadline_of_waiting() const {
  if (!waits() || program_has_no_loop()) return std::nullopt;
  const std::uint64_t timeout = *waiting_since_ + options_.elastic_timeout_ns;
  if (epoch_ != 0) return timeout;
  // A program that never says that it is ready may run as long as it likes.
  if (!first_ready_) return std::nullopt;
  if (now_ns_ < timeout) return timeout;
  return std::max(timeout, *first_ready_ + options_.start_timeout_ns);
}

std::optional<std::uint64_t> Arbiter::deadline_of_finishing() const {
  if (!unfinished_since_) return std::nullopt;
  return *unfinished_since_ + options_.elastic_timeout_ns;
}

// -------------------------------------------------------------------------------------------
// Messages

void Arbiter::hear(Process& process, const FromRank& message, std::uint64_t now_ns) {
  if (std::holds_alternative<Ready>(message)) {
    if (process.stage != Stage::kStarting) return;
    process.stage = Stage::kReady;
    if (!first_ready_) first_ready_ = now_ns;
    return;
  }
  if (const Formed* formed = std::get_if<Formed>(&message)) {
    if (process.stage == Stage::kMember) hear_formed(process, *formed, now_ns);
    return;
  }
  if (const LeftEarly* left = std::get_if<LeftEarly>(&message)) {
    if (process.stage == Stage::kMember) hear_left_early(*left);
    return;
  }
  if (const Unreachable* other = std::get_if<Unreachable>(&message)) {
    if (process.stage == Stage::kMember) hear_unreachable(process, *other, now_ns);
    return;
  }
  if (const AtEnd* at_end = std::get_if<AtEnd>(&message)) hear_at_end(process, *at_end);
  if (const Died* died = std::get_if<Died>(&message)) hear_died(died->who, now_ns);
}

// The others need not wait until the process is reaped. It is killed all the same: it might have
// become another program.
void Arbiter::hear_died(Incarnation incarnation, std::uint64_t now_ns) {
  const auto found = processes_.find(incarnation);
  if (found == processes_.end() || found->second.stage != Stage::kMember) return;
  if (std::exchange(found->second.died, true)) return;
  found->second.died_in = epoch_;
  kill(incarnation, found->second);
  vacate(incarnation, found->second, now_ns);
}

// In an older epoch a member was needed that had heard of the next one before.
void Arbiter::hear_left_early(const LeftEarly& message) {
  if (message.epoch == epoch_) left_early_ = message;
}

void Arbiter::hear_at_end(Process& process, const AtEnd& message) {
  if (process.stage == Stage::kMember) {
    // A member forms the epoch first. Otherwise it said so in an older one.
    process.at_end = process.formed == epoch_;
    process.end_since = std::clamp<EpochNumber>(message.since, 1, epoch_);
    return;
  }
  if (process.stage == Stage::kReleased) finished_places_.insert(process.place);
  if (!process.may_be_member()) return;
  process.stage = Stage::kDone;
  ++done_;
}

void Arbiter::hear_formed(Process& process, const Formed& message, std::uint64_t now_ns) {
  if (message.epoch > epoch_ || message.epoch <= process.formed) return;
  process.formed = message.epoch;
  futility_.formed(message.step);
  const auto epoch = epochs_.find(message.epoch);
  if (epoch == epochs_.end()) return;
  const bool by_all = ++epoch->second.formed == epoch->second.places.size();
  has_state_ = has_state_ || by_all;
  if (by_all && message.epoch == epoch_ && !waits()) tell_formed(message.step, now_ns);
}

// Of a process that was told to die only Formed counts, because the others may have made a step
// with it.
void Arbiter::hear_doomed(Process& process, const Result<FromRank>& message, std::uint64_t now_ns) {
  const Formed* formed = message.ok() ? std::get_if<Formed>(&message.value()) : nullptr;
  if (formed != nullptr && process.stage == Stage::kMember) hear_formed(process, *formed, now_ns);
}

// -------------------------------------------------------------------------------------------
// Exits

// All members were told to leave. What a process that is no member does counts no more.
void Arbiter::end_late(Incarnation incarnation, const Process& process, ExitKind how) {
  if (!process.is_member()) return;
  if (how == ExitKind::kSignal) {
    actions_.emplace_back(
        News{.kind = NewsKind::kEndedLate, .incarnation = incarnation, .epoch = epoch_});
  }
  if (how == ExitKind::kError) end(EndReason::kFailed, incarnation);
}

void Arbiter::vacate(Incarnation incarnation, const Process& process, std::uint64_t now_ns) {
  CIRANDA_ASSERT(process.stage == Stage::kMember);
  vacated_.push_back({.place = process.place, .incarnation = incarnation});
  futility_.lose();
  loss_news_.lose({.incarnation = incarnation, .rank = rank_in_epoch(incarnation)}, now_ns);
  begin_waiting(now_ns);
}

// -------------------------------------------------------------------------------------------
// Decisions

void Arbiter::decide(std::uint64_t now_ns) {
  if (has_ended_) return;
  if (!is_over_) {
    evict_silent(now_ns);
    give_up_out_of_reach(now_ns);
    end_if_one_left_early();
    if (!has_ended_ && all_members_are_at_end()) leave_together(now_ns);
    if (has_ended_) return;
  }
  if (is_over_ || program_has_no_loop()) return finish();
  if (waits()) return form_again(now_ns);
  change_as_planned();
}

void Arbiter::evict_silent(std::uint64_t now_ns) {
  for (const Incarnation each : leases_.end(now_ns)) {
    actions_.emplace_back(News{.kind = NewsKind::kSilent, .incarnation = each, .epoch = epoch_});
    evict(each, processes_.at(each), now_ns);
  }
}

// Members that end in step with the others are never needed after their end. One that is needed has
// done fewer steps, which the others cannot do without it. What it says of its end may be read
// after what another one says of it.
void Arbiter::end_if_one_left_early() {
  if (!left_early_) return;
  const auto found = processes_.find(left_early_->who);
  if (found == processes_.end() || !found->second.is_member() || !found->second.at_end) return;
  end(EndReason::kLeftEarly, left_early_->who, left_early_->step);
}

bool Arbiter::all_members_are_at_end() const {
  bool is_any = false;
  for (const auto& [incarnation, process] : processes_) {
    if (!process.is_member()) continue;
    if (!process.at_end) return false;
    CIRANDA_ASSERT(process.formed == epoch_);
    is_any = true;
  }
  return is_any;
}

// All members are at the program's end. A rank that was lost there has left a part of the program
// undone, which a newcomer does before all leave.
void Arbiter::leave_together(std::uint64_t now_ns) {
  if (missing() == 0) return let_all_leave();
  if (!unfinished_since_) unfinished_since_ = now_ns;
  const bool is_late = now_ns >= *deadline_of_finishing();
  const bool in_vain =
      count(&Process::may_be_member) == count(&Process::is_member) && !may_host_come();
  if (!is_late && (!in_vain || is_reaping())) return;
  end(EndReason::kUnfinished, vacated_.empty() ? 0 : vacated_.back().incarnation);
}

// As many processes as the job wants have come to their end before any epoch.
bool Arbiter::program_has_no_loop() const {
  return epoch_ == 0 && done_ >= options_.np;
}

// Ends the job when the last process is reaped. Ready processes will not be needed.
void Arbiter::finish() {
  for (auto& [incarnation, process] : processes_) {
    if (process.stage == Stage::kReady) kill(incarnation, process);
  }
  if (processes_.empty()) end(EndReason::kFinished);
}

// Sends the next epoch if enough processes are there, or the first one.
void Arbiter::form_again(std::uint64_t now_ns) {
  if (has_state_ && !somebody_holds_state()) return end(EndReason::kNoState);
  const int members = count(&Process::is_member);
  const int ready = static_cast<int>(ready_by_slot().size());
  const int size = members + std::min(ready, room());
  const bool is_late = now_ns >= *waiting_since_ + options_.elastic_timeout_ns;
  const bool enough = size >= wanted_members() || (is_late && size >= options_.min_np);
  if (enough && !is_dying()) return send_epoch(/*planned=*/false);
  wait_for_members(size, now_ns);
}

// Ends the job if it would wait in vain, or too long.
void Arbiter::wait_for_members(int size, std::uint64_t now_ns) {
  const bool in_vain = count(&Process::may_be_member) < options_.min_np && !may_host_come();
  // A process that is done may be the last one; its exit decides how the job ends.
  if (in_vain && (epoch_ != 0 || first_ready_ || processes_.empty()) && !is_reaping()) {
    return end(no_more_starts_ ? EndReason::kResetLimit : EndReason::kTooFewRanks);
  }
  const std::optional<std::uint64_t> late = deadline_of_waiting();
  if (late && now_ns >= *late) return end(EndReason::kTooFewRanks);
  if (epoch_ == 0 || size >= options_.min_np) return;
  auto news = loss_news_.waiting(epoch_, members_by_place(), now_ns);
  if (news) actions_.emplace_back(*std::move(news));
}

// A member that keeps its state makes the job go on with min_np. Without one the job begins anew,
// and waits a while for its whole size.
int Arbiter::wanted_members() const {
  if (has_state_ || count(&Process::is_member) > 0) return options_.min_np;
  const int possible = std::min(options_.np, count(&Process::may_be_member));
  return std::max(options_.min_np, possible);
}

// Lets members go whose host leaves, and takes ready processes in where there is room.
void Arbiter::change_as_planned() {
  if (!is_formed_ || is_dying()) return;
  const std::vector<Incarnation> released = who_can_be_released();
  for (const Incarnation each : released) release(each);
  if (released.empty() && (missing() == 0 || ready_by_slot().empty())) return;
  send_epoch(/*planned=*/true);
}

void Arbiter::send_epoch(bool planned) {
  CIRANDA_ASSERT(!is_dying());                            // I32
  CIRANDA_ASSERT(!has_state_ || somebody_holds_state());  // I6
  ++epoch_;
  std::vector<Incarnation> newcomers = ready_by_slot();
  newcomers.resize(std::min(newcomers.size(), static_cast<std::size_t>(room())));
  for (const Incarnation incarnation : newcomers) {
    Process& newcomer = processes_.at(incarnation);
    newcomer.place = take_place();
    newcomer.stage = Stage::kMember;
    newcomer.joined = epoch_;
  }
  members_ = members_by_place();
  CIRANDA_ASSERT(static_cast<int>(members_.size()) >= options_.min_np);
  remember_epoch();
  unfinished_since_.reset();
  planned_ = planned;
  is_formed_ = false;
  left_early_.reset();
  suspicions_.clear();
  waiting_since_.reset();
  const std::vector<std::byte> bytes = encode(next_epoch());
  for (const Incarnation each : members_) {
    processes_.at(each).at_end = false;
    actions_.emplace_back(Send{.incarnation = each, .bytes = bytes});
  }
}

// Notes who is in the newest epoch, and forgets those that nobody can name any more. A member that
// is not reaped yet may have sent messages that are not read.
void Arbiter::remember_epoch() {
  EpochNumber oldest = epoch_;
  for (const auto& [incarnation, process] : processes_) {
    if (process.stage != Stage::kMember) continue;
    if (process.is_member()) epochs_[epoch_].places.push_back(process.place);
    oldest = std::min(oldest, process.oldest_epoch());
  }
  epochs_.erase(epochs_.begin(), epochs_.lower_bound(oldest));
}

void Arbiter::let_all_leave() {
  is_over_ = true;
  for (auto& [incarnation, process] : processes_) {
    if (process.is_member()) {
      actions_.emplace_back(Send{.incarnation = incarnation, .bytes = encode(Over{})});
    } else {
      kill(incarnation, process);
    }
  }
}

// -------------------------------------------------------------------------------------------
// Who is there

std::vector<Incarnation> Arbiter::ready_by_slot() const {
  std::vector<Incarnation> ready;
  for (const auto& [incarnation, process] : processes_) {
    if (process.stage == Stage::kReady && !process.killed) ready.push_back(incarnation);
  }
  std::ranges::sort(ready, {}, [&](Incarnation each) { return processes_.at(each).slot; });
  return ready;
}

std::vector<Incarnation> Arbiter::members_by_place() const {
  std::vector<Incarnation> members;
  for (const auto& [incarnation, process] : processes_) {
    if (process.is_member()) members.push_back(incarnation);
  }
  std::ranges::sort(members, {}, [&](Incarnation each) { return processes_.at(each).place; });
  return members;
}

int Arbiter::count(bool (Process::*is)() const) const {
  return static_cast<int>(
      std::ranges::count_if(processes_, [&](const auto& each) { return (each.second.*is)(); }));
}

bool Arbiter::is_reaping() const {
  return std::ranges::any_of(processes_, [](const auto& each) { return each.second.killed; });
}

// Returns true if a process that was told to die may still do something.
bool Arbiter::is_dying() const {
  return std::ranges::any_of(
      processes_, [](const auto& each) { return each.second.killed && !each.second.died; });
}

bool Arbiter::somebody_holds_state() const {
  return std::ranges::any_of(processes_, [](const auto& each) {
    return each.second.is_member() && each.second.holds_state();
  });
}

// Returns how many processes may join. At the program's end these are as many as are missing: of
// the places that had members when the first member left its last loop, those that nobody has now.
int Arbiter::room() const {
  return untaken_places(/*but=*/{});
}

// Returns how many processes should join: nobody is missing who came to the end before it was
// released.
int Arbiter::missing() const {
  return untaken_places(finished_places_);
}

int Arbiter::untaken_places(const std::set<int>& but) const {
  std::set<int> taken;
  std::optional<EpochNumber> since;
  for (const auto& [incarnation, process] : processes_) {
    if (!process.is_member()) continue;
    taken.insert(process.place);
    if (process.end_since == 0) continue;
    since = std::min(since.value_or(epoch_), process.end_since);
  }
  if (!since) return options_.max_np - static_cast<int>(taken.size());
  const auto epoch = epochs_.lower_bound(*since);
  CIRANDA_ASSERT(epoch != epochs_.end());
  return static_cast<int>(std::ranges::count_if(epoch->second.places, [&](int place) {
    return !taken.contains(place) && !but.contains(place);
  }));
}

// Returns the place that was vacated last, so that a newcomer gets the rank that was lost. If no
// place is vacant, returns the lowest that nobody has had.
int Arbiter::take_place() {
  if (vacated_.empty()) {
    CIRANDA_ASSERT(places_given_ < options_.max_np);
    return places_given_++;
  }
  const int place = vacated_.back().place;
  vacated_.pop_back();
  finished_places_.erase(place);
  return place;
}

Rank Arbiter::rank_in_epoch(Incarnation incarnation) const {
  const auto found = std::ranges::find(members_, incarnation);
  CIRANDA_ASSERT(found != members_.end());
  return static_cast<Rank>(found - members_.begin());
}

// -------------------------------------------------------------------------------------------
// Actions

void Arbiter::begin_waiting(std::uint64_t now_ns) {
  if (!waits()) waiting_since_ = now_ns;
}

// Kills a process that the others would wait for. They wait for its end, and for the next epoch.
void Arbiter::evict(Incarnation incarnation, Process& process, std::uint64_t now_ns) {
  kill(incarnation, process);
  if (process.stage == Stage::kMember) begin_waiting(now_ns);
}

void Arbiter::kill(Incarnation incarnation, Process& process) {
  if (std::exchange(process.killed, true)) return;
  leases_.close(incarnation);
  actions_.emplace_back(Kill{.incarnation = incarnation});
}

void Arbiter::end(EndReason reason, Incarnation incarnation, std::uint64_t step) {
  if (std::exchange(has_ended_, true)) return;
  CIRANDA_ASSERT(reason != EndReason::kFinished || processes_.empty());
  actions_.emplace_back(End{.reason = reason, .incarnation = incarnation, .step = step});
}

void Arbiter::tell_formed(std::uint64_t step, std::uint64_t now_ns) {
  actions_.emplace_back(loss_news_.formed(
      {.number = epoch_, .planned = planned_, .members = members_}, step, now_ns));
  is_formed_ = true;
}

Actions Arbiter::take() {
  return std::exchange(actions_, {});
}

}  // namespace ciranda::member
