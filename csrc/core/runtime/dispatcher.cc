#include "core/runtime/dispatcher.h"

#include <atomic>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "core/backend/shm/shm_backend.h"
#include "core/base/clock.h"
#include "core/plan/fusion.h"
#include "core/runtime/execution.h"
#include "core/runtime/submitted_exchange.h"

namespace ciranda {
namespace {

const Contribution& own_contribution(const Response& response, Rank self) {
  return *contribution_of(response, self);
}

std::vector<Rank> all_locals(int size) {
  std::vector<Rank> locals(static_cast<std::size_t>(size));
  std::iota(locals.begin(), locals.end(), 0);
  return locals;
}

}  // namespace

Dispatcher::Dispatcher(RankContext& rank, const Negotiator& negotiator, FrameExchange& frames,
                       PeerWatch& peers)
    : rank_(rank),
      negotiator_(negotiator),
      frames_(frames),
      peers_(peers),
      backends_(std::make_unique<ShmBackend>(rank.control.world(), rank.bells, rank.mesh.self,
                                             all_locals(rank.mesh.size)),
                ring(), backend_context(), rank.options.backends) {}

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

// A bell suffices while somebody waits; what nobody waits for is found by the next cycle.
BackendContext Dispatcher::backend_context() {
  return {
      .rank = rank_.rank(),
      .size = rank_.size(),
      .local_rank = rank_.mesh.self,
      .local_size = rank_.mesh.size,
      .address = rank_.remote.address,
      .exchange = [&queue = rank_.queue](const std::string& name,
                                         std::vector<std::byte> mine) -> std::unique_ptr<Exchange> {
        auto exchange = std::make_unique<SubmittedExchange>(std::move(mine));
        exchange->submit("ciranda.exchange." + name, queue);
        return exchange;
      },
      .wake =
          [&rank = rank_] {
            RankFlags& flags = rank.flags();
            flags.waiters.ring();
            const bool driven = flags.drivers.load(std::memory_order_seq_cst) != 0;
            if (rank.options.overlap && !driven) rank.bells.wake_own_background();
          }};
}

// -------------------------------------------------------------------------------------------
// From submissions to requests

void Dispatcher::take_submissions() {
  rank_.queue.drain_into(drained_);
  for (Submission& submission : drained_) {
    request(table_.insert(std::move(submission)), /*in_full=*/false);
  }
  drained_.clear();
}

void Dispatcher::request(std::uint32_t token, bool in_full) {
  const Submission& submission = *table_.find(token);
  Request request;
  request.cache_id = in_full ? kNoCacheId : negotiator_.known(*submission.spec);
  if (request.cache_id == kNoCacheId) request.spec = *submission.spec;
  request.occurrence = submission.occurrence;
  request.contribution = {.token = token,
                          .rows = submission.rows,
                          .arena = submission.arena,
                          .digest = submission.digest};
  frames_.add(std::move(request));
}

// -------------------------------------------------------------------------------------------
// From responses to executions

Status Dispatcher::handle(const std::vector<Response>& responses) {
  for (const Response& response : responses) note_agreement(response);
  frames_.send();  // what had to be asked for again

  const std::vector<FusedOp> ops = plan_fusion(responses, rank_.options.fusion);
  for (const FusedOp& op : ops) {
    for (std::size_t i = 0; i < op.members.size(); ++i) {
      if (i > 0 && op.members[i].response == op.members[i - 1].response) continue;
      const Response& response = responses[op.members[i].response];
      Submission* submission = table_.find(own_contribution(response, rank_.rank()).token);
      if (submission != nullptr) ++submission->parts_left;
    }
  }
  for (const FusedOp& op : ops) CIRANDA_TRY(start(op, responses));
  return {};
}

void Dispatcher::note_agreement(const Response& response) {
  if (response.verdict == Response::Verdict::kResubmit) {
    const bool own = response.resubmit_rank == rank_.rank();
    if (own && table_.find(response.resubmit_token) != nullptr) {
      request(response.resubmit_token, /*in_full=*/true);
    }
    return;
  }
  const Contribution* own = contribution_of(response, rank_.rank());
  if (own == nullptr) return;  // an error about something this rank has not submitted yet
  Submission* submission = table_.find(own->token);
  if (submission == nullptr) return;  // shut down meanwhile
  if (rank_.timeline) {
    submission->agreed_ns = monotonic_ns();
    rank_.timeline->record("NEGOTIATE", submission->spec->name, submission->submitted_ns,
                           submission->agreed_ns);
  }
  if (response.verdict == Response::Verdict::kError) {
    finish(own->token, *response.error);
  } else if (response.spec->kind == OpKind::kBarrier) {
    finish(own->token, {});
  }
}

Status Dispatcher::start(const FusedOp& op, const std::vector<Response>& responses) {
  if (op.kind == OpKind::kBarrier) return {};
  Execution execution{.op = op};
  std::vector<std::uint32_t> tokens;
  for (const FusedOp::Member& member : op.members) {
    const Response& response = responses[member.response];
    const std::uint32_t token = own_contribution(response, rank_.rank()).token;
    Submission* submission = table_.find(token);
    if (submission == nullptr) {
      return Error{.code = ErrorCode::kShutdown,
                   .text = "rank " + std::to_string(rank_.rank()) + " shut down in the middle of " +
                           describe(*response.spec),
                   .rank = rank_.rank()};
    }
    if (!tokens.empty() && tokens.back() == token && op.in_arena) continue;  // one bucket
    if (submission->device.stream) execution.device.push_back(submission->device);
    CIRANDA_TRY(op.in_arena ? locate_in_arena(response, *submission, execution)
                            : add_member_memory(response, member.tensor, rank_.rank(), rank_.size(),
                                                *submission, execution));
    if (tokens.empty() || tokens.back() != token) tokens.push_back(token);
  }
  execution.done = [this, tokens = std::move(tokens)](
                       const Status& status, const std::shared_ptr<DeviceEvent>& finished) {
    for (const std::uint32_t token : tokens) part_done(token, status, finished);
  };
  backends_.start(std::move(execution));
  return {};
}

Status Dispatcher::locate_in_arena(const Response& response, Submission& submission,
                                   Execution& execution) {
  execution.arena_bytes = submission.arena_bytes;
  execution.work = std::move(submission.work);
  for (int local = 0; local < rank_.mesh.size; ++local) {
    const ArenaRef& ref = contribution_of(response, rank_.global(local))->arena;
    auto place = peers_.resolve(local, ref, submission.arena_bytes);
    if (!place) return place.error();
    execution.arena.push_back(place.value());
  }
  return {};
}

bool Dispatcher::advance() {
  if (backends_.resting()) return false;
  const std::uint64_t begin_ns = monotonic_ns();
  const bool moved = backends_.advance();
  if (moved) {
    rank_.counters.communicating_ns.fetch_add(monotonic_ns() - begin_ns, std::memory_order_relaxed);
  }
  return moved;
}

// -------------------------------------------------------------------------------------------
// The end of an operation

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
  if (rank_.timeline && submission.agreed_ns != 0) {
    rank_.timeline->record(op_kind_name(submission.spec->kind), submission.spec->name,
                           submission.agreed_ns, monotonic_ns());
  }
  rank_.counters.operations.fetch_add(1, std::memory_order_relaxed);
  rank_.counters.bytes.fetch_add(payload_bytes(submission), std::memory_order_relaxed);
  const Handle handle = std::move(submission.handle);
  const auto spec = std::move(submission.spec);
  table_.erase(token);
  rank_.queue.release(*spec);
  handle->complete(status, finished);
  finished_any_ = true;
}

void Dispatcher::finish_all(const Error& why) {
  rank_.queue.drain_into(drained_);
  for (Submission& submission : std::exchange(drained_, {})) table_.insert(std::move(submission));
  for (const std::uint32_t token : table_.tokens()) {
    finish(token, about(why, *table_.find(token)->spec));
  }
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
          stalled.occurrence == submission.occurrence) {
        operation.missing = stalled.missing;
      }
    }
  }
  return pending;
}

}  // namespace ciranda
