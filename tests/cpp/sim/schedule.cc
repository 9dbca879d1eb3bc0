#include "sim/schedule.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/negotiate/negotiator.h"
#include "core/plan/fusion.h"
#include "core/wire/messages.h"
#include "core/wire/pair.h"
#include "sim/network.h"
#include "sim/oracle.h"
#include "sim/plan_check.h"
#include "sim/program.h"
#include "sim/violation.h"

namespace ciranda::sim {
namespace {

struct Submission {
  RequestSpec spec;
  std::uint32_t occurrence = 0;
  int set = ProgramOp::kNoSet;
  Contribution contribution;
  bool whole = false;  // after a resubmit: no number this time
  bool sent = false;
};

class Client;

class Schedule {
 public:
  Schedule(std::uint64_t seed, Coverage& coverage);
  void run();

 private:
  friend class Client;

  void act();
  void check_end();
  // A frame that is handled for the first time anywhere: what must come of it?
  void expect(const SimDelivery& delivery);

  SimRandom random_;
  Coverage& coverage_;
  int size_;
  std::size_t cache_entries_;
  FusionLimits limits_;
  Trouble trouble_;
  std::size_t frame_requests_max_;
  SimNetwork network_;
  Oracle oracle_;
  Program program_;
  std::map<int, std::vector<Rank>> sets_;  // the members of the program's groups
  std::vector<RequestSpec> every_spec_;    // that was submitted
  std::vector<std::unique_ptr<Client>> clients_;

  // The one order, as far as any rank has seen it.
  struct Entry {
    Rank from = kNoRank;
    SimDelivery::Kind kind = SimDelivery::Kind::kFrame;
    std::optional<std::vector<Expected>> expected;  // nullopt: must be refused
    struct State {
      std::vector<Oracle::Waiting> waiting;
      std::vector<CacheId> known;  // of every_spec_
    };
    std::optional<State> state;            // what the rules say, where it is to be compared
    std::optional<std::uint64_t> outcome;  // hash of what the first rank made of it
  };
  std::vector<Entry> order_;
  std::vector<std::deque<std::optional<Frame>>> unordered_;  // by rank: sent, not in the order yet
};

// One rank: its program, its copy of the negotiator, and what it waits for.
class Client {
 public:
  Client(Schedule& world, Rank rank)
      : world_(world),
        rank_(rank),
        negotiator_({.size = world.size_, .cache_entries = world.cache_entries_}),
        duplicates_left_(world.trouble_.duplicates ? 3 : 0),
        strangers_left_(world.trouble_.strangers ? 3 : 0) {
    plan_order();
  }

  bool can_act() const {
    return !failed_ && !left_ && world_.network_.running(rank_) && !world_.network_.paused(rank_);
  }
  bool failed() const { return failed_; }
  bool left() const { return left_; }
  bool done() const { return next_ == mine_.size() && queue_.empty() && outstanding_.empty(); }
  // Nothing more comes from this rank, and it has been told the fate of all it had submitted.
  bool settled() const {
    return !world_.network_.running(rank_) || failed_ || (leave_handled_ && outstanding_.empty());
  }
  std::string describe() const {
    return "rank " + std::to_string(rank_) + ": " + std::to_string(outstanding_.size()) +
           " unanswered, " + std::to_string(queue_.size()) + " unsent, left " +
           std::to_string(left_) + ", failed " + std::to_string(failed_);
  }

  bool submit_some();
  bool send_frame();
  void leave();
  void send_garbage();
  void speak_after_leave();
  void handle(const SimDelivery& delivery);

 private:
  void plan_order();
  RequestSpec mistake(RequestSpec spec) const;
  void run_out_of_data(std::size_t since);
  bool is_member(GroupId group) const;
  bool submit_next();
  bool submit_as_a_stranger();
  // Nothing that was sent may have to be sent again.
  bool all_sent_is_counted() const;
  void enqueue(const ProgramOp& op);
  std::size_t count_rows(const ProgramOp& op);
  bool in_flight(const RequestSpec& spec, std::uint32_t occurrence) const;
  void send(const Frame& frame);
  void handle_response(const Response& response);
  void check_state(const Schedule::Entry::State& state) const;

