#include "core/ps/decide/server_protocol.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/model_codec.h"
#include "core/ps/decide/refusal.h"

namespace ciranda::ps {

ServerProtocol::ServerProtocol(ServerProtocolOptions options)
    : options_(std::move(options)),
      job_id_(options_.job_id),
      members_(static_cast<std::size_t>(options_.workers)),
      checkpoint_barrier_(options_.workers),
      announcer_(options_.checkpoint_pushes, options_.checkpoint_ns) {
  if (options_.has_coordinator && options_.server == 0) tasks_.emplace(options_.workers);
}

std::string ServerProtocol::words_of(Worker worker) const {
  return is_coordinator(worker) ? "the coordinator" : "worker " + std::to_string(worker);
}

// -------------------------------------------------------------------------------------------
// Messages

void ServerProtocol::open(Caller caller, std::uint64_t now_ns) {
  CIRANDA_ASSERT(!connections_.contains(caller));
  connections_[caller] = {.heard_ns = now_ns};
}

void ServerProtocol::close(Caller caller, std::uint64_t now_ns, Answers& answers) {
  now_ns_ = now_ns;
  if (connections_.contains(caller)) depart(caller, /*left=*/false, answers);
}

void ServerProtocol::refuse(Caller caller, const Error& why, std::uint64_t now_ns,
                            Answers& answers) {
  now_ns_ = now_ns;
  hang_up(caller, why, answers);
}

void ServerProtocol::hang_up(Caller caller, const Error& why, Answers& answers) {
  answers.push_back({caller, Refused{.code = why.code, .text = why.text}, /*hangs_up=*/true});
  if (connections_.contains(caller)) depart(caller, /*left=*/false, answers);
}

void ServerProtocol::take(Caller caller, Message message, const Attached& attached,
                          std::uint64_t now_ns, Answers& answers) {
  const auto found = connections_.find(caller);
  if (found == connections_.end()) return;  // the server has hung up on it
  Connection& connection = found->second;
  now_ns_ = now_ns;
  connection.heard_ns = now_ns;
  if (std::exchange(connection.silent, false)) hear(connection.worker);
  const Status handled = handle(caller, std::move(message), attached, answers);
  if (!handled) hang_up(caller, handled.error(), answers);
}

Status ServerProtocol::handle(Caller caller, Message message, const Attached& attached,
                              Answers& answers) {
  if (const auto* first = std::get_if<Enter>(&message)) return enter(caller, *first, answers);
  const Connection& connection = of(caller);
  if (connection.worker < 0) {
    return refused(ErrorCode::kMalformed, "the first packet of a connection has to be Enter");
  }
  if (std::holds_alternative<Beat>(message)) return {};
  if (const auto* last = std::get_if<Leave>(&message)) {
    mark(connection.worker, last->checkpoint);
    return depart(caller, /*left=*/true, answers), Status();
  }
  if (std::holds_alternative<AskStats>(message)) {
    answers.push_back({caller, stats()});
    return {};
  }
  if (TaskProtocol::concerns(message)) return take_of_tasks(caller, message, answers);
  if (is_coordinator(connection.worker)) {
    if (const auto* vectors = std::get_if<VectorWork>(&message)) {
      Shard* const shard = has_parameters() ? shard_.get() : nullptr;
      return reply(caller, works_.take(*vectors, shard, journal_), answers);
    }
    return refused(ErrorCode::kMalformed, "the coordinator sent a message that only workers send");
  }
  if (const auto* value = std::get_if<Average>(&message)) {
    return reply(caller, averages_.add(connection.worker, *value), answers);
  }
  if (const auto* what = std::get_if<Declare>(&message)) {
    return declare(caller, *what, attached, answers);
  }
  if (connection.memory == nullptr || connection.waits) {
    return refused(ErrorCode::kMalformed,
                   words_of(connection.worker) + " has not declared its parameters");
  }
  return take_declared(caller, std::move(message), attached, answers);
}

void ServerProtocol::tell(std::vector<Ack> acks, Answers& answers) {
  for (Ack& ack : acks) {
    Member& worker = member(ack.worker);
    CIRANDA_ASSERT(ack.seq <= shard_->decided(ack.worker));  // I21
    CIRANDA_ASSERT(ack.version <= shard_->version());        // I23
    if (worker.caller < 0) continue;
    ack.held_ns = now_ns_ - std::min(worker.pushed_ns, now_ns_);
    ack.checkpoint = announcer_.latest();
    worker.held_ns += ack.held_ns;
    answers.push_back({worker.caller, ack});
  }
}

Status ServerProtocol::push(Caller caller, Push message, Answers& answers) {
  if (message.worker != of(caller).worker) {
    return refused(ErrorCode::kMalformed,
                   words_of(of(caller).worker) + " pushes for another worker");
  }
  CIRANDA_TRY(shard_->check(message));
  member(message.worker).pushed_ns = now_ns_;
  const bool is_new = message.seq > shard_->decided(message.worker);
  if (is_new) checkpoint_barrier_.expect_push(message.worker);
  std::vector<Ack> acks;
  shard_->push(std::move(message), acks);
  if (is_new) announcer_.after_push(shard_->version(), now_ns_);
  tell(std::move(acks), answers);
  return {};
}

// -------------------------------------------------------------------------------------------
// Workers come and go

Status ServerProtocol::declare(Caller caller, const Declare& message, const Attached& attached,
                               Answers& answers) {
  const Worker worker = of(caller).worker;
  if (of(caller).memory != nullptr) {
    return refused(
        ErrorCode::kInvalidArgument,
        words_of(worker) +
            " has declared its parameters already; servers hold the parameters of one model");
  }
  CIRANDA_TRY(welcome_back(worker, message));
  const auto model_blob = attached.model_blob(message.model_bytes);
  if (!model_blob) return model_blob.error();
  auto model = decode_model(model_blob.value());
  if (!model) return model.error();
  if (options_.has_coordinator && model.value().mode.kind != ModeKind::kAsync) {
    return refused(ErrorCode::kInvalidArgument,
                   words_of(worker) +
                       " would wait for other workers, which may have no task; use a mode without "
                       "waiting, such as Async()");
  }
  if (is_adopted_) shard_->set_mode(model.value().mode);
  if (shard_) {
    const std::string why = difference(shard_->model(), model.value());
    if (!why.empty()) {
      return refused(ErrorCode::kMismatch,
                     words_of(worker) + " trains another model than the workers before it: " + why);
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
  of(caller).memory = memory.value();
  of(caller).waits = true;
  of(caller).returns = message.returns;
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
  for (std::size_t each = 0; each < members_.size(); ++each) {
    if (members_[each].gone) leave_shard(static_cast<Worker>(each));
  }
  for (const auto& [each, connection] : connections_) {
    if (!connection.silent || is_coordinator(connection.worker)) continue;
    shard_->fall_silent(connection.worker, none);
  }
}

// Checks that a worker can return after its connection or this server was lost, and counts the
// answered pushes that were lost. kRankLost: this server has no parameters.
Status ServerProtocol::welcome_back(Worker worker, const Declare& message) {
  if (!message.returns) return {};
  if (!shard_ || !shard_->given()) {
    return refused(
        ErrorCode::kRankLost,
        "the server was restarted without the parameters that " + words_of(worker) +
            " trains; let servers keep them with ciranda run --ps-dir or ciranda-ps --dir");
  }
  const std::uint64_t decided = shard_->decided(worker);
  lost_ += message.answered - std::min(message.answered, decided);
  return {};
}

// Returns the worker that gives the first parameters: the lowest one that has not left. -1: all
// have left.
Worker ServerProtocol::giver() const {
  const auto giver = std::ranges::find(members_, false, &Member::left);
  return giver == members_.end() ? -1 : static_cast<Worker>(giver - members_.begin());
}

std::optional<Worker> ServerProtocol::awaited() const {
  if (!shard_ || shard_->given()) return std::nullopt;
  const auto waits = [](const auto& each) { return each.second.waits; };
  const Worker worker = giver();
  if (worker < 0 || std::ranges::none_of(connections_, waits)) return std::nullopt;
  return worker;
}

void ServerProtocol::give_if_there(Answers& answers) {
  if (!shard_) return;
  if (!shard_->given()) {
    const Worker worker = giver();
    if (worker < 0) return;
    const Caller caller = member(worker).caller;
    if (caller < 0 || !of(caller).waits) return;
    shard_->give(worker);
  }
  for (auto& [caller, connection] : connections_) {
    if (!std::exchange(connection.waits, false)) continue;
    const std::uint64_t version =
        connection.returns ? shard_->version() : shard_->pull(connection.worker);
    answers.push_back({caller, Ready{.version = version,
                                     .clock = shard_->clock(connection.worker),
                                     .checkpoint = announcer_.latest()}});
  }
}

void ServerProtocol::depart(Caller caller, bool left, Answers& answers) {
  const Worker worker = of(caller).worker;
  connections_.erase(caller);
  if (worker < 0) return;
  CIRANDA_ASSERT(member(worker).caller == caller);  // I25: the connection of its latest life
  member(worker).caller = -1;
  member(worker).left = left;
  member(worker).gone = true;
  if (left && journal_ != nullptr) {
    journal_->write({.kind = Change::Kind::kLeft, .worker = worker}, {});
  }
  if (tasks_) {
    TaskProtocol::Answers given;
    tasks_->leave(worker, who_has_left(), given);
    give(std::move(given), answers);
  }
  if (!shard_ || is_coordinator(worker)) return;
  std::vector<Ack> acks;
  shard_->leave(worker, acks);
  checkpoint_barrier_.leave(worker);
  link_journal();
  tell(std::move(acks), answers);
  if (left) give_if_there(answers);
}

void ServerProtocol::hear(Worker worker) {
  if (shard_ && worker >= 0 && !is_coordinator(worker)) shard_->hear(worker);
}

// -------------------------------------------------------------------------------------------
// Leases

std::uint64_t ServerProtocol::next_lease_ns() const {
  std::uint64_t next = expected_ns_;
  for (const auto& [caller, connection] : connections_) {
    if (connection.worker < 0 || connection.silent) continue;
    next = std::min(next, connection.heard_ns + options_.lease_ns);
  }
  return next;
}

void ServerProtocol::end_leases(std::uint64_t now_ns, Answers& answers) {
  now_ns_ = now_ns;
  std::vector<Ack> acks;
  TaskProtocol::Answers given;
  for (auto& [caller, connection] : connections_) {
    if (connection.worker < 0 || connection.silent ||
        now_ns < connection.heard_ns + options_.lease_ns) {
      continue;
    }
    connection.silent = true;
    if (tasks_) tasks_->fall_silent(connection.worker, who_has_left(), given);
    if (shard_ && !is_coordinator(connection.worker)) {
      shard_->fall_silent(connection.worker, acks);
    }
  }
  give(std::move(given), answers);
  if (now_ns >= expected_ns_) {
    CIRANDA_ASSERT(shard_);  // by restore()
    expected_ns_ = UINT64_MAX;
    for (std::size_t each = 0; each < members_.size(); ++each) {
      if (members_[each].caller < 0) shard_->fall_silent(static_cast<Worker>(each), acks);
    }
  }
  tell(std::move(acks), answers);
}

}  // namespace ciranda::ps
