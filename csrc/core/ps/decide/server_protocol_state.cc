// Saves and restores the state of ServerProtocol; writes to its journal and checkpoints.
#include "core/ps/decide/server_protocol_state.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/model_codec.h"
#include "core/ps/decide/server_protocol.h"
#include "core/wire/codec.h"

namespace ciranda::ps {
namespace {

constexpr std::size_t kSavedTasksBytesMax = 2 * kLedgerBytesMax;
constexpr std::uint32_t kStateVersion = 3;

Error mismatch(std::string why) {
  return {.code = ErrorCode::kMismatch, .text = std::move(why)};
}

}  // namespace

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
  Writer writer(out);
  writer.u32(kStateVersion);
  writer.varint(options_.job_id.size());
  writer.text(options_.job_id);
  writer.varint(static_cast<std::uint64_t>(options_.server));
  writer.varint(static_cast<std::uint64_t>(options_.servers));
  writer.varint(members_.size());
  const auto write_member = [&](const Member& each, std::uint64_t pushes) {
    writer.varint(each.life);
    writer.u64(each.process);
    writer.u8(each.left ? 1 : 0);
    writer.varint(pushes);
    writer.varint(each.held_ns);
  };
  for (std::size_t i = 0; i < members_.size(); ++i) {
    write_member(members_[i], shard_->pushes(static_cast<Worker>(i)));
  }
  writer.u8(options_.has_coordinator ? 1 : 0);
  if (options_.has_coordinator) write_member(coordinator_, 0);
  std::vector<std::byte> tasks;
  if (tasks_) tasks_->save(tasks);
  writer.varint(tasks.size());
  writer.bytes(tasks);
  writer.varint(works_.done().size());
  for (const VectorsWorked& each : works_.done()) {
    write(writer, each.work);
    for (const double dot : each.dots) writer.f64(dot);
  }
  writer.varint(lost_);
  std::vector<std::byte> model_blob;
  encode(shard_->model(), model_blob);
  writer.varint(model_blob.size());
  writer.bytes(model_blob);
  shard_->save(out);
}

Result<SavedProtocol> decode_saved_protocol(std::span<const std::byte> saved) {
  Reader in(saved);
  SavedProtocol protocol;
  const std::uint32_t version = in.u32("state.version");
  if (in.ok() && version != kStateVersion) {
    return mismatch("it was written by another version of ciranda");
  }
  protocol.job_id = in.text("state.job", in.count("state.job", kJobIdBytesMax, 1));
  protocol.server = static_cast<int>(in.varint("state.server", kServersMax - 1));
  protocol.servers = static_cast<int>(in.varint("state.servers", kServersMax));
  protocol.members.resize(in.count("state.workers", kLocalRanksMax, 12));
  const auto read_member = [&](SavedProtocol::Member& each) {
    each.life = in.varint("state.life", UINT64_MAX);
    each.process = in.u64("state.process");
    each.left = in.u8("state.left", 1) != 0;
    each.pushes = in.varint("state.pushes", UINT64_MAX);
    each.held_ns = in.varint("state.held_ns", UINT64_MAX);
  };
  for (SavedProtocol::Member& each : protocol.members) read_member(each);
  if (in.u8("state.has_coordinator", 1) != 0) {
    protocol.coordinator = SavedProtocol::Member();
    read_member(*protocol.coordinator);
  }
  protocol.tasks.resize(in.count("state.tasks", kSavedTasksBytesMax, 1));
  in.bytes("state.tasks", protocol.tasks);
  protocol.works.resize(in.count("state.works", kWorksMax, 3));
  for (VectorsWorked& each : protocol.works) {
    read(in, each.work);
    each.dots.resize(each.work.dots.size());
    for (double& dot : each.dots) dot = in.f64("state.dot");
  }
  protocol.lost = in.varint("state.lost", UINT64_MAX);
  std::vector<std::byte> model_blob(in.count("state.model", kModelBytesMax, 1));
  in.bytes("state.model", model_blob);
  if (in.ok() && protocol.server >= protocol.servers)
    in.fail("state.server", "is not one of the servers");
  if (!in.ok()) return in.error();
  auto model = decode_model(model_blob);
  if (!model) return model.error();
  protocol.model = std::move(model).value();
  const auto rest = saved.subspan(in.offset());
  protocol.shard.assign(rest.begin(), rest.end());
  return protocol;
}

Result<std::unique_ptr<Shard>> make_shard(const SavedProtocol& saved) {
  auto shard = std::make_unique<Shard>(saved.model, saved.servers, saved.server,
                                       static_cast<int>(saved.members.size()));
  if (!shard->has_memory()) {
    return Error{.code = ErrorCode::kSystem,
                 .text = "there is no memory for " + std::to_string(shard->held_bytes()) +
                         " bytes of parameters and state"};
  }
  CIRANDA_TRY(shard->restore(saved.shard));
  for (std::size_t i = 0; i < saved.members.size(); ++i) {
    shard->set_pushes(static_cast<Worker>(i), saved.members[i].pushes);
  }
  return shard;
}

ServerProtocol::Member ServerProtocol::restored(const SavedProtocol::Member& was) {
  return {.life = was.life, .process = was.process, .left = was.left, .held_ns = was.held_ns};
}

Status ServerProtocol::restore(std::span<const std::byte> saved, std::uint64_t now_ns) {
  CIRANDA_ASSERT(!shard_ && connections_.empty());
  const auto decoded = decode_saved_protocol(saved);
  if (!decoded) return decoded.error();
  const SavedProtocol& was = decoded.value();
  const std::size_t workers = was.members.size();
  if (was.job_id != options_.job_id && !options_.resumes) {
    return mismatch("it belongs to job '" + was.job_id + "', and this job is '" + options_.job_id +
                    "'; give --resume to continue it");
  }
  job_id_ = was.job_id;
  if (was.server != options_.server || was.servers != options_.servers ||
      workers != members_.size()) {
    return mismatch("it belongs to server " + std::to_string(was.server) + " of " +
                    std::to_string(was.servers) + " with " + std::to_string(workers) +
                    " workers, and this server is server " + std::to_string(options_.server) +
                    " of " + std::to_string(options_.servers) + " with " +
                    std::to_string(members_.size()));
  }
  if (was.coordinator.has_value() != options_.has_coordinator) {
    return mismatch(was.coordinator
                        ? "it belongs to a job with a coordinator, and this job has none"
                        : "it belongs to a job without a coordinator, and this job has one");
  }
  if (tasks_) CIRANDA_TRY(tasks_->restore(was.tasks));
  auto shard = make_shard(was);
  if (!shard) return shard.error();
  shard_ = std::move(shard).value();
  is_adopted_ = false;
  lost_ = was.lost;
  for (std::size_t each = 0; each < workers; ++each) {
    members_[each] = restored(was.members[each]);
    if (members_[each].left) leave_shard(static_cast<Worker>(each));
  }
  if (was.coordinator) coordinator_ = restored(*was.coordinator);
  works_.restore(was.works);
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