  Schedule& world_;
  const Rank rank_;
  Negotiator negotiator_;
  std::vector<ProgramOp> mine_;  // in this rank's own order
  std::size_t next_ = 0;
  std::map<int, GroupId> sets_;  // the program's groups that exist, as far as this rank knows
  bool joining_ = false;
  std::uint32_t next_token_ = 0;
  int duplicates_left_ = 0;
  int strangers_left_ = 0;
  std::vector<std::uint32_t> queue_;                 // tokens not sent
  std::map<std::uint32_t, Submission> outstanding_;  // by token
  std::size_t position_ = 0;                         // in the one order
  bool left_ = false;
  bool leave_handled_ = false;
  bool failed_ = false;
};

void Client::plan_order() {
  SimRandom& random = world_.random_;
  std::size_t since = 0;  // the last change of membership
  for (std::vector<ProgramOp> step : world_.program_.steps) {
    if (!random.one_in(3))
      for (std::size_t i = step.size(); i > 1; --i) std::swap(step[i - 1], step[random.below(i)]);
    if (step.front().spec.kind == OpKind::kJoin && random.one_in(2)) run_out_of_data(since);
    for (ProgramOp& op : step) {
      if (op.spec.kind == OpKind::kSend && !is_member(op.spec.group)) continue;
      const bool changes = is_membership(op.spec.kind);
      if (!changes && world_.trouble_.skips && random.one_in(12)) continue;
      if (world_.trouble_.mismatches && random.one_in(8)) op.spec = mistake(op.spec);
      mine_.push_back(op);
      if (changes) since = mine_.size();
    }
  }
}

// What this rank takes the operation for.
RequestSpec Client::mistake(RequestSpec spec) const {
  SimRandom& random = world_.random_;
  if (spec.kind == OpKind::kSend) {
    Pair pair = pair_of(spec.group);
    if (!random.one_in(3)) return make_message(spec.name, pair, random);
    std::swap(pair.from, pair.to);
    spec.group = pair_id(pair);
    spec.root = pair.from;
    return spec;
  }
  if (spec.kind == OpKind::kAddGroup) spec.members = make_members(world_.size_, random);
  if (is_membership(spec.kind)) return spec;
  if (spec.root == kNoRank || random.one_in(2))
    return make_spec(spec.name, {0, 1}, world_.trouble_, random);
  spec.root ^= 1;  // another one
  return spec;
}

// This rank joins earlier than others.
void Client::run_out_of_data(std::size_t since) {
  mine_.resize(since + world_.random_.below(mine_.size() - since + 1));
}

// As far as this rank knows.
bool Client::is_member(GroupId group) const {
  if (group == kWorldGroup) return true;
  if (is_pair(group)) {
    const Pair pair = pair_of(group);
    return is_in_world(pair, world_.size_) && (pair.from == rank_ || pair.to == rank_);
  }
  return std::any_of(sets_.begin(), sets_.end(), [&](const auto& set) {
    const auto& members = world_.sets_.at(set.first);
    return set.second == group && std::count(members.begin(), members.end(), rank_) > 0;
  });
}

bool Client::in_flight(const RequestSpec& spec, std::uint32_t occurrence) const {
  return std::any_of(outstanding_.begin(), outstanding_.end(), [&](const auto& entry) {
    const Submission& other = entry.second;
    return other.occurrence == occurrence && other.spec.name == spec.name &&
           other.spec.kind == spec.kind && other.spec.group == spec.group;
  });
}

bool Client::submit_some() {
  if (strangers_left_ > 0 && world_.random_.one_in(10) && submit_as_a_stranger()) return true;
  return next_ < mine_.size() && !joining_ && submit_next();
}

bool Client::submit_next() {
  ProgramOp op = mine_[next_];
  if (op.set != ProgramOp::kNoSet && op.spec.kind != OpKind::kAddGroup) {
    const auto adding = [&](const auto& entry) {
      return entry.second.set == op.set && entry.second.spec.kind == OpKind::kAddGroup;
    };
    if (std::any_of(outstanding_.begin(), outstanding_.end(), adding)) return false;
    const auto set = sets_.find(op.set);
    const bool exists = set != sets_.end();
    const bool removes = op.spec.kind == OpKind::kRemoveGroup;
    const auto& members = world_.sets_.at(op.set);
    if (!exists || (!removes && std::count(members.begin(), members.end(), rank_) == 0)) {
      ++next_;  // nothing to do here
      return true;
    }
    (removes ? op.spec.removes : op.spec.group) = set->second;
    if (removes) sets_.erase(set);
  }
  if (in_flight(op.spec, op.occurrence)) {
    if (is_membership(op.spec.kind) || duplicates_left_ == 0 || !world_.random_.one_in(6))
      return false;
    --duplicates_left_;
    enqueue(op);  // the name is not free yet
    ++world_.coverage_.duplicates;
    return true;
  }
  joining_ = op.spec.kind == OpKind::kJoin;
  enqueue(op);
  ++next_;
  return true;
}

// What the engine refuses: the rank is no member of the group, the group is none, or it has joined.
bool Client::submit_as_a_stranger() {
  const std::string name = "stranger." + std::to_string(next_token_);
  SimRandom& random = world_.random_;
  ProgramOp op{.spec = make_spec(name, {rank_}, world_.trouble_, random)};
  op.spec.group = static_cast<GroupId>(random.below(4));
  if (random.one_in(3)) {  // also to itself, or to a rank that there is not
    const auto end = static_cast<std::uint64_t>(world_.size_) + 1;
    const auto from = static_cast<Rank>(random.below(end));
    op.spec =
        make_message(name, {.from = from, .to = static_cast<Rank>(random.below(end))}, random);
  }
  if (is_member(op.spec.group) && !joining_) return false;
  --strangers_left_;
  ++world_.coverage_.strangers;
  enqueue(op);
  return true;
}

bool Client::all_sent_is_counted() const {
  const auto sent = std::count_if(outstanding_.begin(), outstanding_.end(),
                                  [](const auto& entry) { return entry.second.sent; });
  return static_cast<std::size_t>(sent) == negotiator_.in_flight(rank_);
}

void Client::enqueue(const ProgramOp& op) {
  SimRandom& random = world_.random_;
  auto& every = world_.every_spec_;
  if (std::find(every.begin(), every.end(), op.spec) == every.end()) every.push_back(op.spec);
  Submission submission{.spec = op.spec, .occurrence = op.occurrence, .set = op.set};
  Contribution& own = submission.contribution;
  own.token = next_token_++ * 0x10001u + static_cast<std::uint32_t>(rank_);
  const bool provides = op.spec.kind == OpKind::kAddGroup || op.spec.kind == OpKind::kSend;
  if (op.spec.in_arena || provides)
    own.arena = {.segment = static_cast<std::uint32_t>(random.below(3)),
                 .offset = random.below(1u << 30)};
  if (provides && world_.trouble_.mismatches && random.one_in(8)) own.arena = kNoRegion;
  for (std::size_t i = 0, count = count_rows(op); i < count; ++i)
    own.rows.push_back(static_cast<std::int64_t>(random.below(1000)));
  if (world_.trouble_.mismatches && !own.rows.empty() && random.one_in(16))
    own.rows.back() = kTensorBytesMax;  // too many, but for rows without bytes
  queue_.push_back(own.token);
  outstanding_.emplace(own.token, std::move(submission));
}

// How many row counts this rank gives; now and then a wrong number of them.
std::size_t Client::count_rows(const ProgramOp& op) {
  SimRandom& random = world_.random_;
  std::size_t count = 0;
  if (op.spec.kind == OpKind::kAllgather) count = op.spec.tensors.size();
  if (runs_as(op.spec.kind) == OpKind::kAlltoall)
    count = op.set == ProgramOp::kNoSet ? static_cast<std::size_t>(world_.size_)
                                        : world_.sets_.at(op.set).size();
  if (!world_.trouble_.mismatches) return count;
  if (op.spec.kind == OpKind::kScatter && random.one_in(3)) return 0;
  return random.one_in(16) ? count + 1 : count;
}

bool Client::send_frame() {
  if (queue_.empty()) return false;
  Frame frame;
  std::size_t count = std::min(queue_.size(), 1 + world_.random_.below(world_.frame_requests_max_));
  for (std::size_t i = 0; i < count; ++i) {
    Submission& submission = outstanding_.at(queue_[i]);
    if (is_membership(submission.spec.kind) && (i > 0 || !all_sent_is_counted())) {
      count = i;  // alone, and once nothing before it may have to be sent again
      break;
    }
    Request request{.occurrence = submission.occurrence, .contribution = submission.contribution};
    if (!submission.whole) request.cache_id = negotiator_.known(submission.spec);
    if (request.cache_id == kNoCacheId) {
      request.spec = submission.spec;
    } else {
      ++world_.coverage_.cached_requests;
    }
    submission.sent = true;
    frame.requests.push_back(std::move(request));
  }
  if (count == 0) return false;
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(count));
  send(frame);
  return true;
}

void Client::send(const Frame& frame) {
  std::vector<std::byte> bytes;
  encode(frame, bytes);
  std::size_t sum = kFrameHeaderBytes;
  for (const Request& request : frame.requests) sum += encoded_bytes(request);
  require(bytes.size() <= sum && sum <= bytes.size() + kFrameHeaderBytes, "encoded_bytes is wrong");
  world_.network_.send(rank_, bytes);
  world_.unordered_[static_cast<std::size_t>(rank_)].push_back(frame);
}

void Client::leave() {
  // What was never sent is the engine's own to fail.
  for (const std::uint32_t token : queue_) outstanding_.erase(token);
  queue_.clear();
  send({.kind = FrameKind::kLeave});
  left_ = true;
  if (world_.trouble_.zombie && world_.random_.one_in(2)) speak_after_leave();
  world_.network_.finish(rank_);
}

void Client::speak_after_leave() {
  send({.kind = world_.random_.one_in(2) ? FrameKind::kLeave : FrameKind::kRequests});
}

// Bytes that no right rank sends; wrong by the rules, not by what the decoder thinks of them.
void Client::send_garbage() {
  const std::uint64_t fault = world_.random_.below(5);
  Request request{.contribution = {.token = 5}};
  if (fault == 0) {
    request.cache_id = 1u << 30;  // a number that no operation ever had
  } else {
    request.spec = RequestSpec{.name = "garbage", .kind = OpKind::kBarrier};
  }
  std::vector<std::byte> bytes;
  encode({.requests = {request}}, bytes);
  switch (fault) {
    case 0:
      break;
    case 1:
      bytes.push_back(std::byte{0});  // more than the frame
      break;
    case 2:
      bytes.resize(1 + world_.random_.below(bytes.size() - 1));  // less than the frame
      break;
    case 3:
      bytes[0] = static_cast<std::byte>(2 + world_.random_.below(254));  // no such kind
      break;
    default:
      bytes[2] |= static_cast<std::byte>(16 << world_.random_.below(4));  // no such flag
  }
  world_.network_.send(rank_, bytes);
  world_.unordered_[static_cast<std::size_t>(rank_)].push_back(std::nullopt);
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

std::uint64_t mix(std::uint64_t hash, const std::string& text) {
  for (const char c : text) hash = mix(hash, static_cast<std::uint64_t>(c));
  return hash;
}

// Everything that ranks must agree about.
std::uint64_t hash_of(const std::vector<Response>& responses, const std::vector<FusedOp>& plan) {
  std::uint64_t hash = 0;
  for (const Response& response : responses) {
    hash = mix(hash, static_cast<std::uint64_t>(response.verdict));
    hash = mix(mix(hash, response.index), response.cache_id);
    hash =
        mix(mix(hash, static_cast<std::uint64_t>(response.resubmit_rank)), response.resubmit_token);
    if (response.spec)
      hash = mix(hash, response.spec->name + to_string(response.spec->tensors.empty()
                                                           ? TensorSpec{}
                                                           : response.spec->tensors[0]));
    for (const auto& [rank, contribution] : response.contributions)
      hash = mix(mix(hash, static_cast<std::uint64_t>(rank)), contribution.token);
    for (const Rank rank : response.joined) hash = mix(hash, static_cast<std::uint64_t>(rank));
    hash = mix(mix(hash, response.group ? response.group->id : 1u << 31),
               response.changed ? response.changed->id : 0);
    hash = mix(hash, static_cast<std::uint64_t>(response.last_joined));
    if (response.error) hash = mix(hash, response.error->text);  // I7
  }
  for (const FusedOp& op : plan) {
    hash = mix(mix(hash, static_cast<std::uint64_t>(op.kind)), op.group->id);
    for (const FusedOp::Member& member : op.members)
      hash = mix(mix(hash, member.response), member.tensor);
  }
  return hash;
}

std::string text_of(const Response& response) {
  if (response.error) return response.error->text;
  return response.spec ? std::string(op_kind_name(response.spec->kind)) + " '" +
                             response.spec->name + "' runs"
                       : "it must be sent again";
}

void Client::handle(const SimDelivery& delivery) {
  if (failed_ || leave_handled_) return;
  // Rank 0's end of the link is only ever missed by the rank itself: no entry of the order.
  if (delivery.kind == SimDelivery::Kind::kLost && delivery.from == 0) {
    failed_ = true;
    return;
  }
  if (position_ == world_.order_.size()) world_.expect(delivery);
  Schedule::Entry& entry = world_.order_.at(position_++);
  require(entry.kind == delivery.kind && entry.from == delivery.from,
          "I1: another order of frames");
  if (delivery.kind == SimDelivery::Kind::kLost) {
    failed_ = true;
    return;
  }
  std::vector<Response> responses;
  const Status status =
      negotiator_.handle_frame(delivery.from, delivery.frame, world_.network_.now(), responses);
  if (status.ok() != entry.expected.has_value())
    throw Violation{status.ok() ? "a frame was taken that must be refused"
                                : "a frame was refused: " + status.error().text};
  std::uint64_t outcome = 0;
  if (!status.ok()) {
    require(status.error().code == ErrorCode::kMalformed && status.error().rank == delivery.from,
            "a refused frame does not name its sender");
    failed_ = true;
    outcome = mix(1, status.error().text);
  } else {
    require(responses.size() == entry.expected->size(), "the number of responses is wrong");
    const std::vector<FusedOp> plan = plan_fusion(responses, world_.limits_);
    outcome = hash_of(responses, plan);
    if (!entry.outcome) {
      for (std::size_t i = 0; i < responses.size(); ++i) {
        const std::string what =
            Oracle::difference((*entry.expected)[i], responses[i], world_.size_);
        require(what.empty(), "response " + std::to_string(i) + " differs from the rules: " + what +
                                  "; " + text_of(responses[i]));
      }
      check_plan(responses, plan, world_.limits_);
      if (entry.state) check_state(*entry.state);
      world_.coverage_.fused += static_cast<std::uint64_t>(std::count_if(
          plan.begin(), plan.end(), [](const FusedOp& op) { return op.members.size() > 1; }));
    }
    for (const Response& response : responses) handle_response(response);
  }
  if (entry.outcome) require(*entry.outcome == outcome, "I1: ranks decided differently");
  entry.outcome = outcome;
  const auto& departed = negotiator_.departed();
  if (std::find(departed.begin(), departed.end(), rank_) != departed.end()) {
    leave_handled_ = true;
    require(outstanding_.empty(), "I9: a rank left and was not told about all it had submitted");
  }
}

void Client::handle_response(const Response& response) {
  Coverage& coverage = world_.coverage_;
  if (response.verdict == Response::Verdict::kResubmit) {
    if (response.resubmit_rank != rank_) return;
    ++coverage.resubmits;
    const auto found = outstanding_.find(response.resubmit_token);
    require(found != outstanding_.end(), "I4: an unknown token must be sent again");
    if (left_) {
      outstanding_.erase(found);  // nothing may be sent any more: the engine fails it itself
      return;
    }
    found->second.whole = true;
    queue_.insert(queue_.begin(), response.resubmit_token);
    return;
  }
  const Contribution* own = contribution_of(response, rank_);
  if (response.verdict == Response::Verdict::kRun) {
    require(response.contributions.size() + response.joined.size() == response.group->ranks.size(),
            "I2: an operation runs that a member has not submitted");
    for (const auto& [rank, contribution] : response.contributions)
      require(response.group->contains(rank), "I18: a rank outside of the group takes part");
    for (const Rank rank : response.joined)
      require(response.group->contains(rank), "I18: a rank outside of the group takes part");
    if (rank_ == 0) {
      ++coverage.runs;
      const bool in_pair = is_pair(response.group->id);
      coverage.rooted += facts_of(response.spec->kind).runs_as && !in_pair ? 1u : 0u;
      coverage.messages += in_pair ? 1 : 0;
      coverage.in_groups += response.group->id == kWorldGroup || in_pair ? 0u : 1u;
      coverage.without_joined += response.joined.empty() ? 0u : 1u;
      coverage.added += response.spec->kind == OpKind::kAddGroup ? 1u : 0u;
      coverage.removed += response.spec->kind == OpKind::kRemoveGroup ? 1u : 0u;
      coverage.joins += response.spec->kind == OpKind::kJoin ? 1u : 0u;
    }
  } else if (rank_ == 0) {
    const ErrorCode code = response.error->code;
    coverage.mismatches += code == ErrorCode::kMismatch ? 1 : 0;
    coverage.without_splits +=
        response.error->text.find("splits of its root") != std::string::npos ? 1u : 0u;
    coverage.without_memory += code == ErrorCode::kSystem ? 1 : 0;
    coverage.too_many_rows += code == ErrorCode::kLimit ? 1 : 0;
    coverage.left += code == ErrorCode::kRankLeft ? 1 : 0;
    coverage.refused_joined += code == ErrorCode::kUnsupported ? 1 : 0;
    coverage.kept_groups += response.spec->kind == OpKind::kRemoveGroup ? 1u : 0u;
  }
  if (own == nullptr) return;
  const auto found = outstanding_.find(own->token);
  require(found != outstanding_.end() && found->second.sent,
          "I4: a submission is answered twice, or before it was sent");
  require(found->second.contribution == *own, "a contribution was changed on its way");
  require(found->second.occurrence == response.occurrence, "the answer is for another occurrence");
  if (response.verdict == Response::Verdict::kRun)
    require(found->second.spec == *response.spec, "I2: what runs is not what was submitted");
  if (response.changed && response.spec->kind == OpKind::kAddGroup)
    sets_[found->second.set] = response.changed->id;
  if (response.spec->kind == OpKind::kJoin) joining_ = false;
  outstanding_.erase(found);
}

// The state that the negotiator shows agrees with the rules, and is bounded (I8).
void Client::check_state(const Schedule::Entry::State& entry) const {
  const std::vector<StalledOp> waiting = negotiator_.waiting();
  require(waiting.size() == entry.waiting.size(), "waiting(): number of operations");
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    const Oracle::Waiting& wanted = entry.waiting[i];
    require(*waiting[i].spec == wanted.spec && waiting[i].occurrence == wanted.occurrence,
            "waiting(): another operation");
    require(waiting[i].missing == wanted.missing, "waiting(): other missing ranks");
    require(!wanted.missing.empty(), "waiting(): nothing is missing");
  }
  std::map<CacheId, const RequestSpec*> ids;
  for (std::size_t i = 0; i < entry.known.size(); ++i) {
    const RequestSpec& spec = world_.every_spec_[i];
    const CacheId id = negotiator_.known(spec);
    require(id == entry.known[i], "known(): another number");
    if (id == kNoCacheId) continue;
    const auto [other, is_new] = ids.emplace(id, &spec);
    require(is_new || *other->second == spec, "two specs have one number");
  }
  require(ids.size() <= world_.cache_entries_, "I8: the cache is larger than its bound");
}

Schedule::Schedule(std::uint64_t seed, Coverage& coverage)
    : random_(seed),
      coverage_(coverage),
      size_(2 + static_cast<int>(random_.one_in(3) ? random_.below(7) : random_.below(3))),
      cache_entries_(random_.one_in(4) ? 64 : random_.below(5)),
      limits_{.bytes_max = random_.one_in(3) ? 64ull << 20 : 64 + random_.below(2000)},
      trouble_{.skips = random_.one_in(5),
               .mismatches = random_.one_in(4),
               .duplicates = random_.one_in(24),
               .early_leave = random_.one_in(6),
               .crash = random_.one_in(12),
               .cut = random_.one_in(16),
               .pauses = random_.one_in(4),
               .garbage = random_.one_in(24),
               .zombie = random_.one_in(24),
               .strangers = random_.one_in(12)},
      frame_requests_max_(1 + random_.below(6)),
      network_({.size = size_,
                .seed = random_.next(),
                .delay_ticks_max = 1 + random_.below(40),
                .piece_bytes_max = random_.one_in(16) ? 1 : 1 + random_.below(4096)}),
      oracle_(size_, cache_entries_),
      unordered_(static_cast<std::size_t>(size_)) {
  program_ = make_program(size_, trouble_, random_);
  for (const auto& step : program_.steps)
    if (step.front().spec.kind == OpKind::kAddGroup)
      sets_[step.front().set] = step.front().spec.members;
  for (Rank rank = 0; rank < size_; ++rank)
    clients_.push_back(std::make_unique<Client>(*this, rank));
}

// Whether two ranks wait for each other with a message of one name, because both send or receive.
bool some_crossed(const std::vector<Oracle::Waiting>& waiting) {
  const auto turned = [](const RequestSpec& spec) {
    const Pair pair = pair_of(spec.group);
    return pair_id({.from = pair.to, .to = pair.from});
  };
  return std::ranges::any_of(waiting, [&](const Oracle::Waiting& one) {
    if (one.spec.kind != OpKind::kSend) return false;
    return std::ranges::any_of(waiting, [&](const Oracle::Waiting& other) {
      return other.spec.group == turned(one.spec) && other.spec.name == one.spec.name &&
             other.occurrence == one.occurrence && other.missing != one.missing;
    });
  });
}

void Schedule::run() {
  ++coverage_.schedules;
  std::vector<SimDelivery> deliveries;
  std::uint64_t idle_rounds = 0;
  for (;;) {
    // Ranks act at random moments between arrivals.
    for (std::uint64_t n = random_.below(4); n > 0; --n) act();
    deliveries.clear();
    if (network_.step(deliveries)) {
      idle_rounds = 0;
      for (const SimDelivery& delivery : deliveries)
        clients_[static_cast<std::size_t>(delivery.to)]->handle(delivery);
      continue;
    }
    if (std::all_of(clients_.begin(), clients_.end(), [](const auto& c) { return c->settled(); }))
      break;
    // Nothing is on its way: whoever can still do something does it, then ranks shut down.
    bool moved = false;
    for (Rank rank = 0; rank < size_; ++rank)
      if (network_.running(rank) && network_.paused(rank)) network_.resume(rank), moved = true;
    for (const auto& client : clients_) {
      if (!client->can_act()) continue;
      while (client->submit_some()) moved = true;
      while (client->send_frame()) moved = true;
    }
    if (!moved) {
      coverage_.crossed += some_crossed(oracle_.waiting()) ? 1u : 0u;
      std::vector<Client*> stuck;
      for (const auto& client : clients_)
        if (client->can_act()) stuck.push_back(client.get());
      if (!stuck.empty()) stuck[random_.below(stuck.size())]->leave(), moved = true;
    }
    if (!moved) ++idle_rounds;
    std::string state;
    if (idle_rounds > 2)
      for (const auto& client : clients_) state += "; " + client->describe();
    require(idle_rounds <= 2, "I9: nothing moves and a rank still waits" + state);
  }
  check_end();
}

// One random action of one random rank.
void Schedule::act() {
  const auto rank = static_cast<Rank>(random_.below(static_cast<std::uint64_t>(size_)));
  Client& client = *clients_[static_cast<std::size_t>(rank)];
  if (trouble_.pauses && network_.running(rank)) {
    if (network_.paused(rank) && random_.one_in(4))
      network_.resume(rank);
    else if (random_.one_in(20))
      network_.pause(rank), ++coverage_.pauses;
  }
  if (trouble_.crash && network_.running(rank) && random_.one_in(60)) {
    trouble_.crash = false;
    ++coverage_.lost;
    network_.crash(rank);
    return;
  }
  if (trouble_.cut && rank != 0 && network_.running(rank) && random_.one_in(60)) {
    trouble_.cut = false;
    ++coverage_.lost;
    network_.cut(rank);
  }
  if (!client.can_act()) return;
  if (trouble_.garbage && random_.one_in(60)) {
    trouble_.garbage = false;
    ++coverage_.malformed;
    client.send_garbage();
  }
  if (client.done() ? random_.one_in(4) : trouble_.early_leave && random_.one_in(80)) {
    client.leave();
    return;
  }
  for (std::uint64_t n = random_.below(6); n > 0; --n)
    if (!client.submit_some()) break;
  if (!random_.one_in(4)) client.send_frame();
}

// A frame that no rank has handled yet: what must come of it?
void Schedule::expect(const SimDelivery& delivery) {
  Entry& entry = order_.emplace_back();
  entry.from = delivery.from;
  entry.kind = delivery.kind;
  if (delivery.kind == SimDelivery::Kind::kLost) return;
  ++coverage_.frames;
  auto& sent = unordered_[static_cast<std::size_t>(delivery.from)];
  require(!sent.empty(), "a frame arrives that nobody sent");
  const std::optional<Frame> frame = std::move(sent.front());
  sent.pop_front();
  if (!frame) return;
  const Result<Frame> decoded = decode_frame(delivery.frame);
  require(decoded.ok() && decoded.value() == *frame, "a frame arrives changed, or out of order");
  entry.expected = oracle_.handle(delivery.from, *frame);
  if (!random_.one_in(8)) return;
  Entry::State& state = entry.state.emplace();
  state.waiting = oracle_.waiting();
  for (const RequestSpec& spec : every_spec_) state.known.push_back(oracle_.known(spec));
}

void Schedule::check_end() {
  require(network_.idle(), "I10: something is on its way after the end");
  for (const auto& client : clients_) require(client->settled(), "I9: " + client->describe());
}

}  // namespace

std::optional<std::string> run_schedule(std::uint64_t seed, Coverage& coverage) {
  try {
    Schedule(seed, coverage).run();
    return std::nullopt;
  } catch (const Violation& violation) {
    return violation.text;
  }
}

}  // namespace ciranda::sim
