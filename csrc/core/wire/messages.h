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

// The control messages, one struct each; docs/protocol.md gives the bytes. Everything here is plain
// data: no I/O, no clock.

using Shape = std::vector<std::int64_t>;  // sizes by dimension; empty for a 0-dim tensor

struct TensorSpec {
  DType dtype = DType::kFloat32;
  // Kinds with takes_rows store kAnyRows as dimension 0, because it may differ by rank. The number
  // of each rank's rows travels in its Contribution.
  Shape shape = {};
  UserDType user_dtype = UserDType::kSame;
  bool operator==(const TensorSpec&) const = default;
};
inline constexpr std::int64_t kAnyRows = -1;

// The part of a Request that must be equal on every member of the group before the operation runs.
// A grouped allreduce is one RequestSpec with several tensors and is negotiated as a whole.
struct RequestSpec {
  std::string name = {};
  OpKind kind = OpKind::kAllreduce;
  GroupId group = kWorldGroup;   // the ranks that take part
  ReduceOp op = ReduceOp::kSum;  // reductions only, else kSum
  Rank root = kNoRank;           // kinds with has_root only: the root's rank in the World
  double prescale = 1.0;         // reductions only
  double postscale = 1.0;
  // The tensors already lie in the arena, each rank's at the ArenaRef of its Contribution.
  // Allreduce only, and all tensors have one dtype.
  bool in_arena = false;
  // in_arena only: bytes of each rank's memory there, with the padding between and behind tensors.
  std::uint64_t arena_bytes = 0;
  // The dtype to which the data are rounded between hosts: kFloat16 or kBFloat16. Only an allreduce
  // of float32 tensors by Sum or Average may have one. Empty: the data travel unrounded.
  std::optional<DType> wire_dtype = {};
  // The number of connections between two ranks of different hosts over which the data are striped.
  // The ring backend's streams_max caps it. 0: CIRANDA_STREAMS. Native allreduce only.
  std::uint8_t streams = 0;
  BackendId backend = BackendId::kNative;  // kNative for kinds that move no data
  // The update that every rank makes with the sum, in words ("Adam lr=0.001 ..."). Empty: none.
  // in_arena only.
  std::string rule = {};
  std::vector<TensorSpec> tensors = {};
  std::vector<Rank> members = {};  // kAddGroup only: the new group's ranks, ascending
  GroupId removes = kWorldGroup;   // kRemoveGroup only: any group but the World
  bool operator==(const RequestSpec&) const = default;
};

// The place of a rank's data in shared memory.
struct ArenaRef {
  std::uint32_t segment = 0;  // the number that the segment's owner gave it
  std::uint64_t offset = 0;   // bytes from the segment's start
  bool operator==(const ArenaRef&) const = default;
};
// Sent by a rank that should provide a region for a new group or a pair and has no memory for it.
inline constexpr ArenaRef kNoRegion{.segment = UINT32_MAX};

// The part of a Request that belongs to one rank and may differ between ranks and from call to
// call.
struct Contribution {
  std::uint32_t token = 0;              // the submitter's own number, returned untouched
  std::vector<std::int64_t> rows = {};  // allgather: rows of each tensor; kinds that run as
                                        // alltoall: rows to send to each rank (splits)
  // in_arena: the place of the data. kAddGroup, or an operation of a pair: the place of a region
  // for the members on this host.
  ArenaRef arena = {};
  // SHA-256 of this rank's bytes, for payload that the receiver parses: frames between hosts are
  // sealed, payload may not be. Only for operations with rows.
  std::optional<Digest> digest = {};
  // The tensor itself, if it has at most kInlineBytesMax bytes. Empty: the data move separately.
  InlineVector<std::byte, 16> inline_data = {};
  bool operator==(const Contribution&) const = default;
};

