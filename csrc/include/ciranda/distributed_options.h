#pragma once

#include <ciranda/ciranda.h>
#include <ciranda/ps.h>

#include <cstdint>
#include <optional>

namespace ciranda {

// Selects who makes the optimizer's step; see docs/optimizer.md, "The shared step".
enum class SharedStepMode : std::uint8_t {
  kOff,   // every rank makes it for itself
  kAuto,  // the ranks of a host share it, unless the model is small or a rank has an objection
  // The ranks of a host share it; an error says what prevents it. backward() leaves each rank's own
  // gradient in p.grad, and step() reduces and updates in one pass.
  kHost,
};

// The format of float32 gradients between hosts: each message is rounded to 16 bits; sums are
// float32. Float32 gradients on a GPU are cast and summed in 16 bits, even on one host.
enum class Compression : std::uint8_t { kNone, kFloat16, kBFloat16 };

// Options of a DistributedOptimizer, the same on every rank.
struct DistributedOptions {
  SharedStepMode shared_step = SharedStepMode::kAuto;
  // step() clips the reduced gradients to this global 2-norm, as torch's clip_grad_norm_ does. A
  // shared step leaves p.grad unclipped.
  std::optional<double> max_grad_norm = {};
  // kAverage, kSum or kAdasum. With kAdasum each rank steps with its own gradients, and step()
  // combines the changes of all ranks; options about reduced gradients are refused.
  Job::Op op = Job::Op::kAverage;
  double gradient_predivide_factor = 1.0;  // f: divide by f before the sum, by size()/f after it
  int backward_passes_per_step = 1;        // their gradients are added up, then reduced
  Compression compression = Compression::kNone;
  bool sparse_as_dense = false;  // sparse gradients are densified instead of gathered
  // Size of a bucket of gradients that are reduced together; default 4 MiB, on a GPU 25 MiB.
  std::optional<std::int64_t> bucket_bytes = {};
  // The ranks of a host keep one copy of the parameters, rank 0's; for models that do not fit into
  // memory once for each rank. Needs a shared step. All ranks of the host see what one of them
  // writes to a parameter.
  bool share_parameters = false;
  // The ranks that train together; only they construct the optimizer.
  ProcessSet process_set = {};

  // The mode of training, in a job with parameter servers (`ciranda run --ps N`).
  std::optional<ps::AnyMode> mode = {};
  ps::UpdateOn update_on = ps::UpdateOn::kServer;
  bool force = false;  // allows a momentum with which stale gradients usually diverge
};

}  // namespace ciranda
