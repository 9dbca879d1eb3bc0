#include "core/wire/messages.h"

#include <algorithm>

#include "core/base/assert.h"
#include "core/wire/codec.h"
#include "core/wire/spec_codec.h"

namespace ciranda {
namespace {

// The bits of a Request's first byte. A field that is zero or empty is left out, so each value has
// exactly one encoding.
constexpr std::uint8_t kHasSpec = 1;
constexpr std::uint8_t kHasOccurrence = 2;
constexpr std::uint8_t kHasArena = 4;
constexpr std::uint8_t kHasRows = 8;
constexpr std::uint8_t kHasDigest = 16;
constexpr std::uint8_t kHasInlineData = 32;
constexpr std::uint8_t kFlagsMax = 63;

constexpr std::size_t kRequestBytesMin = 3;    // flags, cache id, token
constexpr std::size_t kReadyBytesMin = 3;      // cache id, occurrence, number of contributions
constexpr std::size_t kReadyPartBytesMin = 3;  // token, segment, offset

std::uint8_t flags_of(const Request& request) {
  std::uint8_t flags = 0;
  if (request.spec.has_value()) flags |= kHasSpec;
  if (request.occurrence != 0) flags |= kHasOccurrence;
  if (request.contribution.arena != ArenaRef{}) flags |= kHasArena;
  if (!request.contribution.rows.empty()) flags |= kHasRows;
  if (request.contribution.digest) flags |= kHasDigest;
  if (!request.contribution.inline_data.empty()) flags |= kHasInlineData;
  return flags;
}

std::size_t contribution_bytes(const Contribution& contribution) {
  std::size_t bytes = varint_bytes(contribution.token);
  if (contribution.arena != ArenaRef{})
    bytes += varint_bytes(contribution.arena.segment) + varint_bytes(contribution.arena.offset);
  if (!contribution.rows.empty()) bytes += varint_bytes(contribution.rows.size());
  for (const std::int64_t rows : contribution.rows)
    bytes += varint_bytes(static_cast<std::uint64_t>(rows));
  if (contribution.digest) bytes += sizeof(Digest);
  if (!contribution.inline_data.empty()) bytes += 1 + contribution.inline_data.size();
  return bytes;
}

void write_request(Writer& out, const Request& request) {
  CIRANDA_ASSERT(request.spec.has_value() == (request.cache_id == kNoCacheId));
  const std::uint8_t flags = flags_of(request);
  out.u8(flags);
  if (request.spec.has_value()) {
    write_spec(out, *request.spec);
  } else {
    out.varint(request.cache_id);
  }
  if ((flags & kHasOccurrence) != 0) out.varint(request.occurrence);
  const Contribution& own = request.contribution;
  out.varint(own.token);
  if ((flags & kHasArena) != 0) {
    out.varint(own.arena.segment);
    out.varint(own.arena.offset);
  }
  if ((flags & kHasInlineData) != 0) {
    CIRANDA_ASSERT(own.inline_data.size() <= kInlineBytesMax);
    out.u8(static_cast<std::uint8_t>(own.inline_data.size()));
    out.bytes({own.inline_data.begin(), own.inline_data.end()});
  }
  if ((flags & kHasRows) == 0) return;
  if (own.digest) out.bytes(*own.digest);
  CIRANDA_ASSERT(own.rows.size() <= kTensorsPerRequestMax);
  out.varint(own.rows.size());
  for (const std::int64_t rows : own.rows) {
    CIRANDA_ASSERT(rows >= 0 && rows <= kTensorBytesMax);
    out.varint(static_cast<std::uint64_t>(rows));
  }
}

void read_arena(Reader& in, ArenaRef& arena) {
  arena.segment = static_cast<std::uint32_t>(in.varint("request.segment", UINT32_MAX));
  arena.offset = in.varint("request.offset", UINT64_MAX);
  if (arena == ArenaRef{}) in.fail("request.offset", "is zero, which is sent by leaving it out");
}

void read_inline_data(Reader& in, InlineVector<std::byte, 16>& data) {
  const std::size_t bytes = in.u8("request.inline_data", kInlineBytesMax);
  if (bytes == 0) in.fail("request.inline_data", "is empty, which is sent by leaving it out");
  data.resize(bytes);
  in.bytes("request.inline_data", {data.data(), data.size()});
}

void read_rows(Reader& in, std::vector<std::int64_t>& rows) {
  static_assert(kRanksMax <= kTensorsPerRequestMax, "one limit serves both meanings of rows");
  rows.resize(in.count("request.rows", kTensorsPerRequestMax, 1));
  if (rows.empty()) in.fail("request.rows", "is empty, which is sent by leaving it out");
  for (std::int64_t& value : rows)
    value = static_cast<std::int64_t>(in.varint("request.rows", kTensorBytesMax));
}

void write_ready(Writer& out, const ReadyOp& ready) {
  CIRANDA_ASSERT(ready.op.cache_id != kNoCacheId);
  CIRANDA_ASSERT(ready.contributions.size() <= kLocalRanksMax);
  const bool of_some = !ready.local_ranks.empty();
  CIRANDA_ASSERT(!of_some || ready.local_ranks.size() == ready.contributions.size());
  out.varint(ready.op.cache_id);
  out.varint(ready.op.occurrence);
  out.varint(ready.contributions.size() * 2 + (of_some ? 1 : 0));
  for (std::size_t i = 0; i < ready.contributions.size(); ++i) {
    const Contribution& part = ready.contributions[i];
    CIRANDA_ASSERT(part.rows.empty());
    if (of_some) out.u8(static_cast<std::uint8_t>(ready.local_ranks[i]));
    out.varint(part.token);
    out.varint(part.arena.segment);
    out.varint(part.arena.offset);
  }
}

void read_ready(Reader& in, ReadyOp& ready) {
  ready.op.cache_id = static_cast<CacheId>(in.varint("ready.cache_id", UINT32_MAX));
  if (ready.op.cache_id == kNoCacheId) in.fail("ready.cache_id", "is zero");
  ready.op.occurrence = static_cast<std::uint32_t>(in.varint("ready.occurrence", UINT32_MAX));
  const std::uint64_t parts = in.varint("ready.contributions", 2 * kLocalRanksMax + 1);
  const bool of_some = parts % 2 == 1;
  if (parts / 2 * kReadyPartBytesMin > in.remaining())
    return in.fail("ready.contributions", "are more than the bytes that follow");
  if (parts == 1) in.fail("ready.contributions", "are of no rank, which is sent as 0");
  ready.contributions.resize(parts / 2);
  ready.local_ranks.resize(of_some ? parts / 2 : 0);
  int before = -1;
  auto local = ready.local_ranks.begin();
  for (Contribution& part : ready.contributions) {
    if (of_some) {
      *local = in.u8("ready.local_rank", kLocalRanksMax - 1);
      if (*local <= before) in.fail("ready.local_rank", "does not ascend");
      before = *local++;
    }
    part.token = static_cast<std::uint32_t>(in.varint("ready.token", UINT32_MAX));
    part.arena.segment = static_cast<std::uint32_t>(in.varint("ready.segment", UINT32_MAX));
    part.arena.offset = in.varint("ready.offset", UINT64_MAX);
    part.rows.clear();
  }
}

// Overwrites every field, because `request` may have been used before.
void read_request(Reader& in, Request& request) {
  const std::uint8_t flags = in.u8("request.flags", kFlagsMax);
  if ((flags & kHasSpec) != 0) {
    request.cache_id = kNoCacheId;
    read_spec(in, request.spec.emplace());
  } else {
    request.spec.reset();
    request.cache_id = static_cast<CacheId>(in.varint("request.cache_id", UINT32_MAX));
    if (request.cache_id == kNoCacheId) in.fail("request.cache_id", "is zero");
  }
  request.occurrence = 0;
  if ((flags & kHasOccurrence) != 0) {
    request.occurrence = static_cast<std::uint32_t>(in.varint("request.occurrence", UINT32_MAX));
    if (request.occurrence == 0)
      in.fail("request.occurrence", "is zero, which is sent by leaving it out");
  }
  Contribution& own = request.contribution;
  own.token = static_cast<std::uint32_t>(in.varint("request.token", UINT32_MAX));
  own.arena = {};
  if ((flags & kHasArena) != 0) read_arena(in, own.arena);
  own.inline_data.clear();
  if ((flags & kHasInlineData) != 0) read_inline_data(in, own.inline_data);
  own.digest.reset();
  if ((flags & kHasDigest) != 0) {
    if ((flags & kHasRows) == 0) in.fail("request.flags", "have a digest and no rows");
    in.bytes("request.digest", own.digest.emplace());
  }
  own.rows.clear();
  if ((flags & kHasRows) != 0) read_rows(in, own.rows);
}

}  // namespace

void encode(const Frame& frame, std::vector<std::byte>& out) {
  CIRANDA_ASSERT(frame.requests.size() <= kRequestsPerFrameMax);
  const std::size_t before = out.size();
  Writer writer(out);
  writer.u8(static_cast<std::uint8_t>(frame.kind));
  if (frame.kind == FrameKind::kRequests) {
    writer.varint(frame.requests.size());
    for (const Request& request : frame.requests) write_request(writer, request);
  } else {
    CIRANDA_ASSERT(frame.requests.empty());
  }
  if (frame.kind == FrameKind::kReady) {
    CIRANDA_ASSERT(frame.ready.size() <= kRequestsPerFrameMax);
    writer.varint(static_cast<std::uint64_t>(std::int64_t{frame.host} + 1));
    writer.varint(frame.ready.size());
    for (const ReadyOp& ready : frame.ready) write_ready(writer, ready);
  }
  CIRANDA_ASSERT(out.size() - before <= kFrameBytesMax);
}

Status decode_frame(std::span<const std::byte> bytes, Frame& frame) {
  Reader in(bytes);
  if (bytes.size() > kFrameBytesMax) {
    in.fail("frame", "is longer than " + std::to_string(kFrameBytesMax) + " bytes");
    return in.error();
  }
  frame.kind =
      static_cast<FrameKind>(in.u8("frame.kind", static_cast<std::uint8_t>(FrameKind::kReady)));
  std::size_t requests = 0;
  std::size_t ready = 0;
  frame.host = kAllHosts;
  if (in.ok() && frame.kind == FrameKind::kRequests) {
    requests = in.count("frame.requests", kRequestsPerFrameMax, kRequestBytesMin);
  } else if (in.ok() && frame.kind == FrameKind::kReady) {
    frame.host = static_cast<int>(in.varint("frame.host", kRanksMax)) - 1;
    ready = in.count("frame.ready", kRequestsPerFrameMax, kReadyBytesMin);
  }
  frame.requests.resize(requests);
  for (Request& request : frame.requests) {
    read_request(in, request);
    if (!in.ok()) return in.error();
  }
  frame.ready.resize(ready);
  for (ReadyOp& op : frame.ready) {
    read_ready(in, op);
    if (!in.ok()) return in.error();
  }
  if (in.ok() && in.remaining() != 0) in.fail("frame", "goes on after its end");
  if (!in.ok()) return in.error();
  return {};
}

Result<Frame> decode_frame(std::span<const std::byte> bytes) {
  Frame frame;
  CIRANDA_TRY(decode_frame(bytes, frame));
  return frame;
}

std::optional<FrameKind> kind_of(std::span<const std::byte> frame) {
  if (frame.empty() || frame.front() > static_cast<std::byte>(FrameKind::kReady)) {
    return std::nullopt;
  }
  return static_cast<FrameKind>(frame.front());
}

std::size_t frame_bytes_max(const RequestSpec& spec, const Contribution& contribution) {
  return kFrameHeaderBytes + 1 + spec_bytes(spec) + 2 * varint_bytes(UINT32_MAX) +
         contribution_bytes(contribution);
}

std::size_t encoded_bytes(const Request& request) {
  std::size_t bytes = 1;
  bytes += request.spec.has_value() ? spec_bytes(*request.spec) : varint_bytes(request.cache_id);
  if (request.occurrence != 0) bytes += varint_bytes(request.occurrence);
  return bytes + contribution_bytes(request.contribution);
}

std::size_t encoded_bytes(const ReadyOp& ready) {
  std::size_t bytes = varint_bytes(ready.op.cache_id) + varint_bytes(ready.op.occurrence) +
                      varint_bytes(ready.contributions.size() * 2 + 1) + ready.local_ranks.size();
  for (const Contribution& part : ready.contributions) {
    bytes += varint_bytes(part.token) + varint_bytes(part.arena.segment) +
             varint_bytes(part.arena.offset);
  }
  return bytes;
}

std::string to_string(const TensorSpec& spec) {
  std::string text(user_dtype_name(spec.user_dtype, spec.dtype));
  text += " [";
  const std::size_t dims =
      spec.shape.size() - (travels_in_pairs(spec.user_dtype, spec.dtype) ? 1 : 0);
  for (std::size_t i = 0; i < dims; ++i) {
    if (i > 0) text += ", ";
    text += spec.shape[i] == kAnyRows ? "*" : std::to_string(spec.shape[i]);
  }
  return text + "]";
}

std::int64_t element_count(const Shape& shape) {
  // The search comes before the product, because a peer may send sizes that overflow beside a zero.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) {
    if (dim != kAnyRows) count *= dim;
  }
  return count;
}

}  // namespace ciranda
