#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/inline_vector.h"
#include "core/base/result.h"
#include "core/base/secret.h"
#include "core/wire/op_kind.h"
#include "core/wire/types.h"

namespace ciranda {

// Control messages, one struct each; docs/protocol.md gives the bytes. Everything here is plain
// data: no I/O, no clock.

using Shape = std::vector<std::int64_t>;  // sizes by dimension; empty for a 0-dim tensor

struct TensorSpec {
  DType dtype = DType::kFloat32;
  // allgather and alltoall: dimension 0 may differ by rank, so it is stored as kAnyRows here and
  // each rank's own rows travel in its Contribution.
  Shape shape = {};
  UserDType user_dtype = UserDType::kSame;
  bool operator==(const TensorSpec&) const = default;
};
inline constexpr std::int64_t kAnyRows = -1;

// What must be equal on every member of its group for an operation to run. A grouped allreduce is
// one RequestSpec with several tensors: it is negotiated as a whole.
struct RequestSpec {
  std::string name = {};
  OpKind kind = OpKind::kAllreduce;
  GroupId group = kWorldGroup;   // whose ranks take part
  ReduceOp op = ReduceOp::kSum;  // reductions only, else kSum
  Rank root = kNoRank;           // broadcast only: its rank in the World
  double prescale = 1.0;         // reductions only
  double postscale = 1.0;
  // The tensors already lie in the arena, each rank's at the place its Contribution names.
  // Allreduce only, all of one dtype.
  bool in_arena = false;
  // in_arena: of each rank's memory there; the tensors and what lies between and behind them.
  std::uint64_t arena_bytes = 0;
  // What the data are rounded to on their way between hosts: kFloat16 or kBFloat16, for sums and
  // averages of float32 tensors by allreduce. None: they travel as they are.
  std::optional<DType> wire_dtype = {};
  // Over how many connections of two ranks of different hosts the data are striped, if there may be
  // as many; 0: CIRANDA_STREAMS. Allreduce only.
  std::uint8_t streams = 0;
  BackendId backend = BackendId::kNative;  // what runs it; kNative for a barrier
  // What every rank does with the sum, in words ("Adam lr=0.001 ..."); empty: nothing. in_arena
  // only.
  std::string rule = {};
  std::vector<TensorSpec> tensors = {};
  std::vector<Rank> members = {};  // kAddGroup only: ascending
  GroupId removes = kWorldGroup;   // kRemoveGroup only: another one
  bool operator==(const RequestSpec&) const = default;
};

// Where a rank's data of an in_arena request lies.
struct ArenaRef {
  std::uint32_t segment = 0;  // the number its owner gave the segment
  std::uint64_t offset = 0;   // bytes from the segment's start
  bool operator==(const ArenaRef&) const = default;
};
// Of a kAddGroup, from the rank that should provide a region: it has no memory for one.
inline constexpr ArenaRef kNoRegion{.segment = UINT32_MAX};

// What belongs to one rank's submission and may differ between ranks and from call to call.
struct Contribution {
  std::uint32_t token = 0;              // the submitter's own number for it, returned untouched
  std::vector<std::int64_t> rows = {};  // allgather: rows of each tensor; what runs as
                                        // alltoall: rows to send to each rank (splits)
  // in_arena: where the data lies; kAddGroup, of a pair: memory for the members on this host.
  ArenaRef arena = {};
  // Of this rank's bytes, where who gets them parses them: frames are sealed on their way, payload
  // is not. Only where there are rows.
  std::optional<Digest> digest = {};
  // The tensor itself, where it has few bytes; at most kInlineBytesMax. Empty: it lies elsewhere.
  InlineVector<std::byte, 16> inline_data = {};
  bool operator==(const Contribution&) const = default;
};

// "This rank is ready for that operation."
struct Request {
  // A known RequestSpec travels as its number, a new one whole: exactly one of the two is set.
  CacheId cache_id = kNoCacheId;
  std::optional<RequestSpec> spec = {};
  // Distinguishes unnamed operations of one kind: the n-th on every rank belong together.
  std::uint32_t occurrence = 0;
  Contribution contribution = {};
  bool operator==(const Request&) const = default;
};

// A known operation, without any rank's part in it.
struct KnownOp {
  CacheId cache_id = kNoCacheId;
  std::uint32_t occurrence = 0;
  bool operator==(const KnownOp&) const = default;
  bool operator<(const KnownOp& other) const {
    return std::tie(cache_id, occurrence) < std::tie(other.cache_id, other.occurrence);
  }
};

// "All members of its group, on a host or in the job, are ready for that operation." Stands for the
// Requests that each of them would have sent; only operations without rows.
struct ReadyOp {
  KnownOp op = {};
  // Of the members on the reader's host, by local rank, once it is in the log of that host. Empty
  // between hosts, and where the frame speaks of another host.
  std::vector<Contribution> contributions = {};
  // Whose they are, ascending. Empty: they are of every rank of the host, or there are none.
  std::vector<int> local_ranks = {};
  bool operator==(const ReadyOp&) const = default;
};
inline constexpr int kAllHosts = -1;

enum class FrameKind : std::uint8_t {
  kRequests = 0,
  kLeave = 1,  // this rank shuts down cleanly; nothing follows from it
  kReady = 2,  // aggregated Requests; sent by the first rank of a host
};

// What one rank says in one piece; frames are totally ordered over all ranks.
struct Frame {
  FrameKind kind = FrameKind::kRequests;
  std::vector<Request> requests = {};
  int host = kAllHosts;  // kReady: whose ranks are ready
  std::vector<ReadyOp> ready = {};
  bool operator==(const Frame&) const = default;
};

// Appends the frame's bytes to `out`. Asserts the limits of wire/types.h: callers check them with
// check_limits (request_check.h) first.
void encode(const Frame& frame, std::vector<std::byte>& out);

// Never throws; allocates only what the bytes can hold. kMalformed names field and offset.
Result<Frame> decode_frame(std::span<const std::byte> bytes);

// The same into a frame whose memory is used again. After an error its contents mean nothing.
Status decode_frame(std::span<const std::byte> bytes, Frame& frame);

// What kind of frame begins so, without a look at the rest. nullopt: it is none.
std::optional<FrameKind> kind_of(std::span<const std::byte> frame);

// Bytes that `request` takes within a frame. Requests fit one frame while their sum plus
// kFrameHeaderBytes is at most kFrameBytesMax and their number at most kRequestsPerFrameMax.
std::size_t encoded_bytes(const Request& request);
// The same of one operation of a kReady frame, whose header takes kFrameHeaderBytes too.
std::size_t encoded_bytes(const ReadyOp& ready);
// Of a frame with that Request alone, with the longest occurrence, so that it holds for every
// later sending too.
std::size_t frame_bytes_max(const RequestSpec& spec, const Contribution& contribution);

// As its user has it: "float32 [3, 4]"; kAnyRows prints as "*".
std::string to_string(const TensorSpec& spec);

// Elements of one tensor (1 for 0-dim, 0 if any dimension is 0). kAnyRows counts as 1.
std::int64_t element_count(const Shape& shape);
// Of check_limits()' tensors, so that it fits.
inline std::uint64_t tensor_bytes(const TensorSpec& tensor) {
  return static_cast<std::uint64_t>(element_count(tensor.shape)) * dtype_bytes(tensor.dtype);
}

}  // namespace ciranda
