#include "sim/program.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace ciranda::sim {
namespace {

// That ranks submit under a name.
constexpr OpKind kKinds[] = {OpKind::kAllreduce, OpKind::kBroadcast,     OpKind::kAllgather,
                             OpKind::kAlltoall,  OpKind::kReducescatter, OpKind::kBarrier,
                             OpKind::kGather,    OpKind::kScatter,       OpKind::kReduce};

}  // namespace

std::vector<Rank> make_members(int size, SimRandom& random) {
  std::vector<Rank> members;
  while (members.empty())
    for (Rank rank = 0; rank < size; ++rank)
      if (random.one_in(2)) members.push_back(rank);
  return members;
}

RequestSpec make_spec(const std::string& name, const std::vector<Rank>& members,
                      const Trouble& trouble, SimRandom& random) {
  RequestSpec spec{.name = name};
  if (!name.empty() && random.one_in(2)) spec.kind = kKinds[random.below(std::size(kKinds))];
  if (spec.kind == OpKind::kAllreduce || spec.kind == OpKind::kReduce) {
    spec.op = static_cast<ReduceOp>(random.below(random.one_in(8) ? kElementwiseOpCount : 2));
    if (random.one_in(6)) spec.prescale = 0.5;
    if (random.one_in(6)) spec.postscale = 2.0;
  }
  if (spec.kind == OpKind::kAllreduce && random.one_in(5)) {
    spec.in_arena = true;
    spec.arena_bytes = 1 << 20;
  }
  if (facts_of(spec.kind).has_root) {
    const bool is_wrong = trouble.mismatches && random.one_in(4);
    spec.root = is_wrong ? members.back() + 1 : members[random.below(members.size())];
  }
  if (spec.kind == OpKind::kBarrier) return spec;
  const bool open_rows = takes_rows(spec.kind);
  const bool is_one = facts_of(spec.kind).tensors == TensorCount::kOne;
  const std::size_t tensors = !is_one && random.one_in(4) ? 1 + random.below(4) : 1;
  for (std::size_t i = 0; i < tensors; ++i) {
    TensorSpec tensor{.dtype = random.one_in(3) ? DType::kFloat16 : DType::kFloat32};
    for (std::uint64_t dims = random.below(3); dims > 0; --dims)
      tensor.shape.push_back(static_cast<std::int64_t>(random.below(12)));
    if (open_rows) tensor.shape.insert(tensor.shape.begin(), kAnyRows);
    if (spec.kind == OpKind::kReducescatter && tensor.shape.empty()) tensor.shape.push_back(1);
    if (spec.in_arena && i > 0) tensor.dtype = spec.tensors.front().dtype;
    if (random.one_in(6)) tensor.user_dtype = UserDType::kFloat8E5M2;
    spec.tensors.push_back(tensor);
  }
  const bool is_float32 = std::ranges::all_of(
      spec.tensors, [](const TensorSpec& tensor) { return tensor.dtype == DType::kFloat32; });
  if (!spec.in_arena && random.one_in(6)) spec.backend = BackendId::kNccl;
  const bool is_native = spec.backend == BackendId::kNative;
  const bool adds = spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAverage;
  if (spec.kind == OpKind::kAllreduce && adds && is_float32 && is_native && random.one_in(5))
    spec.wire_dtype = DType::kBFloat16;
  if (spec.kind == OpKind::kAllreduce && is_native && random.one_in(5)) spec.streams = 2;
  return spec;
}

RequestSpec make_message(const std::string& name, Pair pair, SimRandom& random) {
  RequestSpec spec{.name = name, .kind = OpKind::kSend, .group = pair_id(pair), .root = pair.from};
  if (random.one_in(6)) spec.backend = BackendId::kNccl;
  spec.tensors.push_back({.shape = {static_cast<std::int64_t>(random.below(12))}});
  return spec;
}

namespace {

// Steps that repeat the same names, in the World and in groups that come and go.
class Writer {
 public:
  Writer(int size, const Trouble& trouble, SimRandom& random)
      : size_(size),
        trouble_(trouble),
        random_(random),
        names_(1 + random.below(6)),
        step_ops_(names_ + random.below(3)),
        sharing_(random.one_in(2) ? 2 : 1) {}

  Program write() {
    const bool with_groups = random_.one_in(3);
    const bool with_joins = random_.one_in(4);
    for (auto count = random_.one_in(3) ? 1 + random_.below(2) : 0; count > 0; --count)
      pairs_.push_back(random_pair());
    for (std::size_t step = 0, steps = 1 + random_.below(5); step < steps; ++step) {
      if (with_groups && random_.one_in(2)) change_groups();
      write_step();
      if (!pairs_.empty()) add_messages(program_.steps.back());
      if (with_joins && random_.one_in(2)) join();
    }
    return std::move(program_);
  }

 private:
  struct Set {
    std::vector<Rank> members;
    bool exists = true;
  };

