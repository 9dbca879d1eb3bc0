#include "core/negotiate/negotiator.h"

#include <algorithm>
#include <utility>

#include "core/base/assert.h"
#include "core/negotiate/name_table.h"
#include "core/negotiate/readiness.h"
#include "core/negotiate/response_cache.h"
#include "core/negotiate/wording.h"

namespace ciranda {
class Negotiator::Impl {
 public:
  explicit Impl(const Options& options)
      : size_(options.size),
        hosts_(options.hosts),
        host_(options.host),
        cache_(options.cache_entries, names_),
        readiness_(options.size, names_),
        in_flight_(static_cast<std::size_t>(options.size), 0) {}

  Status handle_frame(Rank from, std::span<const std::byte> bytes, std::uint64_t tick,
                      std::vector<Response>& out);
  CacheId known(const RequestSpec& spec) const { return cache_.find(spec); }
  std::vector<StalledOp> waiting() const;
  const std::vector<Rank>& departed() const { return departed_; }
  bool may_aggregate(const KnownOp& op) const;

 private:
  bool has_left(Rank rank) const {
    return std::find(departed_.begin(), departed_.end(), rank) != departed_.end();
  }
  // A Request whose spec was looked up.
  struct Known {
    const std::shared_ptr<const RequestSpec>& spec;
    NameEntry& name;
    std::uint32_t occurrence;
  };

  Status handle_request(Rank from, Request& request, std::uint64_t tick,
                        std::vector<Response>& out);
  Status handle_ready(Rank from, Frame& frame, std::uint64_t tick, std::vector<Response>& out);
  Status submit(Rank from, const Known& request, Contribution&& contribution, std::uint64_t tick,
                std::vector<Response>& out);
  void handle_leave(Rank from, std::vector<Response>& out);
  void complete(PendingOp& op, std::vector<Response>& out);

  // Ends `op` with a Response that holds its contributions.
  Response& respond(PendingOp& op, std::vector<Response>& out);
  void fail(PendingOp& op, Error error, std::vector<Response>& out);
  // Answers one rank's submission with an error; nobody else is concerned.
  void fail_one(Rank from, const Known& request, Contribution&& contribution, Error error,
                std::vector<Response>& out);

  std::optional<Error> fault_of(const PendingOp& op) const;
  std::optional<Error> rows_fault(const PendingOp& op) const;
  Error left_error(const RequestSpec& spec, std::uint32_t occurrence) const;

  const int size_;
  const Hosts hosts_;
  const int host_;
  NameTable names_;  // before those who hold references into it
  ResponseCache cache_;
  Readiness readiness_;
  std::vector<std::size_t> in_flight_;  // submissions by rank without a Response
  std::vector<Rank> departed_;
  std::uint64_t next_index_ = 0;
  Frame scratch_;
};

Status Negotiator::Impl::handle_frame(Rank from, std::span<const std::byte> bytes,
                                      std::uint64_t tick, std::vector<Response>& out) {
  if (from < 0 || from >= size_) return violation(from, "is not a rank of this world");
  // Decoded as a whole before anything is decided: a broken frame changes nothing.
  if (const Status status = decode_frame(bytes, scratch_); !status.ok())
    return violation(from, status.error().text);

  if (scratch_.kind == FrameKind::kReady) return handle_ready(from, scratch_, tick, out);
  if (has_left(from)) return violation(from, "it sent a frame after it had left");
  if (scratch_.kind == FrameKind::kLeave) {
    handle_leave(from, out);
    return {};
  }
  for (Request& request : scratch_.requests) CIRANDA_TRY(handle_request(from, request, tick, out));
  return {};
}

Status Negotiator::Impl::handle_request(Rank from, Request& request, std::uint64_t tick,
                                        std::vector<Response>& out) {
  CIRANDA_ASSERT(request.spec.has_value() == (request.cache_id == kNoCacheId));  // decode made it
  const ResponseCache::Entry* entry =
      request.spec.has_value() ? cache_.use(*request.spec) : cache_.use(request.cache_id);
  if (entry != nullptr) {
    const Known known{entry->spec, *entry->name, request.occurrence};
    return submit(from, known, std::move(request.contribution), tick, out);
  }
  if (request.spec.has_value()) {
    NameEntry& name = names_.acquire(request.spec->name, request.spec->kind);
    const auto spec = std::make_shared<const RequestSpec>(*std::move(request.spec));
    const Known known{spec, name, request.occurrence};
    Status status = submit(from, known, std::move(request.contribution), tick, out);
    names_.release(name);
    return status;
  }
  if (!cache_.handed_out(request.cache_id))
    return violation(from, "it used the number " + std::to_string(request.cache_id) +
                               ", which no operation ever had");
  Response& response = out.emplace_back();
  response.verdict = Response::Verdict::kResubmit;
  response.resubmit_rank = from;
  response.resubmit_token = request.contribution.token;
  return {};
}

bool Negotiator::Impl::may_aggregate(const KnownOp& op) const {
  const ResponseCache::Entry* entry = cache_.find(op.cache_id);
  return entry != nullptr && !takes_rows(entry->spec->kind) && departed_.empty() &&
         readiness_.find(*entry->name, op.occurrence) == nullptr;
}

// What the ranks themselves would have sent, one after the other; in the usual case, that nobody
// has submitted the operation before, without looking at each of them.
Status Negotiator::Impl::handle_ready(Rank from, Frame& frame, std::uint64_t tick,
                                      std::vector<Response>& out) {
  const auto own = static_cast<std::size_t>(host_);
  if (own >= hosts_.size() || frame.host >= static_cast<int>(hosts_.size()))
    return violation(from, "it speaks of hosts that this job does not have");
  const bool of_all = frame.host == kAllHosts;
  const bool of_own = of_all || frame.host == host_;
  for (ReadyOp& ready : frame.ready) {
    if (ready.contributions.size() != (of_own ? hosts_[own].size() : 0))
      return violation(from, "a ready operation does not have what this host's ranks contributed");
    const auto contribution = [&](std::size_t host, std::size_t local) {
      return host == own ? std::move(ready.contributions[local]) : Contribution{};
    };
    if (of_all && may_aggregate(ready.op)) {
      const ResponseCache::Entry& entry = *cache_.use(ready.op.cache_id);
      Response& response = out.emplace_back();
      response.index = next_index_++;
      response.spec = entry.spec;
      response.occurrence = ready.op.occurrence;
      response.cache_id = entry.id;
      response.contributions.reserve(hosts_[own].size());
      for (std::size_t local = 0; local < hosts_[own].size(); ++local) {
        response.contributions.push_back({hosts_[own][local], contribution(own, local)});
      }
      continue;
    }
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      if (!of_all && frame.host != static_cast<int>(host)) continue;
      for (std::size_t local = 0; local < hosts_[host].size(); ++local) {
        const Rank rank = hosts_[host][local];
        if (has_left(rank)) return violation(rank, "it is called ready after it had left");
        Request request{.cache_id = ready.op.cache_id,
                        .occurrence = ready.op.occurrence,
                        .contribution = contribution(host, local)};
        CIRANDA_TRY(handle_request(rank, request, tick, out));
      }
    }
  }
  return {};
}

