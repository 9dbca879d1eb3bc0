#include "core/member/arbiter.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <utility>

namespace ciranda::member {
namespace {

// A script that fails each time must not be started for ever.
constexpr int kFruitlessStartsMax = 10;
// Nor must a step that fails each time be redone for ever.
constexpr int kErrorsAtOneStepMax = 2;
constexpr int kLossesAtOneStepMax = 10;

}  // namespace

Arbiter::Arbiter(const ArbiterOptions& options)
    : options_(options), leases_(options.lease_ns), starts_left_(options.reset_limit) {
  CIRANDA_ASSERT(1 <= options.min_np && options.min_np <= options.np);
  CIRANDA_ASSERT(options.np <= options.max_np && options.max_np <= kLocalRanksMax);
  CIRANDA_ASSERT(options.spares >= 0 && options.np + options.spares <= kLocalRanksMax);
  CIRANDA_ASSERT(options.reset_limit >= -1);
}

// -------------------------------------------------------------------------------------------
// Events

Actions Arbiter::start(std::uint64_t now_ns) {
  CIRANDA_ASSERT(last_incarnation_ == 0);
  now_ns_ = now_ns;
  leases_.begin(now_ns);
  begin_waiting(now_ns);
  broken_since_ = now_ns;
  for (int slot = 0; slot < options_.np + options_.spares; ++slot) start_one(slot);
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
    if (gone.stage == Stage::kMember) lose(incarnation, gone, how, now_ns);
    if (!has_ended_) replace(incarnation, gone, how);
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
    leases_.hear(incarnation, is_beat, now_ns);
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
  for (const auto& next : {deadline_of_waiting(), deadline_of_finishing()}) {
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
  if (const AtEnd* at_end = std::get_if<AtEnd>(&message)) hear_at_end(process, *at_end);
}

void Arbiter::hear_at_end(Process& process, const AtEnd& message) {
  if (process.stage == Stage::kMember) {
    // A member forms the epoch first. Otherwise it said so in an older one.
    process.at_end = process.formed == epoch_;
    process.end_since = std::clamp<EpochNumber>(message.since, 1, epoch_);
    return;
  }
  if (process.stage == Stage::kDone) return;
  process.stage = Stage::kDone;
  ++done_;
}

void Arbiter::hear_formed(Process& process, const Formed& message, std::uint64_t now_ns) {
  if (message.epoch > epoch_ || message.epoch <= process.formed) return;
  process.formed = message.epoch;
  fruitless_ = 0;
  if (message.step > progress_.step) progress_ = {.step = message.step};
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

void Arbiter::lose(Incarnation incarnation, const Process& process, ExitKind how,
                   std::uint64_t now_ns) {
  CIRANDA_ASSERT(process.stage == Stage::kMember);
  vacated_.push_back({.place = process.place, .incarnation = incarnation});
  ++progress_.losses;
  if (how == ExitKind::kError) ++progress_.errors;
  if (progress_.losses > kLossesAtOneStepMax || progress_.errors > kErrorsAtOneStepMax) {
    return end(EndReason::kStuck, incarnation);
  }
  lost_.push_back({.incarnation = incarnation, .rank = rank_in_epoch(incarnation)});
  if (!broken_since_) broken_since_ = now_ns;
  if (!too_small_since_) {
    too_small_since_ = now_ns;
    size_before_ = formed_members_.size();
  }
  begin_waiting(now_ns);
}

void Arbiter::replace(Incarnation incarnation, const Process& process, ExitKind how) {
  if (how == ExitKind::kError && !has_state_) return end(EndReason::kFailedAtStart, incarnation);
  if (process.stage == Stage::kDone) return;
  if (process.stage != Stage::kMember && how == ExitKind::kClean) {
    ++done_;
    return;
  }
  // A ready process that was no member says nothing about whether starts succeed.
  if (!process.holds_state() && process.stage != Stage::kReady &&
      ++fruitless_ > kFruitlessStartsMax) {
    return end(EndReason::kFailedAtStart, incarnation);
  }
  // A member that ends before any state is held, and not by a signal, would do so again.
  if (how == ExitKind::kClean && !has_state_) return end(EndReason::kFailedAtStart, incarnation);
  if (program_has_no_loop()) return;
  if (starts_left_ == 0) {
    no_more_starts_ = true;
    actions_.emplace_back(
        News{.kind = NewsKind::kNoMoreStarts, .incarnation = incarnation, .epoch = epoch_});
    return;
  }
  if (starts_left_ > 0) --starts_left_;
  start_one(process.slot);
}

// -------------------------------------------------------------------------------------------
// Decisions

void Arbiter::decide(std::uint64_t now_ns) {
  if (has_ended_) return;
  if (!is_over_) {
    evict_silent(now_ns);
    if (all_members_are_at_end()) leave_together(now_ns);
    if (has_ended_) return;
  }
  if (is_over_ || program_has_no_loop()) return finish();
  if (waits()) return form_again(now_ns);
  grow();
}

void Arbiter::evict_silent(std::uint64_t now_ns) {
  for (const Incarnation each : leases_.end(now_ns)) {
    actions_.emplace_back(News{.kind = NewsKind::kSilent, .incarnation = each, .epoch = epoch_});
    evict(each, processes_.at(each), now_ns);
  }
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
  if (room() == 0) return let_all_leave();
  if (!unfinished_since_) unfinished_since_ = now_ns;
  const bool is_late = now_ns >= *deadline_of_finishing();
  const bool in_vain = count(&Process::may_be_member) == count(&Process::is_member);
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
  if (enough && !is_reaping()) return send_epoch(/*planned=*/false);
  wait_for_members(size, now_ns);
}

// Ends the job if it would wait in vain, or too long.
void Arbiter::wait_for_members(int size, std::uint64_t now_ns) {
  const bool in_vain = count(&Process::may_be_member) < options_.min_np;
  // A process that is done may be the last one; its exit decides how the job ends.
  if (in_vain && (epoch_ != 0 || first_ready_ || processes_.empty()) && !is_reaping()) {
    return end(no_more_starts_ ? EndReason::kResetLimit : EndReason::kTooFewRanks);
  }
  const std::optional<std::uint64_t> late = deadline_of_waiting();
  if (late && now_ns >= *late) return end(EndReason::kTooFewRanks);
  if (epoch_ != 0 && size < options_.min_np && !told_waiting_) tell_waiting(now_ns);
}

// A member that keeps its state makes the job go on with min_np. Without one the job begins anew,
// and waits a while for its whole size.
int Arbiter::wanted_members() const {
  if (has_state_ || count(&Process::is_member) > 0) return options_.min_np;
  const int possible = std::min(options_.np, count(&Process::may_be_member));
  return std::max(options_.min_np, possible);
}

// Takes ready processes in, where there is room.
void Arbiter::grow() {
  if (!is_formed_ || is_reaping() || room() == 0 || ready_by_slot().empty()) return;
  send_epoch(/*planned=*/true);
}

void Arbiter::send_epoch(bool planned) {
  CIRANDA_ASSERT(!is_reaping());                          // I32
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
  waiting_since_.reset();
  told_waiting_ = false;
  const std::vector<std::byte> bytes =
      encode(NewEpoch{.number = epoch_, .planned = planned, .members = members_});
  for (const Incarnation each : members_) {
    processes_.at(each).at_end = false;
    actions_.emplace_back(Send{.incarnation = each, .bytes = bytes});
  }
}

// Notes who is in the newest epoch, and forgets those that no member can name any more.
void Arbiter::remember_epoch() {
  EpochNumber oldest = epoch_;
  for (const Incarnation each : members_) {
    const Process& process = processes_.at(each);
    epochs_[epoch_].places.push_back(process.place);
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

bool Arbiter::somebody_holds_state() const {
  return std::ranges::any_of(processes_, [](const auto& each) {
    return each.second.is_member() && each.second.holds_state();
  });
}

// Returns how many processes may join. At the program's end these are as many as are missing: of
// the places that had members when the first member left its last loop, those that nobody has now.
int Arbiter::room() const {
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
  return static_cast<int>(std::ranges::count_if(epoch->second.places,
                                                [&](int place) { return !taken.contains(place); }));
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

void Arbiter::start_one(int slot) {
  const auto is_taken = [&](const auto& each) { return each.second.slot == slot; };
  CIRANDA_ASSERT(std::ranges::none_of(processes_, is_taken));
  const Incarnation incarnation = ++last_incarnation_;
  processes_[incarnation] = Process{.slot = slot};
  actions_.emplace_back(Start{.incarnation = incarnation, .slot = slot});
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

void Arbiter::end(EndReason reason, Incarnation incarnation) {
  if (std::exchange(has_ended_, true)) return;
  CIRANDA_ASSERT(reason != EndReason::kFinished || processes_.empty());
  actions_.emplace_back(End{.reason = reason, .incarnation = incarnation});
}

void Arbiter::tell_formed(std::uint64_t step, std::uint64_t now_ns) {
  const std::set<Incarnation> before(formed_members_.begin(), formed_members_.end());
  News news{.kind = NewsKind::kFormed,
            .epoch = epoch_,
            .members = members_,
            .step = step,
            .planned = planned_,
            .lost = std::exchange(lost_, {})};
  std::ranges::copy_if(members_, std::back_inserter(news.joined),
                       [&](Incarnation each) { return !before.contains(each); });
  const std::optional<std::uint64_t> since = planned_ ? too_small_since_ : broken_since_;
  if (since) news.since_ns = now_ns - *since;
  actions_.emplace_back(std::move(news));
  is_formed_ = true;
  formed_members_ = members_;
  broken_since_.reset();
  if (members_.size() >= size_before_) too_small_since_.reset();
}

void Arbiter::tell_waiting(std::uint64_t now_ns) {
  told_waiting_ = true;
  actions_.emplace_back(News{.kind = NewsKind::kWaiting,
                             .epoch = epoch_,
                             .members = members_by_place(),
                             .lost = lost_,
                             .since_ns = now_ns - broken_since_.value_or(now_ns)});
}

Actions Arbiter::take() {
  return std::exchange(actions_, {});
}

}  // namespace ciranda::member