  Pair random_pair() {
    const auto size = static_cast<std::uint64_t>(size_);
    const std::uint64_t from = random_.below(size);
    const std::uint64_t to = (from + 1 + random_.below(size - 1)) % size;
    return {.from = static_cast<Rank>(from), .to = static_cast<Rank>(to)};
  }

  void write_alone(const ProgramOp& op) { program_.steps.push_back({op}); }

  void change_groups() {
    const int set = static_cast<int>(random_.below(sets_.size() + 1));
    const auto index = static_cast<std::size_t>(set);
    if (!pairs_.empty() && random_.one_in(4)) {  // which fails
      write_alone({.spec = {.kind = OpKind::kRemoveGroup, .removes = pair_id(pairs_.front())},
                   .occurrence = unnamed_[{ProgramOp::kNoSet, OpKind::kRemoveGroup}]++});
    } else if (index == sets_.size()) {
      sets_.push_back({make_members(size_, random_)});
      write_alone({.spec = {.kind = OpKind::kAddGroup, .members = sets_.back().members},
                   .occurrence = unnamed_[{ProgramOp::kNoSet, OpKind::kAddGroup}]++,
                   .set = set});
    } else if (sets_[index].exists) {
      sets_[index].exists = false;
      write_alone({.spec = {.kind = OpKind::kRemoveGroup},
                   .occurrence = unnamed_[{ProgramOp::kNoSet, OpKind::kRemoveGroup}]++,
                   .set = set});
    }
  }

  // Whoever has joined has not counted what the others did since: all begin to count anew.
  void join() {
    write_alone({.spec = {.kind = OpKind::kJoin}});
    unnamed_.clear();
  }

  void write_step() {
    std::vector<ProgramOp>& step = program_.steps.emplace_back();
    for (std::size_t place = 0; place < step_ops_; ++place) {
      step.push_back(op_at(place, ProgramOp::kNoSet, all_ranks()));
      // The same name in a group, too.
      if (sets_.empty() || random_.one_in(2)) continue;
      const auto set = random_.below(sets_.size());
      if (sets_[set].exists)
        step.push_back(op_at(place, static_cast<int>(set), sets_[set].members));
    }
  }

  // Up to three at once in each pair, either way, under names of collectives or without one.
  void add_messages(std::vector<ProgramOp>& step) {
    for (std::uint64_t tag = 0, count = random_.below(4); tag < count; ++tag) {
      Pair pair = pairs_[random_.below(pairs_.size())];
      if (random_.one_in(3)) std::swap(pair.from, pair.to);
      const std::string name = random_.one_in(3) ? "" : "grad." + std::to_string(tag);
      auto [spec, is_new] = messages_.try_emplace({pair_id(pair), name});
      if (is_new || random_.one_in(8)) spec->second = make_message(name, pair, random_);
      ProgramOp op{.spec = spec->second};
      if (name.empty()) op.occurrence = unnamed_[{op.spec.group, OpKind::kSend}]++;
      step.push_back(std::move(op));
    }
  }

  std::vector<Rank> all_ranks() const {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < size_; ++rank) ranks.push_back(rank);
    return ranks;
  }

  ProgramOp op_at(std::size_t place, int set, const std::vector<Rank>& members) {
    // Two neighbours have one name, and then kinds of their own.
    const std::string name = place < names_ ? "grad." + std::to_string(place / sharing_) : "";
    auto [spec, is_new] = current_.try_emplace({set, std::min(place, names_)});
    // A new shape under an old name now and then; a new name in the middle of the job too.
    if (is_new || random_.one_in(8)) {
      const bool shares = sharing_ == 2 && place < names_ && (place ^ 1) < names_;
      const auto neighbour = shares ? current_.find({set, place ^ 1}) : current_.end();
      do {
        spec->second = make_spec(name, members, trouble_, random_);
      } while (neighbour != current_.end() && spec->second.kind == neighbour->second.kind);
    }
    ProgramOp op{.spec = spec->second, .set = set};
    if (name.empty()) op.occurrence = unnamed_[{set, op.spec.kind}]++;
    return op;
  }

  const int size_;
  const Trouble& trouble_;
  SimRandom& random_;
  const std::size_t names_;
  const std::size_t step_ops_;
  const std::size_t sharing_;
  Program program_;
  std::vector<Set> sets_;
  std::map<std::pair<int, std::size_t>, RequestSpec> current_;  // by group and place in the step
  std::vector<Pair> pairs_;                                     // that send messages
  std::map<std::pair<GroupId, std::string>, RequestSpec> messages_;
  // By place in sets_, kNoSet or the number of a pair.
  std::map<std::pair<std::int64_t, OpKind>, std::uint32_t> unnamed_;
};

}  // namespace

Program make_program(int size, const Trouble& trouble, SimRandom& random) {
  return Writer(size, trouble, random).write();
}

}  // namespace ciranda::sim