Status Negotiator::Impl::submit(Rank from, const Known& request, Contribution&& contribution,
                                std::uint64_t tick, std::vector<Response>& out) {
  const auto rank = static_cast<std::size_t>(from);
  if (!departed_.empty()) {
    fail_one(from, request, std::move(contribution), left_error(*request.spec, request.occurrence),
             out);
    return {};
  }
  PendingOp* op = readiness_.find(request.name, request.occurrence);
  if (op == nullptr) {
    op = &readiness_.open(request.name, request.occurrence, request.spec, tick);
  } else if (op->contributions[rank].has_value()) {
    return violation(from, "it submitted " + op_label(*op->spec, op->occurrence) +
                               " twice before every rank had submitted it once");
  }
  if (in_flight_[rank] == kInFlightMax)
    return Error{.code = ErrorCode::kLimit,
                 .text = "rank " + std::to_string(from) + " has more than " +
                         std::to_string(kInFlightMax) + " operations in flight",
                 .rank = from};
  ++in_flight_[rank];
  op->contributions[rank] = std::move(contribution);
  ++op->contributed;
  if (request.spec != op->spec && *request.spec != *op->spec)
    op->disagreements.push_back({from, request.spec});
  if (op->contributed == size_) complete(*op, out);
  return {};
}

// No operation can run without the rank, also not one that it had submitted: it takes no part in
// moving the data any more.
void Negotiator::Impl::handle_leave(Rank from, std::vector<Response>& out) {
  departed_.push_back(from);
  while (PendingOp* op = readiness_.oldest()) fail(*op, left_error(*op->spec, op->occurrence), out);
}

void Negotiator::Impl::complete(PendingOp& op, std::vector<Response>& out) {
  CIRANDA_ASSERT(op.contributed == size_);  // I2
  if (auto fault = fault_of(op)) {
    fail(op, *std::move(fault), out);
    return;
  }
  const CacheId id = cache_.insert(op.spec, *op.name);
  respond(op, out).cache_id = id;
}

Response& Negotiator::Impl::respond(PendingOp& op, std::vector<Response>& out) {
  Response& response = out.emplace_back();
  response.contributions.reserve(static_cast<std::size_t>(op.contributed));
  for (std::size_t rank = 0; rank < in_flight_.size(); ++rank) {
    if (!op.contributions[rank].has_value()) continue;
    CIRANDA_ASSERT(in_flight_[rank] > 0);
    --in_flight_[rank];
    response.contributions.push_back({static_cast<Rank>(rank), *std::move(op.contributions[rank])});
  }
  response.index = next_index_++;
  response.spec = std::move(op.spec);
  response.occurrence = op.occurrence;
  readiness_.close(op);
  return response;
}

