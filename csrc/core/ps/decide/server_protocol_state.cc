// Saves and restores the state of ServerProtocol; writes to its journal and checkpoints.
#include <algorithm>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/server_protocol.h"

namespace ciranda::ps {

void ServerProtocol::keep_journal(Journal* journal) {
  journal_ = journal;
  if (tasks_) tasks_->keep_journal(journal);
  checkpoint_barrier_.forward_to(journal);
  link_journal();
}

// -------------------------------------------------------------------------------------------
// Checkpoints

void ServerProtocol::keep_checkpoints(CheckpointKeeper* keeper, Checkpoint latest) {
  announcer_.keep(options_.server == 0 ? keeper : nullptr, latest);
  checkpoint_barrier_.keep(keeper, latest);
}

void ServerProtocol::adopt(std::unique_ptr<Shard> shard) {
  CIRANDA_ASSERT(connections_.empty() && shard && shard->given());
  begin_with(std::move(shard));
  is_adopted_ = true;
}

// The shard writes changes only while somebody wants them.
void ServerProtocol::link_journal() {
  CIRANDA_ASSERT(journal_ == nullptr || checkpoint_barrier_.wants_changes());  // I28
  if (shard_)
    shard_->keep_journal(checkpoint_barrier_.wants_changes() ? &checkpoint_barrier_ : nullptr);
}

void ServerProtocol::mark(Worker worker, std::uint64_t checkpoint) {
  if (!shard_ || !shard_->given() || is_coordinator(worker)) return;
  checkpoint_barrier_.mark(worker, checkpoint);
  link_journal();
}

void ServerProtocol::end_checkpoints() {
  if (has_parameters()) checkpoint_barrier_.end();
}

// -------------------------------------------------------------------------------------------
// Saved state

void ServerProtocol::save(std::vector<std::byte>& out) const {
  CIRANDA_ASSERT(shard_ && shard_->given());
  SavedProtocol saved{.job_id = options_.job_id,
                      .server = options_.server,
                      .servers = options_.servers,
                      .works = works_.done(),
                      .lost = lost_,
                      .model = shard_->model()};
  for (std::size_t i = 0; i < members_.size(); ++i) {
    saved.members.push_back(ServerProtocol::saved(members_[i]));
    saved.members.back().pushes = shard_->pushes(static_cast<Worker>(i));
  }
  if (options_.has_coordinator) saved.coordinator = ServerProtocol::saved(coordinator_);
  if (tasks_) tasks_->save(saved.tasks);
  shard_->save(saved.shard);
  encode(saved, out);
}

SavedProtocol::Member ServerProtocol::saved(const Member& member) {
  return {.life = member.life,
          .process = member.process,
          .left = member.left,
          .held_ns = member.held_ns};
}

ServerProtocol::Member ServerProtocol::restored(const SavedProtocol::Member& was) {
  return {.life = was.life, .process = was.process, .left = was.left, .held_ns = was.held_ns};
}

Status ServerProtocol::restore(std::span<const std::byte> saved, std::uint64_t now_ns) {
  CIRANDA_ASSERT(!shard_ && connections_.empty());
  auto decoded = decode_saved_protocol(saved);
  if (!decoded) return decoded.error();
  SavedProtocol& was = decoded.value();
  CIRANDA_TRY(ps::check(was, options_));
  if (tasks_) CIRANDA_TRY(tasks_->restore(was.tasks));
  auto shard = make_shard(was);
  if (!shard) return shard.error();
  shard_ = std::move(shard).value();
  job_id_ = was.job_id;
  is_adopted_ = false;
  lost_ = was.lost;
  for (std::size_t each = 0; each < members_.size(); ++each) {
    members_[each] = restored(was.members[each]);
    if (members_[each].left) leave_shard(static_cast<Worker>(each));
  }
  if (was.coordinator) coordinator_ = restored(*was.coordinator);
  works_.restore(std::move(was.works));
  expected_ns_ = now_ns + options_.lease_ns;
  return {};
}

bool ServerProtocol::resume() {
  if (job_id_ == options_.job_id) return false;
  if (journal_ != nullptr) {
    journal_->write({.kind = Change::Kind::kResumed, .text = options_.job_id}, {});
  }
  begin_job(options_.job_id);
  return true;
}

// All workers are expected again, also those that had left. Their numbers of pushes stay.
void ServerProtocol::begin_job(std::string job_id) {
  job_id_ = std::move(job_id);
  const auto begin = [](Member& each) {
    each.life = 0;
    each.process = 0;
    each.left = false;
  };
  std::ranges::for_each(members_, begin);
  begin(coordinator_);
}

// No worker is waiting that could be answered.
void ServerProtocol::leave_shard(Worker worker) {
  std::vector<Ack> none;
  shard_->leave(worker, none);
  CIRANDA_ASSERT(none.empty());
}

Status ServerProtocol::repeat(const Change& change, std::span<const std::byte> data) {
  CIRANDA_ASSERT(shard_);  // by restore()
  if (change.kind == Change::Kind::kApplied || change.kind == Change::Kind::kSkipped ||
      change.kind == Change::Kind::kRows) {
    return shard_->repeat(change, data);
  }
  if (change.kind == Change::Kind::kResumed) return begin_job(change.text), Status();
  if (change.kind == Change::Kind::kWorked) return works_.repeat(change.work, *shard_);
  if (change.kind != Change::Kind::kEntered && change.kind != Change::Kind::kLeft) {
    if (tasks_) return tasks_->repeat(change);
    return Error{.code = ErrorCode::kMalformed,
                 .text = "a stored change belongs to a task, but the job has no tasks"};
  }
  if (change.worker > options_.workers ||
      (is_coordinator(change.worker) && !options_.has_coordinator)) {
    return Error{.code = ErrorCode::kMalformed,
                 .text = "a stored change names a worker that this job does not have"};
  }
  Member& worker = member(change.worker);
  worker.left = change.kind == Change::Kind::kLeft;
  if (worker.left) {
    if (!is_coordinator(change.worker)) leave_shard(change.worker);
  } else {
    worker.life = change.life;
    worker.process = change.process;
  }
  return {};
}

}  // namespace ciranda::ps
