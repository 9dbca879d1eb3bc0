#include "core/engine/dispatcher.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/engine/run/execution.h"
#include "core/engine/run/inline_data.h"
#include "core/engine/run/joined.h"
#include "core/engine/run/submitted_exchange.h"
#include "core/plan/fusion.h"
#include "core/wire/operation_name.h"
#include "core/wire/pair.h"

namespace ciranda {
namespace {

// Moving fewer bytes takes less time than reading the clock; it counts as waiting.
constexpr std::uint64_t kTimedBytesMin = 16384;

}  // namespace

Dispatcher::Dispatcher(RankContext& rank, const Negotiator& negotiator, FrameExchange& frames,
                       PeerWatch& peers)
    : rank_(rank),
      negotiator_(negotiator),
      frames_(frames),
      peers_(peers),
      adasum_(rank),
      backends_(rank, peers, ring(),
                [this](const Group& group) { return backend_context(group); }) {}

std::unique_ptr<RingBackend> Dispatcher::ring() {
  if (rank_.one_host()) return nullptr;
  return std::make_unique<RingBackend>(rank_.remote, rank_.control, rank_.bells, rank_.mesh.self,
                                       host_memory(), rank_.options.ring);
}

HostMemory Dispatcher::host_memory() {
  HostMemory memory;
  memory.allocate = [&segments = rank_.segments](std::uint64_t bytes) -> Result<HostMemory::Stage> {
    auto buffer = segments.allocate(bytes);
    if (!buffer) return buffer.error();
    return HostMemory::Stage{.ref = buffer.value().ref,
                             .data = buffer.value().data,
                             .bytes = buffer.value().bytes,
                             .lease = buffer.value().lease};
  };
  memory.resolve = [&peers = peers_](int owner, const ArenaRef& ref, std::uint64_t bytes) {
    return peers.look_up(owner, ref, bytes);
  };
  return memory;
}

// wake() only rings a bell for the threads that wait: the next cycle finds what no thread waits
// for.
BackendContext Dispatcher::backend_context(const Group& group) {
  const std::vector<Rank>& here = rank_.members_here(group);
  const auto self = std::find(here.begin(), here.end(), rank_.rank());
  return {.rank = group.index_of(rank_.rank()),
          .size = group.size(),
          .local_rank = static_cast<int>(self - here.begin()),
          .locals = rank_.locals_of(group),
          .address = rank_.remote.address,
          .exchange = [&queue = rank_.queue, id = group.id](
                          const std::string& name,
                          std::vector<std::byte> mine) -> std::unique_ptr<Exchange> {
            auto exchange = std::make_unique<SubmittedExchange>(std::move(mine));
            exchange->submit("ciranda.exchange." + name, id, queue);
            return exchange;
          },
          .wake =
              [&rank = rank_] {
                RankFlags& flags = rank.flags();
                flags.waiters.ring();
                const bool driven = flags.drivers.load(std::memory_order_seq_cst) != 0;
                if (rank.pace.load(std::memory_order_relaxed).overlap && !driven)
                  rank.bells.wake_own_background();
              }};
}

// -------------------------------------------------------------------------------------------
// From submissions to requests

void Dispatcher::take_submissions() {
  const auto ask = [this](Submission& submission) {
    ++unanswered_;
    request(insert(std::move(submission)), /*in_full=*/false);
  };
  CIRANDA_ASSERT(drained_.empty());  // whoever fills it empties it
  for (; may_ask(); held_.pop_front()) ask(held_.front());
  rank_.queue.drain_into(drained_);
  for (Submission& submission : drained_) {
    if (!closed_ && (submission.is_part || (held_.empty() && may_ask_for(submission)))) {
      ask(submission);
    } else {
      held_.push_back(std::move(submission));
    }
  }
  drained_.clear();
  if (closed_ && !held_.empty()) finish_unagreed(*closed_);
}

std::uint32_t Dispatcher::insert(Submission&& submission) {
  CIRANDA_ASSERT(submission.spec != nullptr && submission.handle != nullptr);  // by who pushed it
  if (submission.spec->op == ReduceOp::kAdasum) ++unfinished_adasums_;
  return table_.insert(std::move(submission));
}

bool Dispatcher::may_ask_for(const Submission& submission) const {
  const OpKind kind = submission.spec->kind;
  if (kind == OpKind::kJoin && unfinished_adasums_ > 0) return false;
  if (kind == OpKind::kRemoveGroup && adasum_.works_for(submission.spec->removes)) return false;
  return !is_membership(kind) || negotiator_.in_flight(rank_.rank()) == unanswered_;
}

CacheId Dispatcher::number_of(const std::shared_ptr<const RequestSpec>& spec) {
  if (last_asked_.number == kNoCacheId || last_asked_.spec != spec) {
    last_asked_ = {.spec = spec, .number = negotiator_.known(*spec)};
  }
  return last_asked_.number;
}

void Dispatcher::request(std::uint32_t token, bool in_full) {
  const Submission& submission = *table_.find(token);
  Request request;
  request.cache_id = in_full ? kNoCacheId : number_of(submission.spec);
  if (request.cache_id == kNoCacheId) request.spec = *submission.spec;
  request.occurrence = submission.occurrence;
  request.contribution = {.token = token,
                          .rows = submission.rows,
                          .arena = submission.arena,
                          .digest = submission.digest};
  if (rank_.one_host() && may_travel_inline(*submission.spec)) {
    request.contribution.inline_data.assign(submission.inputs.front(),
                                            tensor_bytes(submission.spec->tensors.front()));
  }
  frames_.add(std::move(request), submission.spec->group);
}

// -------------------------------------------------------------------------------------------
// From responses to executions

Status Dispatcher::handle(const std::vector<Response>& responses) {
  for (const Response& response : responses) CIRANDA_TRY(note_agreement(response));
  frames_.send();  // Requests that had to be sent again

  if (rank_.timeline.is_on()) rank_.timeline.mark_cycle(monotonic_ns());
  std::vector<FusedOp> ops = plan_fusion(responses, rank_.options.fusion);
  const auto is_own = [this](const FusedOp& op) {
    return moves_data(op.kind) && op.group->contains(rank_.rank());
  };
  for (const FusedOp& op : ops) {
    if (!is_own(op)) continue;
    for (std::size_t i = 0; i < op.members.size(); ++i) {
      if (i > 0 && op.members[i].response == op.members[i - 1].response) continue;
      const Contribution* own = contribution_of(responses[op.members[i].response], rank_.rank());
      Submission* submission = own != nullptr ? table_.find(own->token) : nullptr;
      if (submission != nullptr) ++submission->parts_left;
    }
  }
  for (FusedOp& op : ops) {
    ++planned_;  // counts the same on all ranks
    if (!is_own(op)) continue;
    if (has_joined(op, rank_.rank())) {
      stand_in(std::move(op), responses);
    } else {
      CIRANDA_TRY(start(std::move(op), responses));
    }
  }
  return {};
}

Status Dispatcher::note_agreement(const Response& response) {
  if (response.verdict == Response::Verdict::kResubmit) {
    last_asked_ = {};  // its number may be the evicted one
    const bool own = response.resubmit_rank == rank_.rank();
    if (own && table_.find(response.resubmit_token) != nullptr) {
      request(response.resubmit_token, /*in_full=*/true);
    }
    return {};
  }
  const Contribution* own = contribution_of(response, rank_.rank());
  if (own != nullptr) --unanswered_;
  if (response.last_joined != kNoRank) rank_.queue.count_anew();
  Submission* submission = own != nullptr ? table_.find(own->token) : nullptr;
  if (response.changed) CIRANDA_TRY(change_groups(response, submission));
  // Null: an error about something that this rank has not submitted yet, or has ended as it shut
  // down.
  if (submission == nullptr) return {};
  if (rank_.timeline.is_on() && submission->submitted_ns != 0) {
    submission->agreed_ns = monotonic_ns();
    rank_.timeline.record_operation("NEGOTIATE_", *submission->spec, submission->submitted_ns,
                                    submission->agreed_ns);
  }
  if (response.verdict == Response::Verdict::kError) {
    finish(own->token, *response.error);
    return {};
  }
  submission->handle->set_joined(response.joined);
  if (!moves_data(response.spec->kind)) {
    submission->handle->set_group(response.changed);
    submission->handle->set_last_joined(response.last_joined);
    finish(own->token, {});
  }
  return {};
}

Status Dispatcher::change_groups(const Response& response, Submission* submission) {
  const std::shared_ptr<const Group>& group = response.changed;
  if (response.spec->kind == OpKind::kRemoveGroup) {
    rank_.groups.remove(group->id);
    rank_.queue.forget(group->id);
    backends_.remove(group->id);
    return {};
  }
  CIRANDA_TRY(backends_.add(response, submission != nullptr ? submission->lease : nullptr));
  rank_.groups.add(group);
  return {};
}

Status Dispatcher::start(FusedOp op, const std::vector<Response>& responses) {
  if (is_pair(op.group->id)) {
    CIRANDA_TRY(backends_.add_pair(responses[op.members.front().response]));
  }
  Execution execution{.op = std::move(op), .number = planned_};
  execution.op.root = execution.op.group->index_of(execution.op.root);
  CIRANDA_ASSERT(execution.op.kind != OpKind::kBroadcast || execution.op.root >= 0);  // agreed
  const FusedOp& what = execution.op;
  const bool in_arena = what.in_arena;
  Running running;
  auto& tokens = running.tokens;
  for (const FusedOp::Member& member : what.members) {
    const Response& response = responses[member.response];
    const Contribution* own = contribution_of(response, rank_.rank());
    CIRANDA_ASSERT(own != nullptr);  // I2: this rank is a member and has not joined
    const std::uint32_t token = own->token;
    Submission* submission = table_.find(token);
    if (submission == nullptr) {
      return Error{.code = ErrorCode::kShutdown,
                   .text = "rank " + std::to_string(rank_.rank()) + " shut down in the middle of " +
                           describe(*response.spec),
                   .rank = rank_.rank()};
    }
    if (!tokens.empty() && tokens.back() == token && in_arena) continue;  // one bucket
    if (submission->device.stream) execution.device.push_back(submission->device);
    const int self = what.group->index_of(rank_.rank());
    CIRANDA_TRY(in_arena ? locate_in_arena(response, *submission, execution)
                         : add_member_memory(response, member.tensor, self, what.group->size(),
                                             *submission, execution));
    if (tokens.empty() || tokens.back() != token) tokens.push_back(token);
  }
  if (came_inline(what, responses)) {
    reduce_inline(what, responses, execution.buffers);
    for (const std::uint32_t token : tokens) part_done(token, {}, nullptr);
    return {};
  }
  running.timed = execution.arena_bytes + bytes_of(execution.buffers) >= kTimedBytesMin;
  const Status possible = without_joined(what);
  execution.done = [this, index = keep(std::move(running))](
                       const Status& status, const std::shared_ptr<DeviceEvent>& finished) {
    execution_done(index, status, finished);
  };
  if (!possible) {
    execution.done(possible, nullptr);
  } else if (what.op == ReduceOp::kAdasum) {
    adasum_.start(std::move(execution));
  } else {
    backends_.start(std::move(execution));
  }
  return {};
}

void Dispatcher::stand_in(FusedOp op, const std::vector<Response>& responses) {
  if (!without_joined(op)) return;
  const std::size_t here = rank_.members_here(*op.group).size();
  Execution execution = of_zeros(std::move(op), responses, here);
  execution.number = planned_;
  backends_.start(std::move(execution));
}

Status Dispatcher::locate_in_arena(const Response& response, Submission& submission,
                                   Execution& execution) {
  const std::uint64_t bytes = response.spec->arena_bytes;
  const std::vector<Rank>& here = rank_.members_here(*response.group);
  const bool leaves = leaves_arena(execution.op, here.size());
  for (const Rank member : here) {
    const Contribution* contribution = contribution_of(response, member);
    if (contribution == nullptr) continue;  // it has joined
    if (leaves && member != rank_.rank()) continue;
    auto place = peers_.resolve(rank_.local_of(member), contribution->arena, bytes);
    if (!place) return place.error();
    if (leaves) {
      execution.op.in_arena = false;
      execution.buffers.push_back(
          {.in = place.value(), .out = place.value(), .in_bytes = bytes, .out_bytes = bytes});
    } else {
      execution.arena.push_back(place.value());
    }
  }
  // One bucket: this rank's alone, or that of each member here that has not joined.
  CIRANDA_ASSERT(leaves ? execution.arena.empty() && execution.buffers.size() == 1
                        : execution.arena.size() + execution.op.joined.size() >= here.size());
  execution.arena_bytes = leaves ? 0 : bytes;
  execution.work = std::move(submission.work);
  return {};
}

bool Dispatcher::advance() {
  const bool moved = advance_backends();
  return adasum_.advance() || moved;
}

bool Dispatcher::advance_backends() {
  if (backends_.needs().none()) return false;
  if (timed_running_ == 0) return backends_.advance();
  const std::uint64_t begin_ns = monotonic_ns();
  const bool moved = backends_.advance();
  if (moved) {
    rank_.counters.communicating_ns.fetch_add(monotonic_ns() - begin_ns, std::memory_order_relaxed);
  }
  return moved;
}

// -------------------------------------------------------------------------------------------
// The end of an operation

std::size_t Dispatcher::keep(Running running) {
  if (running.timed) ++timed_running_;
  if (free_running_.empty()) {
    running_.push_back(std::move(running));
    return running_.size() - 1;
  }
  const std::size_t index = free_running_.back();
  free_running_.pop_back();
  CIRANDA_ASSERT(index < running_.size() && running_[index].tokens.empty());
  running_[index] = std::move(running);
  return index;
}

void Dispatcher::execution_done(std::size_t index, const Status& status,
                                const std::shared_ptr<DeviceEvent>& finished) {
  CIRANDA_ASSERT(index < running_.size() && !running_[index].tokens.empty());  // done only once
  const Running running = std::move(running_[index]);
  free_running_.push_back(index);
  if (running.timed) --timed_running_;
  CIRANDA_ASSERT(timed_running_ >= 0 && free_running_.size() <= running_.size());
  for (const std::uint32_t token : running.tokens) part_done(token, status, finished);
}

void Dispatcher::part_done(std::uint32_t token, const Status& status,
                           const std::shared_ptr<DeviceEvent>& finished) {
  Submission* submission = table_.find(token);
  if (submission == nullptr) return;
  if (submission->outcome.ok() && !status.ok()) {
    submission->outcome = about(status.error(), *submission->spec);
  }
  if (--submission->parts_left == 0) finish(token, Status(submission->outcome), finished);
}

void Dispatcher::finish(std::uint32_t token, const Status& status,
                        const std::shared_ptr<DeviceEvent>& finished) {
  Submission& submission = *table_.find(token);
  if (rank_.timeline.is_on() && submission.agreed_ns != 0) {
    rank_.timeline.record_operation("", *submission.spec, submission.agreed_ns, monotonic_ns());
  }
  rank_.counters.operations.fetch_add(1, std::memory_order_relaxed);
  rank_.counters.bytes.fetch_add(payload_bytes(submission), std::memory_order_relaxed);
  const Handle handle = std::move(submission.handle);
  const auto spec = std::move(submission.spec);
  if (spec->op == ReduceOp::kAdasum) --unfinished_adasums_;
  CIRANDA_ASSERT(unfinished_adasums_ >= 0);  // by insert()
  table_.erase(token);
  rank_.queue.release(*spec);
  handle->complete(status, finished);
  finished_any_ = true;
}

void Dispatcher::close(const Error& why) {
  closed_ = why;
  finish_unagreed(why);
}

void Dispatcher::finish_unagreed(const Error& why) {
  for (Submission& submission : std::exchange(held_, {})) insert(std::move(submission));
  for (const std::uint32_t token : table_.tokens()) {
    const Submission& submission = *table_.find(token);
    if (submission.parts_left == 0) finish(token, about(why, *submission.spec));
  }
}

void Dispatcher::finish_all(const Error& why) {
  rank_.queue.drain_into(drained_);
  for (Submission& submission : std::exchange(held_, {})) insert(std::move(submission));
  for (Submission& submission : std::exchange(drained_, {})) insert(std::move(submission));
  for (const std::uint32_t token : table_.tokens()) {
    finish(token, about(why, *table_.find(token)->spec));
  }
  CIRANDA_ASSERT(empty() && unfinished_adasums_ == 0);      // I4
  CIRANDA_ASSERT(running_.size() == free_running_.size());  // nothing uses the user's memory
}

std::vector<PendingOperation> Dispatcher::pending() const {
  std::vector<PendingOperation> pending;
  const std::vector<StalledOp> waiting = negotiator_.waiting();
  for (const std::uint32_t token : table_.tokens()) {
    const Submission& submission = *table_.find(token);
    PendingOperation& operation = pending.emplace_back();
    operation.kind = submission.spec->kind;
    operation.name = submission.spec->name;
    for (const StalledOp& stalled : waiting) {
      if (stalled.spec->kind == operation.kind && stalled.spec->name == operation.name &&
          stalled.spec->group == submission.spec->group &&
          stalled.occurrence == submission.occurrence) {
        operation.missing = stalled.missing;
      }
    }
  }
  return pending;
}

}  // namespace ciranda
