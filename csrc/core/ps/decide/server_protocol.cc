#include "core/ps/decide/server_protocol.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/base/assert.h"
#include "core/ps/decide/model_codec.h"
#include "core/ps/decide/refusal.h"
#include "core/ps/decide/saved_protocol.h"

namespace ciranda::ps {

ServerProtocol::ServerProtocol(ServerProtocolOptions options)
    : options_(std::move(options)),
      membership_(options_),
      leases_(options_.lease_ns),
      checkpoint_barrier_(options_.workers),
      announcer_(options_.checkpoint_pushes, options_.checkpoint_ns),
      waits_(static_cast<std::size_t>(options_.workers)) {
  if (options_.has_coordinator && options_.server == 0) tasks_.emplace(options_.workers);
}

// -------------------------------------------------------------------------------------------
// Messages

void ServerProtocol::close(Caller caller, std::uint64_t now_ns, Answers& answers) {
  now_ns_ = now_ns;
  if (membership_.is_open(caller)) depart(caller, /*left=*/false, answers);
}

void ServerProtocol::hang_up(Caller caller, const Error& why, Answers& answers) {
  answers.push_back({caller, Refused{.code = why.code, .text = why.text}, /*hangs_up=*/true});
  if (membership_.is_open(caller)) depart(caller, /*left=*/false, answers);
}

void ServerProtocol::take(Caller caller, Message message, const Attached& attached,
                          std::uint64_t now_ns, Answers& answers) {
  if (!membership_.is_open(caller)) return;  // the server has hung up on it
  now_ns_ = now_ns;
  if (leases_.hear(caller, now_ns)) hear(membership_.member_of(caller));
  const Status handled = handle(caller, std::move(message), attached, answers);
  if (!handled) hang_up(caller, handled.error(), answers);
}

Status ServerProtocol::handle(Caller caller, Message message, const Attached& attached,
                              Answers& answers) {
  if (const auto* first = std::get_if<Enter>(&message)) return enter(caller, *first, answers);
  const Worker member = membership_.member_of(caller);
  if (member < 0) {
    return refused(ErrorCode::kMalformed, "the first packet of a connection has to be Enter");
  }
  if (std::holds_alternative<Beat>(message)) return {};
  if (const auto* last = std::get_if<Leave>(&message)) {
    mark(member, last->checkpoint);
    return depart(caller, /*left=*/true, answers), Status();
  }
  if (std::holds_alternative<AskStats>(message)) {
    answers.push_back({caller, stats()});
    return {};
  }
  if (TaskProtocol::concerns(message)) return take_of_tasks(caller, message, answers);
  if (membership_.is_coordinator(member)) {
    if (const auto* vectors = std::get_if<VectorWork>(&message)) {
      Shard* const shard = has_parameters() ? shard_.get() : nullptr;
      return reply(caller, works_.take(*vectors, shard, journal_), answers);
    }
    return refused(ErrorCode::kMalformed, "the coordinator sent a message that only workers send");
  }
  if (const auto* value = std::get_if<Average>(&message)) {
    return reply(caller, averages_.add(member, *value), answers);
  }
  if (const auto* what = std::get_if<Declare>(&message)) {
    return declare(caller, *what, attached, answers);
  }
  if (!declarations_.has_parameters(caller)) {
    return refused(ErrorCode::kMalformed,
                   membership_.words_of(member) + " has not declared its parameters");
  }
  return take_declared(caller, std::move(message), attached, answers);
}

Status ServerProtocol::take_declared(Caller caller, Message message, const Attached& attached,
                                     Answers& answers) {
  CIRANDA_ASSERT(shard_ && shard_->given());  // I22: by give_if_there()
  const Worker worker = membership_.member_of(caller);
  if (auto* gradients = std::get_if<Push>(&message)) {
    return push(worker, std::move(*gradients), answers);
  }
  if (std::holds_alternative<Pull>(message)) {
    ++pulls_;
    answers.push_back({caller, Ready{.version = shard_->pull(worker),
                                     .clock = shard_->clock(worker),
                                     .checkpoint = announcer_.latest()}});
    return {};
  }
  if (const auto* behind = std::get_if<Mark>(&message)) {
    return mark(worker, behind->checkpoint), Status();
  }
  if (std::holds_alternative<MoveGradients>(message)) {
    const auto memory = attached.memory(shard_->layout().gradient_bytes());
    if (!memory) return memory.error();
    shard_->move_gradients(worker, memory.value());
    return {};
  }
  return reply(caller, answer_from(*shard_, worker, message, attached), answers);
}

Status ServerProtocol::push(Worker worker, Push message, Answers& answers) {
  if (message.worker != worker) {
    return refused(ErrorCode::kMalformed,
                   membership_.words_of(worker) + " pushes for another worker");
  }
  CIRANDA_TRY(shard_->check(message));
  wait_of(worker).pushed_ns = now_ns_;
  const bool is_new = message.seq > shard_->decided(worker);
  if (is_new) checkpoint_barrier_.expect_push(worker);
  std::vector<Ack> acks;
  shard_->push(std::move(message), acks);
  if (is_new) announcer_.after_push(shard_->version(), now_ns_);
  tell(std::move(acks), answers);
  return {};
}

void ServerProtocol::tell(std::vector<Ack> acks, Answers& answers) {
  for (Ack& ack : acks) {
    CIRANDA_ASSERT(ack.seq <= shard_->decided(ack.worker));  // I21
    CIRANDA_ASSERT(ack.version <= shard_->version());        // I23
    const Caller caller = membership_.caller_of(ack.worker);
    if (caller < 0) continue;
    Wait& wait = wait_of(ack.worker);
    ack.held_ns = now_ns_ - std::min(wait.pushed_ns, now_ns_);
    ack.checkpoint = announcer_.latest();
    wait.held_ns += ack.held_ns;
    answers.push_back({caller, ack});
  }
}

Status ServerProtocol::take_of_tasks(Caller caller, const Message& message, Answers& answers) {
  if (!tasks_) {
    return refused(ErrorCode::kInvalidArgument,
                   options_.has_coordinator ? "only server 0 has the tasks"
                                            : "there is no coordinator that gives out tasks; start "
                                              "the job with "
                                              "--coordinator");
  }
  TaskProtocol::Answers given;
  CIRANDA_TRY(tasks_->take(membership_.member_of(caller), message, who_has_left(), given));
  give(std::move(given), answers);
  return {};
}

void ServerProtocol::give(TaskProtocol::Answers tasks, Answers& answers) {
  for (TaskProtocol::Answer& each : tasks) {
    const Caller caller = membership_.caller_of(each.to);
    if (caller < 0) continue;
    if (auto* refusal = std::get_if<Refused>(&each.message)) {
      hang_up(caller, {.code = refusal->code, .text = std::move(refusal->text)}, answers);
    } else {
      answers.push_back({caller, std::move(each.message)});
    }
  }
}

Stats ServerProtocol::stats() const {
  if (!shard_) return {};
  Stats stats = stats_of(*shard_);
  stats.pulls = pulls_;
  stats.lost = lost_;
  for (Worker worker = 0; worker < options_.workers; ++worker) {
    stats.workers.push_back({.here = membership_.caller_of(worker) >= 0,
                             .pushes = shard_->pushes(worker),
                             .held_ns = waits_[static_cast<std::size_t>(worker)].held_ns});
  }
  return stats;
}

// -------------------------------------------------------------------------------------------
// Members come and go

Status ServerProtocol::enter(Caller caller, const Enter& message, Answers& answers) {
  const auto entry = membership_.check(caller, message, leases_);
  if (!entry) return entry.error();
  const bool returns = entry.value().returns;
  if (const Caller before = entry.value().replaces; before >= 0) {
    hang_up(before,
            refused(ErrorCode::kInvalidArgument,
                    membership_.words_of(message.worker) +
                        (returns ? " has reconnected" : " has been restarted")),
            answers);
  }
  if (journal_ != nullptr && !returns) {
    journal_->write({.kind = Change::Kind::kEntered,
                     .worker = message.worker,
                     .life = message.life,
                     .process = message.process},
                    {});
  }
  membership_.enter(caller, message);
  leases_.begin(caller, now_ns_);
  hear(message.worker);  // the wait after a restart may have ended without it
  Welcome welcome{.scheduled = tasks_ ? tasks_->scheduled() : 0,
                  .keeps_state = options_.keeps_state};
  if (shard_ && !membership_.is_coordinator(message.worker)) {
    welcome.decided = shard_->decided(message.worker);
    welcome.decided_rows = shard_->decided_rows(message.worker);
  }
  answers.push_back({caller, welcome});
  return {};
}

void ServerProtocol::depart(Caller caller, bool left, Answers& answers) {
  const Worker member = membership_.close(caller, left);
  leases_.close(caller);
  declarations_.close(caller);
  if (member < 0) return;
  if (left && journal_ != nullptr) {
    journal_->write({.kind = Change::Kind::kLeft, .worker = member}, {});
  }
  if (tasks_) {
    TaskProtocol::Answers given;
    tasks_->leave(member, who_has_left(), given);
    give(std::move(given), answers);
  }
  if (!shard_ || membership_.is_coordinator(member)) return;
  std::vector<Ack> acks;
  shard_->leave(member, acks);
  checkpoint_barrier_.leave(member);
  link_journal();
  tell(std::move(acks), answers);
  if (left) give_if_there(answers);
}

void ServerProtocol::hear(Worker member) {
  if (shard_ && member >= 0 && !membership_.is_coordinator(member)) shard_->hear(member);
}

void ServerProtocol::end_leases(std::uint64_t now_ns, Answers& answers) {
  now_ns_ = now_ns;
  std::vector<Ack> acks;
  TaskProtocol::Answers given;
  for (const Caller caller : leases_.end(now_ns)) {
    const Worker member = membership_.member_of(caller);
    if (tasks_) tasks_->fall_silent(member, who_has_left(), given);
    if (shard_ && !membership_.is_coordinator(member)) shard_->fall_silent(member, acks);
  }
  give(std::move(given), answers);
  if (leases_.end_wait(now_ns)) {
    CIRANDA_ASSERT(shard_);  // by restore()
    for (const Worker worker : membership_.absent_workers()) shard_->fall_silent(worker, acks);
  }
  tell(std::move(acks), answers);
}

// No worker is waiting that could be answered.
void ServerProtocol::leave_shard(Worker worker) {
  std::vector<Ack> none;
  shard_->leave(worker, none);
  CIRANDA_ASSERT(none.empty());
}

// -------------------------------------------------------------------------------------------
// The first parameters

Status ServerProtocol::declare(Caller caller, const Declare& message, const Attached& attached,
                               Answers& answers) {
  const Worker worker = membership_.member_of(caller);
  const std::string self = membership_.words_of(worker);
  if (declarations_.has_declared(caller)) {
    return refused(ErrorCode::kInvalidArgument,
                   self +
                       " has declared its parameters already; servers hold "
                       "the parameters of one model");
  }
  CIRANDA_TRY(welcome_back(worker, message));
  const auto model_blob = attached.model_blob(message.model_bytes);
  if (!model_blob) return model_blob.error();
  auto model = decode_model(model_blob.value());
  if (!model) return model.error();
  if (options_.has_coordinator && model.value().mode.kind != ModeKind::kAsync) {
    return refused(ErrorCode::kInvalidArgument,
                   self +
                       " would wait for other workers, which may have no "
                       "task; use a mode without "
                       "waiting, such as Async()");
  }
  if (is_adopted_) shard_->set_mode(model.value().mode);
  if (shard_) {
    const std::string why = difference(shard_->model(), model.value());
    if (!why.empty()) {
      return refused(ErrorCode::kMismatch,
                     self + " trains another model than the workers before it: " + why);
    }
  }
  std::unique_ptr<Shard> first;
  if (!shard_) {
    auto made = first_shard(std::move(model).value());
    if (!made) return made.error();
    first = std::move(made).value();
  }
  const auto memory = attached.memory((shard_ ? *shard_ : *first).layout().memory_bytes());
  if (!memory) return memory.error();
  if (first) begin_with(std::move(first));
  is_adopted_ = false;
  checkpoint_barrier_.enter(worker);
  declarations_.add(caller, message.returns);
  shard_->enter(worker, memory.value(), message.decided);
  give_if_there(answers);
  return {};
}

Result<std::unique_ptr<Shard>> ServerProtocol::first_shard(Model model) const {
  auto shard = std::make_unique<Shard>(std::move(model), options_.servers, options_.server,
                                       options_.workers);
  if (shard->has_memory()) return shard;
  return refused(ErrorCode::kSystem, "server " + std::to_string(options_.server) +
                                         " has no memory for " +
                                         std::to_string(shard->held_bytes()) +
                                         " bytes of parameters and state; start more servers");
}

void ServerProtocol::begin_with(std::unique_ptr<Shard> shard) {
  CIRANDA_ASSERT(!shard_);  // I26: memory for one model
  shard_ = std::move(shard);
  link_journal();
  std::vector<Ack> none;
  for (const Worker worker : membership_.gone_workers()) leave_shard(worker);
  for (const Caller caller : leases_.silent()) {
    const Worker member = membership_.member_of(caller);
    if (!membership_.is_coordinator(member)) shard_->fall_silent(member, none);
  }
}

void ServerProtocol::adopt(std::unique_ptr<Shard> shard) {
  CIRANDA_ASSERT(membership_.is_empty() && shard && shard->given());
  begin_with(std::move(shard));
  is_adopted_ = true;
}

// Checks that a worker can return after its connection or this server was lost, and counts the
// answered pushes that were lost. kRankLost: this server has no parameters.
Status ServerProtocol::welcome_back(Worker worker, const Declare& message) {
  if (!message.returns) return {};
  if (!shard_ || !shard_->given()) {
    return refused(ErrorCode::kRankLost, "the server was restarted without the parameters that " +
                                             membership_.words_of(worker) +
                                             " trains; let servers keep them with ciranda run "
                                             "--ps-dir or ciranda-ps --dir");
  }
  const std::uint64_t decided = shard_->decided(worker);
  lost_ += message.answered - std::min(message.answered, decided);
  return {};
}

std::optional<Worker> ServerProtocol::awaited() const {
  if (!shard_ || shard_->given() || !declarations_.anyone_waits()) return std::nullopt;
  return membership_.giver();
}

void ServerProtocol::give_if_there(Answers& answers) {
  if (!shard_) return;
  if (!shard_->given()) {
    const std::optional<Worker> giver = membership_.giver();
    if (!giver || !declarations_.waits(membership_.caller_of(*giver))) return;
    shard_->give(*giver);
  }
  for (const Declarations::Waiting& each : declarations_.take_waiting()) {
    const Worker worker = membership_.member_of(each.caller);
    const std::uint64_t version = each.returns ? shard_->version() : shard_->pull(worker);
    answers.push_back({each.caller, Ready{.version = version,
                                          .clock = shard_->clock(worker),
                                          .checkpoint = announcer_.latest()}});
  }
}

// -------------------------------------------------------------------------------------------
// Journal and checkpoints

void ServerProtocol::keep_journal(Journal* journal) {
  journal_ = journal;
  if (tasks_) tasks_->keep_journal(journal);
  checkpoint_barrier_.forward_to(journal);
  link_journal();
}

void ServerProtocol::keep_checkpoints(CheckpointKeeper* keeper, Checkpoint latest) {
  announcer_.keep(options_.server == 0 ? keeper : nullptr, latest);
  checkpoint_barrier_.keep(keeper, latest);
}

// The shard writes changes only while somebody wants them.
void ServerProtocol::link_journal() {
  CIRANDA_ASSERT(journal_ == nullptr || checkpoint_barrier_.wants_changes());  // I28
  if (shard_)
    shard_->keep_journal(checkpoint_barrier_.wants_changes() ? &checkpoint_barrier_ : nullptr);
}

void ServerProtocol::mark(Worker worker, Checkpoint checkpoint) {
  if (!shard_ || !shard_->given() || membership_.is_coordinator(worker)) return;
  checkpoint_barrier_.mark(worker, checkpoint);
  link_journal();
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
  for (Worker worker = 0; worker < options_.workers; ++worker) {
    const Membership::Saved member = membership_.saved(worker);
    saved.members.push_back({.life = member.life,
                             .process = member.process,
                             .left = member.left,
                             .pushes = shard_->pushes(worker),
                             .held_ns = waits_[static_cast<std::size_t>(worker)].held_ns});
  }
  if (options_.has_coordinator) {
    const Membership::Saved member = membership_.saved(options_.workers);
    saved.coordinator = {.life = member.life, .process = member.process, .left = member.left};
  }
  if (tasks_) tasks_->save(saved.tasks);
  shard_->save(saved.shard);
  encode(saved, out);
}

Status ServerProtocol::restore(std::span<const std::byte> saved, std::uint64_t now_ns) {
  CIRANDA_ASSERT(!shard_ && membership_.is_empty());
  auto decoded = decode_saved_protocol(saved);
  if (!decoded) return decoded.error();
  SavedProtocol& was = decoded.value();
  CIRANDA_TRY(ps::check(was, options_));
  if (tasks_) CIRANDA_TRY(tasks_->restore(was.tasks));
  auto shard = make_shard(was);
  if (!shard) return shard.error();
  shard_ = std::move(shard).value();
  is_adopted_ = false;
  lost_ = was.lost;
  membership_.restore(was.job_id);
  leases_.begin_wait(now_ns);
  const auto restore_member = [&](Worker member, const SavedProtocol::Member& each) {
    membership_.restore(member, {.life = each.life, .process = each.process, .left = each.left});
  };
  for (Worker worker = 0; worker < options_.workers; ++worker) {
    const SavedProtocol::Member& each = was.members[static_cast<std::size_t>(worker)];
    restore_member(worker, each);
    wait_of(worker).held_ns = each.held_ns;
    if (each.left) leave_shard(worker);
  }
  if (was.coordinator) restore_member(options_.workers, *was.coordinator);
  works_.restore(std::move(was.works));
  return {};
}

bool ServerProtocol::resume() {
  if (job_id() == options_.job_id) return false;
  if (journal_ != nullptr) {
    journal_->write({.kind = Change::Kind::kResumed, .text = options_.job_id}, {});
  }
  membership_.begin_job(options_.job_id);
  return true;
}

Status ServerProtocol::repeat(const Change& change, std::span<const std::byte> data) {
  CIRANDA_ASSERT(shard_);  // by restore()
  switch (change.kind) {
    case Change::Kind::kApplied:
    case Change::Kind::kSkipped:
    case Change::Kind::kRows:
      return shard_->repeat(change, data);
    case Change::Kind::kEntered:
    case Change::Kind::kLeft:
      CIRANDA_TRY(membership_.repeat(change));
      if (change.kind == Change::Kind::kLeft && !membership_.is_coordinator(change.worker)) {
        leave_shard(change.worker);
      }
      return {};
    case Change::Kind::kWorked:
      return works_.repeat(change.work, *shard_);
    case Change::Kind::kResumed:
      return membership_.begin_job(change.text), Status();
    case Change::Kind::kScheduled:
    case Change::Kind::kTaskDone:
    case Change::Kind::kTasksClosed:
      break;
  }
  if (tasks_) return tasks_->repeat(change);
  return refused(ErrorCode::kMalformed,
                 "a stored change belongs to a task, but the job has no tasks");
}

}  // namespace ciranda::ps
