#include "core/ps/io/progress.h"

#include <algorithm>

namespace ciranda::ps {

// If only some servers have decided a push, its number is used up, though it has no answer.
void PushProgress::enter(const Welcome& welcome) {
  seq_ = std::max(seq_, welcome.decided);
  rows_seq_ = std::max(rows_seq_, welcome.decided_rows);
}

Declare PushProgress::declare(std::size_t model_bytes) const {
  return {.model_bytes = model_bytes, .decided = seq_};
}

std::optional<Declare> PushProgress::declare_again(int server, std::size_t model_bytes) const {
  const Told& told = servers_[at(server)];
  if (!told.gave_parameters) return std::nullopt;
  CIRANDA_ASSERT(!unanswered_ || seq_ > 0);  // I21: by sent()
  return Declare{.model_bytes = model_bytes,
                 .decided = unanswered_ ? seq_ - 1 : seq_,
                 .returns = true,
                 .answered = told.answered};
}

void PushProgress::hear(Told& server, std::uint64_t version, std::uint64_t clock,
                        std::uint64_t checkpoint) {
  server.version = version;
  clock_ = std::max(clock_, clock);
  announced_ = std::max(announced_, checkpoint);
}

void PushProgress::hear(int server, const Ready& ready) {
  servers_[at(server)].gave_parameters = true;
  hear(servers_[at(server)], ready.version, ready.clock, ready.checkpoint);
}

Push PushProgress::next(Push push) const {
  CIRANDA_ASSERT(!unanswered_);  // I26
  push.seq = seq_ + 1;
  push.clock = clock_ + 1;
  return push;
}

void PushProgress::sent(std::uint64_t bytes, std::uint64_t now_ns) {
  CIRANDA_ASSERT(!unanswered_);  // I26
  ++seq_;
  ++clock_;
  unanswered_ = true;
  sent_ns_ = now_ns;
  outcome_so_far_ = Outcome::kApplied;
  held_so_far_ns_ = 0;
  stats_.pushed_bytes += bytes;
}

void PushProgress::hear(int server, const Ack& ack) {
  CIRANDA_ASSERT(unanswered_);
  outcome_so_far_ = std::max(outcome_so_far_, ack.outcome);
  held_so_far_ns_ = std::max(held_so_far_ns_, ack.held_ns);
  servers_[at(server)].answered = ack.seq;
  hear(servers_[at(server)], ack.version, ack.clock, ack.checkpoint);
}

void PushProgress::answered(std::uint64_t begin_ns, std::uint64_t end_ns) {
  CIRANDA_ASSERT(unanswered_ && begin_ns <= end_ns);
  unanswered_ = false;
  outcome_ = outcome_so_far_;
  ++stats_.outcomes[static_cast<std::size_t>(outcome_)];
  stats_.waiting_ns += end_ns - begin_ns;
  stats_.held_ns += std::min(held_so_far_ns_, end_ns - begin_ns);
}

std::optional<Mark> PushProgress::take_mark() {
  CIRANDA_ASSERT(!unanswered_ && marked_ <= announced_);  // I29
  if (marked_ == announced_) return std::nullopt;
  marked_ = announced_;
  return mark();
}

std::optional<Mark> PushProgress::mark() const {
  return marked_ > 0 ? std::optional(Mark{.checkpoint = marked_}) : std::nullopt;
}

std::vector<std::uint64_t> PushProgress::versions() const {
  std::vector<std::uint64_t> versions;
  versions.reserve(servers_.size());
  for (const Told& server : servers_) versions.push_back(server.version);
  return versions;
}

void TaskProgress::begin(const Given& given) {
  part_ = {.task = given.task, .part = 0, .settled = given.settled};
  rows_part_ = part_;
}

TaskPart TaskProgress::next(TaskPart& part) {
  if (part.task != 0) ++part.part;
  return part;
}

const Schedule& TaskProgress::schedule(std::string call, int copies) {
  scheduled_.push_back({.task = scheduled() + 1, .copies = copies, .call = std::move(call)});
  return scheduled_.back();
}

std::span<const Schedule> TaskProgress::scheduled_after(TaskId known) const {
  const auto first = static_cast<std::size_t>(std::min(known, scheduled()));
  const std::span<const Schedule> after = std::span(scheduled_).subspan(first);
  CIRANDA_ASSERT(after.empty() || after.front().task == known + 1);  // I30
  return after;
}

}  // namespace ciranda::ps
