#pragma once

#include <ciranda/ciranda.h>
#include <ciranda/ps.h>

#include <cstdint>
#include <optional>

namespace ciranda {

// Who makes the optimizer's step; docs/optimizer.md, "The shared step".
enum class SharedStepMode : std::uint8_t {
  kOff,   // every rank, for itself
  kAuto,  // the ranks of a host share it where that changes nothing else
  // They share it, or an error says what stands in the way. backward() leaves each rank's own
  // gradient; step() reduces and updates in one pass.
  kHost,
};

// How float32 gradients travel between hosts: each message rounded to 16 bits, sums in float32.
enum class Compression : std::uint8_t { kNone, kFloat16, kBFloat16 };

// Of a DistributedOptimizer; the same on every rank.
struct DistributedOptions {
  SharedStepMode shared_step = SharedStepMode::kAuto;
  // step() clips the reduced gradients to this global 2-norm, as torch's clip_grad_norm_ does. A
  // shared step leaves the gradients themselves unclipped.
  std::optional<double> max_grad_norm = {};
  Job::Op op = Job::Op::kAverage;          // or kSum
  double gradient_predivide_factor = 1.0;  // f: divide by f before the sum, by size()/f after it
  int backward_passes_per_step = 1;        // whose gradients are added up before they are reduced
  Compression compression = Compression::kNone;
  bool sparse_as_dense = false;  // sparse gradients are densified instead of gathered
  // Of gradients that are reduced together; by itself 4 MiB, on a GPU 25 MiB.
  std::optional<std::int64_t> bucket_bytes = {};
  // With a shared step: the ranks of a host keep one copy of the parameters, rank 0's, for models
  // whose copies do not fit. What one rank writes into a parameter, all see.
  bool share_parameters = false;
  // Whose ranks train together; they alone make the optimizer.
  ProcessSet process_set = {};

  // In a job with parameter servers (`ciranda run --ps N`): they train the model in this mode.
  std::optional<ps::AnyMode> mode = {};
  ps::UpdateOn update_on = ps::UpdateOn::kServer;
  bool force = false;  // also with a momentum that stale gradients usually make diverge
};

}  // namespace ciranda
