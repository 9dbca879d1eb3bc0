#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/dtype.h"
#include "core/plan/schedule.h"

namespace ciranda {

// Executes the schedules of all participants on bytes in memory, under an interleaving that a seed
// chooses: connections hold a few bytes at a time, anybody may be late, input appears chunk by
// chunk. Stands for sockets and threads; the reductions are the real kernels.
struct Arithmetic {
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  double postscale = 1.0;
  std::optional<DType> wire_dtype = {};  // of float32: what messages are rounded to
};

using Bytes = std::vector<std::byte>;

struct NetworkOptions {
  bool in_place = false;                // input and output are the same memory
  std::size_t connection_bytes = 4096;  // what a connection holds
  std::uint32_t seed = 1;
};

// schedules[p] is participant p's. Returns the outputs, all bytes 0xEE before; adds a failure if
// anything gets stuck, is left over or reads a byte that is not there yet.
std::vector<Bytes> execute(const std::vector<Schedule>& schedules, const std::vector<Bytes>& inputs,
                           const std::vector<std::size_t>& output_bytes, Arithmetic arithmetic,
                           const NetworkOptions& options);

// On each directed pair and channel: the n-th send has as many bytes as the n-th receive.
void expect_matched(const std::vector<Schedule>& schedules);

std::vector<Schedule> schedules_of(const Collective& collective, Algorithm algorithm, Grain grain);

// `bytes` of small whole numbers, whose sum over 64 participants every type holds exactly.
Bytes whole_numbers(DType dtype, std::size_t bytes, std::uint32_t seed);

// Small numbers of elements in every part, some of them none. Offsets as Collective wants them.
std::vector<std::uint64_t> unequal_offsets(const Collective& collective, std::size_t element_bytes,
                                           std::size_t elements_max, std::uint32_t seed);

// Who contributes how much, and who gets how much, in bytes by participant.
std::vector<std::size_t> input_bytes(const Collective& collective);
std::vector<std::size_t> output_bytes(const Collective& collective);

// What has to come out, computed directly from all inputs. Average divides by `count`.
std::vector<Bytes> expected_outputs(const Collective& collective, const std::vector<Bytes>& inputs,
                                    Arithmetic arithmetic);

// All of the above for one collective.
void expect_correct(const Collective& collective, Algorithm algorithm, Grain grain,
                    Arithmetic arithmetic, const NetworkOptions& options);

}  // namespace ciranda
