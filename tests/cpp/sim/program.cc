#include "sim/program.h"

#include <algorithm>
#include <map>

namespace ciranda::sim {

RequestSpec make_spec(const std::string& name, int size, const Trouble& trouble,
                      SimRandom& random) {
  RequestSpec spec{.name = name};
  const auto kind = random.below(12);
  if (kind >= 6 || name.empty()) {
    spec.op = static_cast<ReduceOp>(random.below(2));
    if (random.one_in(6)) spec.prescale = 0.5;
    if (random.one_in(6)) spec.postscale = 2.0;
    spec.in_arena = random.one_in(5);
  } else {
    spec.kind = static_cast<OpKind>(kind);
    if (spec.kind == OpKind::kBroadcast)
      spec.root = static_cast<Rank>(random.below(static_cast<std::uint64_t>(size)));
  }
  if (spec.kind == OpKind::kBroadcast && trouble.mismatches && random.one_in(4)) spec.root = size;
  if (spec.kind == OpKind::kBarrier) return spec;
  const bool open_rows = spec.kind == OpKind::kAllgather || spec.kind == OpKind::kAlltoall;
  const std::size_t tensors =
      spec.kind != OpKind::kAlltoall && random.one_in(4) ? 1 + random.below(4) : 1;
  for (std::size_t i = 0; i < tensors; ++i) {
    TensorSpec tensor{.dtype = random.one_in(3) ? DType::kFloat16 : DType::kFloat32};
    for (std::uint64_t dims = random.below(3); dims > 0; --dims)
      tensor.shape.push_back(static_cast<std::int64_t>(random.below(12)));
    if (open_rows) tensor.shape.insert(tensor.shape.begin(), kAnyRows);
    if (spec.in_arena && i > 0) tensor.dtype = spec.tensors.front().dtype;
    spec.tensors.push_back(tensor);
  }
  const bool is_float32 = std::ranges::all_of(
      spec.tensors, [](const TensorSpec& tensor) { return tensor.dtype == DType::kFloat32; });
  if (!spec.in_arena && random.one_in(6)) spec.backend = BackendId::kNccl;
  const bool is_native = spec.backend == BackendId::kNative;
  if (spec.kind == OpKind::kAllreduce && is_float32 && is_native && random.one_in(5))
    spec.wire_dtype = DType::kBFloat16;
  return spec;
}

Program make_program(int size, const Trouble& trouble, SimRandom& random) {
  Program program;
  const std::size_t names = 1 + random.below(6);
  program.step_ops = names + random.below(3);
  std::map<std::size_t, RequestSpec> current;  // by place in the step
  std::map<OpKind, std::uint32_t> unnamed;
  // Two neighbours have one name, and then kinds of their own.
  const std::size_t sharing = random.one_in(2) ? 2 : 1;
  const std::size_t steps = 1 + random.below(5);
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < program.step_ops; ++i) {
      const std::string name = i < names ? "grad." + std::to_string(i / sharing) : "";
      auto [spec, is_new] = current.try_emplace(std::min(i, names));
      // A new shape under an old name now and then; a new name in the middle of the job too.
      if (is_new || random.one_in(8)) {
        const bool shares = sharing == 2 && i < names && (i ^ 1) < names;
        const auto neighbour = shares ? current.find(i ^ 1) : current.end();
        do {
          spec->second = make_spec(name, size, trouble, random);
        } while (neighbour != current.end() && spec->second.kind == neighbour->second.kind);
      }
      ProgramOp op{.spec = spec->second};
      if (name.empty()) op.occurrence = unnamed[op.spec.kind]++;
      program.ops.push_back(op);
    }
  }
  return program;
}

}  // namespace ciranda::sim