void Negotiator::Impl::fail(PendingOp& op, Error error, std::vector<Response>& out) {
  Response& response = respond(op, out);
  response.verdict = Response::Verdict::kError;
  response.error = std::move(error);
}

void Negotiator::Impl::fail_one(Rank from, const Known& request, Contribution&& contribution,
                                Error error, std::vector<Response>& out) {
  Response& response = out.emplace_back();
  response.verdict = Response::Verdict::kError;
  response.index = next_index_++;
  response.spec = request.spec;
  response.occurrence = request.occurrence;
  response.contributions.push_back({from, std::move(contribution)});
  response.error = std::move(error);
}

// Why an operation that every rank submitted cannot run.
std::optional<Error> Negotiator::Impl::fault_of(const PendingOp& op) const {
  if (!op.disagreements.empty()) {
    return Error{.code = ErrorCode::kMismatch,
                 .text = mismatch_text(op),
                 .rank = op.disagreements.front().rank,
                 .tensor = op.spec->name};
  }
  if (op.spec->root >= size_) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .text = op_label(*op.spec, op.occurrence) + ": there is no root rank " +
                         std::to_string(op.spec->root) + " among " + std::to_string(size_) +
                         " ranks",
                 .tensor = op.spec->name};
  }
  return rows_fault(op);
}

std::optional<Error> Negotiator::Impl::rows_fault(const PendingOp& op) const {
  const RequestSpec& spec = *op.spec;
  const std::size_t expected = spec.kind == OpKind::kAllgather  ? spec.tensors.size()
                               : spec.kind == OpKind::kAlltoall ? static_cast<std::size_t>(size_)
                                                                : 0;
  for (std::size_t rank = 0; rank < op.contributions.size(); ++rank) {
    const std::vector<std::int64_t>& rows = op.contributions[rank]->rows;
    if (rows.size() != expected)
      return Error{.code = ErrorCode::kMismatch,
                   .text = op_label(spec, op.occurrence) + ": rank " + std::to_string(rank) +
                           " gave " + std::to_string(rows.size()) + " row counts where " +
                           std::to_string(expected) + " are needed",
                   .rank = static_cast<Rank>(rank),
                   .tensor = spec.name};
    if (!takes_rows(spec.kind)) continue;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const TensorSpec& tensor = spec.tensors[spec.kind == OpKind::kAllgather ? i : 0];
      const auto row_bytes =
          element_count(tensor.shape) * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
      std::int64_t part = 0;
      if (!__builtin_mul_overflow(rows[i], row_bytes, &part) && part <= kTensorBytesMax - bytes) {
        bytes += part;
        continue;
      }
      return Error{.code = ErrorCode::kLimit,
                   .text = op_label(spec, op.occurrence) + ": rank " + std::to_string(rank) +
                           " gave more rows than fit the limit of " +
                           std::to_string(kTensorBytesMax) + " bytes",
                   .rank = static_cast<Rank>(rank),
                   .tensor = spec.name};
    }
  }
  return std::nullopt;
}

Error Negotiator::Impl::left_error(const RequestSpec& spec, std::uint32_t occurrence) const {
  CIRANDA_ASSERT(!departed_.empty());
  return {.code = ErrorCode::kRankLeft,
          .text = left_text(spec, occurrence, departed_),
          .rank = departed_.front(),  // later ones may have left because of it
          .tensor = spec.name};
}

std::vector<StalledOp> Negotiator::Impl::waiting() const {
  std::vector<StalledOp> stalled;
  for (const PendingOp* op = readiness_.oldest(); op != nullptr; op = op->newer) {
    StalledOp& item = stalled.emplace_back(StalledOp{op->spec, op->occurrence, {}, op->since_tick});
    for (std::size_t rank = 0; rank < op->contributions.size(); ++rank) {
      if (!op->contributions[rank].has_value()) item.missing.push_back(static_cast<Rank>(rank));
    }
  }
  return stalled;
}

Negotiator::Negotiator(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Negotiator::~Negotiator() = default;

Status Negotiator::handle_frame(Rank from, std::span<const std::byte> frame, std::uint64_t tick,
                                std::vector<Response>& out) {
  return impl_->handle_frame(from, frame, tick, out);
}
CacheId Negotiator::known(const RequestSpec& spec) const {
  return impl_->known(spec);
}
bool Negotiator::may_aggregate(const KnownOp& op) const {
  return impl_->may_aggregate(op);
}
std::vector<StalledOp> Negotiator::waiting() const {
  return impl_->waiting();
}
const std::vector<Rank>& Negotiator::departed() const {
  return impl_->departed();
}

}  // namespace ciranda
