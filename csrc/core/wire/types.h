#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace ciranda {

using Rank = std::int32_t;
inline constexpr Rank kNoRank = -1;

// Counts the meetings of a job's ranks. The handshake refuses a caller from another epoch.
using Epoch = std::uint64_t;

// Grows with each start of a rank, so that a restarted process replaces the one that died.
using Incarnation = std::uint64_t;

// The number of a known RequestSpec. Numbers are handed out in log order and never reused. 0 means
// "not known".
using CacheId = std::uint32_t;
inline constexpr CacheId kNoCacheId = 0;

// The number of a group of ranks (Horovod's process set). Numbers are handed out in log order and
// never reused.
using GroupId = std::uint32_t;
inline constexpr GroupId kWorldGroup = 0;  // all ranks; always exists

// The values are on the wire: append only.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAverage = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kAdasum = 5,  // combines whole tensors (plan/adasum); the other ops go element by element
};
inline constexpr int kReduceOpCount = 6;
inline constexpr int kElementwiseOpCount = 5;

// The backend that runs an operation. Each has a row in kBackends. The values are on the wire:
// append only.
enum class BackendId : std::uint8_t {
  kNative = 0,  // shared memory within a host, our ring between hosts
  kGloo = 1,
  kNccl = 2,
};

// The facts about a backend that negotiation needs. CMake also reads the rows of kBackends, for the
// names in the registry and the launcher.
struct BackendTraits {
  BackendId id = BackendId::kNative;
  std::string_view name;        // as a value of CIRANDA_CPU_OPERATIONS or CIRANDA_GPU_OPERATIONS
  bool on_gpu = false;          // works on memory of NVIDIA GPUs instead of the CPU's
  bool reduces_float8 = false;  // no backend on the CPU does
};
inline constexpr BackendTraits kBackends[] = {
    {.id = BackendId::kNative, .name = "native"},
    {.id = BackendId::kGloo, .name = "gloo"},
    {.id = BackendId::kNccl, .name = "nccl", .on_gpu = true, .reduces_float8 = true},
};
inline constexpr int kBackendCount = std::size(kBackends);

constexpr const BackendTraits& traits_of(BackendId backend) {
  return kBackends[static_cast<std::size_t>(backend)];
}
static_assert(
    [] {
      for (std::uint8_t i = 0; i < kBackendCount; ++i) {
        if (kBackends[i].id != BackendId{i}) return false;
      }
      return true;
    }(),
    "rows in the order of their numbers");
constexpr std::string_view backend_name(BackendId backend) {
  return traits_of(backend).name;
}

constexpr std::string_view reduce_op_name(ReduceOp op) {
  constexpr std::string_view kNames[kReduceOpCount] = {"Sum", "Average", "Min",
                                                       "Max", "Product", "Adasum"};
  return kNames[static_cast<std::size_t>(op)];
}

// Every limit of the wire format. A value beyond a limit is refused with an error that names it.
inline constexpr int kRanksMax = 4096;             // ranks of a job
inline constexpr int kAdasumRanksMax = 256;        // every two ranks need a dot product
inline constexpr int kLocalRanksMax = 256;         // ranks of one host; each has a page of flags
inline constexpr std::size_t kGroupsMax = 1024;    // groups at a time, besides the World
inline constexpr std::size_t kNameBytesMax = 256;  // a tensor's name, UTF-8
inline constexpr std::size_t kRuleBytesMax = 256;  // an update rule in words
inline constexpr std::size_t kDimsMax = 16;        // torch's own practical bound is lower
inline constexpr std::size_t kTensorsPerRequestMax = 4096;  // tensors of one grouped operation
inline constexpr std::size_t kRequestsPerFrameMax = 4096;
inline constexpr std::size_t kInlineBytesMax = 64;  // a tensor that travels in its Request
inline constexpr std::size_t kFrameBytesMax = std::size_t{256} * 1024;  // one append to the log
inline constexpr std::size_t kFrameHeaderBytes = 5;  // at most: kind, host, number of Requests
inline constexpr std::size_t kSealedPayloadBytesMax = std::size_t{1} << 20;  // one sealed frame
inline constexpr int kPairStreamsMax = 64;  // connections of one purpose between two ranks
inline constexpr std::int64_t kTensorBytesMax = 1ll << 40;  // one rank's part of one tensor
inline constexpr std::uint64_t kArenaBytesMax = 1ull
                                                << 41;  // one rank's part of an in_arena operation
inline constexpr std::size_t kErrorTextBytesMax = 4096;
inline constexpr std::size_t kInFlightMax = 65536;         // unfinished submissions of one rank
inline constexpr std::size_t kCacheEntriesDefault = 4096;  // known RequestSpecs
static_assert(kFrameBytesMax <= kSealedPayloadBytesMax, "a frame fits one sealed frame");
static_assert(kTensorsPerRequestMax * 32 <= kFrameBytesMax, "as many 2-D tensors fit one frame");
static_assert(kRequestsPerFrameMax < 1 << 14, "the number of requests is a varint of two bytes");
static_assert(kTensorBytesMax <= INT64_MAX / static_cast<std::int64_t>(kTensorsPerRequestMax),
              "the bytes of an operation on one rank fit 64 bits");

}  // namespace ciranda