// "This rank is ready for that operation."
struct Request {
  // A known RequestSpec travels as its number, a new one in full. Exactly one of the two is set.
  CacheId cache_id = kNoCacheId;
  std::optional<RequestSpec> spec = {};
  // Counts unnamed operations of one kind: the n-th of every rank belong together.
  std::uint32_t occurrence = 0;
  Contribution contribution = {};
  bool operator==(const Request&) const = default;
};

// A known operation without any rank's Contribution.
struct KnownOp {
  CacheId cache_id = kNoCacheId;
  std::uint32_t occurrence = 0;
  bool operator==(const KnownOp&) const = default;
  bool operator<(const KnownOp& other) const {
    return std::tie(cache_id, occurrence) < std::tie(other.cache_id, other.occurrence);
  }
};

// "All members of the group, on one host or in the job, are ready for that operation." It replaces
// the Requests that each of them would have sent. Only operations without rows are aggregated.
struct ReadyOp {
  KnownOp op = {};
  // Contributions of the members on the reader's host, by local rank. That host's first rank adds
  // them before it appends the frame to the log. Empty between hosts and in a frame about another
  // host.
  std::vector<Contribution> contributions = {};
  // The local ranks of `contributions`, ascending. Empty: every rank of the host contributes, or
  // none does.
  std::vector<int> local_ranks = {};
  bool operator==(const ReadyOp&) const = default;
};
inline constexpr int kAllHosts = -1;

enum class FrameKind : std::uint8_t {
  kRequests = 0,
  kLeave = 1,  // the rank shuts down cleanly; no frame of it follows
  kReady = 2,  // aggregated Requests; sent by the first rank of a host
};

// The Requests and notices of one rank that travel in one piece. Frames are totally ordered over
// all ranks.
struct Frame {
  FrameKind kind = FrameKind::kRequests;
  std::vector<Request> requests = {};
  int host = kAllHosts;  // kReady only: the host whose members are ready
  std::vector<ReadyOp> ready = {};
  bool operator==(const Frame&) const = default;
};

// Appends the frame's bytes to `out`. Asserts the limits of wire/types.h: callers first check each
// Request with check_limits (request_check.h).
void encode(const Frame& frame, std::vector<std::byte>& out);

// Decodes a frame of untrusted bytes. Returns kMalformed with the field and the offset of the first
// fault. Never throws, and allocates only what the bytes can hold.
Result<Frame> decode_frame(std::span<const std::byte> bytes);

// Decodes into `frame` and reuses its memory. An error leaves its contents unspecified.
Status decode_frame(std::span<const std::byte> bytes, Frame& frame);

// Returns the kind that the first byte names, or nullopt, without a look at the rest.
std::optional<FrameKind> kind_of(std::span<const std::byte> frame);

// Returns the bytes that `request` takes within a frame. Requests fit one frame while their sum
// plus kFrameHeaderBytes is at most kFrameBytesMax and their number at most kRequestsPerFrameMax.
std::size_t encoded_bytes(const Request& request);
// Returns the bytes that `ready` takes within a kReady frame, whose header takes at most
// kFrameHeaderBytes.
std::size_t encoded_bytes(const ReadyOp& ready);
// Returns the most bytes that a frame with one Request of `spec` and `contribution` can take. It
// assumes the longest occurrence, so it stays valid when the same spec is submitted again.
std::size_t frame_bytes_max(const RequestSpec& spec, const Contribution& contribution);

// Returns the user's dtype and shape, "float32 [3, 4]". kAnyRows prints as "*".
std::string to_string(const TensorSpec& spec);

// Returns the number of elements of one tensor: 1 for 0-dim, 0 if any dimension is 0. kAnyRows
// counts as 1.
std::int64_t element_count(const Shape& shape);
// `tensor` has passed check_limits(), so the product does not overflow.
inline std::uint64_t tensor_bytes(const TensorSpec& tensor) {
  return static_cast<std::uint64_t>(element_count(tensor.shape)) * dtype_bytes(tensor.dtype);
}

}  // namespace ciranda
