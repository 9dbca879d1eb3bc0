#include "core/transport/link/message_link.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/base/assert.h"

namespace ciranda {
namespace {

// Kinds of segments, in the `step` of a header.
constexpr std::uint32_t kMessage = 0;
constexpr std::uint32_t kData = 1;

constexpr std::size_t kPiecesMax = 64;  // pieces of one cut()
constexpr std::size_t kInboxBytes = std::size_t{64} * 1024;
// Reads of at least this size go directly to their place, not through the inbox.
constexpr std::size_t kDirectBytes = std::size_t{16} * 1024;

iovec piece_of(std::span<const std::byte> bytes) {
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
}

// Returns the next pieces of `places` from `place` and `offset` on, at most kPiecesMax pieces and
// `bytes_max` bytes. Advances `place` and `offset` past them.
template <typename Span>
std::vector<Span> cut(const std::vector<Span>& places, std::size_t& place, std::size_t& offset,
                      std::size_t bytes_max) {
  std::vector<Span> pieces;
  while (place < places.size() && bytes_max > 0 && pieces.size() < kPiecesMax) {
    const std::size_t count = std::min(places[place].size() - offset, bytes_max);
    if (count > 0) pieces.push_back(places[place].subspan(offset, count));
    offset += count;
    bytes_max -= count;
    if (offset == places[place].size()) {
      ++place;
      offset = 0;
    }
  }
  return pieces;
}

template <typename Span>
std::size_t bytes_of(const std::vector<Span>& places) {
  return std::accumulate(places.begin(), places.end(), std::size_t{0},
                         [](std::size_t sum, const Span& each) { return sum + each.size(); });
}

void drop_sent(std::vector<iovec>& pieces, std::size_t bytes) {
  std::size_t whole = 0;
  while (whole < pieces.size() && bytes >= pieces[whole].iov_len) bytes -= pieces[whole++].iov_len;
  pieces.erase(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(whole));
  if (bytes == 0) return;
  pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + bytes;
  pieces.front().iov_len -= bytes;
}

}  // namespace

MessageLink::MessageLink(ProvenSocket socket, std::size_t message_bytes_max, bool authenticates)
    : stream_(std::move(socket.stream)),
      address_(std::move(socket.address)),
      message_bytes_max_(message_bytes_max),
      authenticates_(authenticates),
      sealer_(std::move(socket.session.send_key)),
      opener_(std::move(socket.session.receive_key)),
      inbox_(kInboxBytes) {}

// -------------------------------------------------------------------------------------------
// Sending

Status MessageLink::send(std::span<const std::byte> message, std::vector<Outgoing> parts,
                         std::shared_ptr<const void> owner) {
  CIRANDA_ASSERT(!message.empty() && message.size() <= message_bytes_max_);
  std::erase_if(parts, [](const Outgoing& part) { return bytes_of(part) == 0; });
  queue_.push_back(OutgoingMessage{.message = {message.begin(), message.end()},
                                   .parts = std::move(parts),
                                   .owner = std::move(owner)});
  return flush();
}

Status MessageLink::flush() {
  while (!queue_.empty()) {
    OutgoingMessage& outgoing = queue_.front();
    if (pieces_.empty() && outgoing.begun && outgoing.part == outgoing.parts.size()) {
      queue_.pop_front();
      continue;
    }
    if (pieces_.empty()) begin_segment(outgoing);
    auto sent = stream_.send(std::span<const iovec>(pieces_));
    if (!sent) return sent.error();
    drop_sent(pieces_, sent.value());
    if (!pieces_.empty()) return {};
  }
  return {};
}

// Puts the next segment into pieces_. The message and the first segment of its data go together.
void MessageLink::begin_segment(OutgoingMessage& outgoing) {
  CIRANDA_ASSERT(pieces_.empty() && outgoing.part <= outgoing.parts.size());
  if (!std::exchange(outgoing.begun, true)) {
    const std::span<const std::byte> message = outgoing.message;
    headers_[0] = sealer_.seal(
        {.bytes = static_cast<std::uint32_t>(message.size()), .step = kMessage}, message);
    pieces_ = {piece_of(headers_[0]), piece_of(message)};
  }
  if (outgoing.part == outgoing.parts.size()) return;
  const Outgoing& part = outgoing.parts[outgoing.part];
  const auto data = cut(part, outgoing.place, outgoing.offset, kSegmentBytes);
  const bool ends = std::all_of(part.begin() + static_cast<std::ptrdiff_t>(outgoing.place),
                                part.end(), [](const auto& place) { return place.empty(); });
  if (ends) {
    ++outgoing.part;
    outgoing.place = 0;
  }
  const DataHeader header{.bytes = static_cast<std::uint32_t>(bytes_of(data)), .step = kData};
  CIRANDA_ASSERT(header.bytes > 0 && header.bytes <= kSegmentBytes);  // else the peer refuses it
  headers_[1] = authenticates_ ? sealer_.seal(header, std::span(data)) : sealer_.seal(header);
  pieces_.push_back(piece_of(headers_[1]));
  for (const auto& piece : data) pieces_.push_back(piece_of(piece));
}

// -------------------------------------------------------------------------------------------
// Receiving

// Receives available bytes, at most as many as `into` holds, and returns their number; 0: none.
Result<std::size_t> MessageLink::take(std::span<std::byte> into) {
  CIRANDA_ASSERT(!into.empty());
  if (unread_.empty() && into.size() >= kDirectBytes) return stream_.receive(into);
  if (unread_.empty()) {
    auto count = stream_.receive(inbox_);
    if (!count) return count;
    unread_ = std::span<const std::byte>(inbox_).first(count.value());
  }
  const std::size_t count = std::min(unread_.size(), into.size());
  std::memcpy(into.data(), unread_.data(), count);
  unread_ = unread_.subspan(count);
  return count;
}

// Receives a header and prepares its segment. Returns false if the header has not come completely,
// kMalformed if it announces another kind or more than `bytes_max` bytes.
Result<bool> MessageLink::receive_header(std::uint32_t kind, std::size_t bytes_max) {
  CIRANDA_ASSERT(!in_segment_);
  // Reads the header alone if much data follows, so that the data does not go through the inbox.
  const bool alone = kind == kData && unread_.empty() && missing_ >= kDirectBytes;
  while (header_have_ < header_.size()) {
    const auto rest = std::span(header_).subspan(header_have_);
    auto count = alone ? stream_.receive(rest) : take(rest);
    if (!count) return count.error();
    if (count.value() == 0) return false;
    header_have_ += count.value();
  }
  header_have_ = 0;
  const auto header = opener_.open(header_);
  if (!header) return header.error();
  const std::uint32_t bytes = header.value().bytes;
  if (header.value().step != kind || bytes == 0 || bytes > bytes_max) {
    return Error{.code = ErrorCode::kMalformed,
                 .text = "it sent " + std::to_string(bytes) + " bytes of kind " +
                         std::to_string(header.value().step) + " where at most " +
                         std::to_string(bytes_max) + " of kind " + std::to_string(kind) +
                         " were due"};
  }
  if (kind == kMessage) {
    message_.resize(bytes);
    segment_ = {std::span(message_)};
  } else {
    CIRANDA_ASSERT(bytes <= missing_);
    missing_ -= bytes;
    segment_.clear();
    for (std::size_t left = bytes;
         left > 0;) {  // a segment may have more pieces than one cut() returns
      CIRANDA_ASSERT(place_ < places_.size());
      const auto more = cut(places_, place_, offset_, left);
      left -= bytes_of(more);
      segment_.insert(segment_.end(), more.begin(), more.end());
    }
  }
  segment_have_ = 0;
  in_segment_ = true;
  return true;
}

// Returns true when all bytes of the segment have come.
Result<bool> MessageLink::fill_segment() {
  CIRANDA_ASSERT(in_segment_);
  std::size_t skip = segment_have_;
  for (const std::span<std::byte>& piece : segment_) {
    if (skip >= piece.size()) {
      skip -= piece.size();
      continue;
    }
    for (std::size_t have = std::exchange(skip, 0); have < piece.size();) {
      auto count = take(piece.subspan(have));
      if (!count) return count.error();
      if (count.value() == 0) return false;
      have += count.value();
      segment_have_ += count.value();
    }
  }
  in_segment_ = false;
  return true;
}

Result<std::optional<std::span<const std::byte>>> MessageLink::receive_message() {
  using Message = std::optional<std::span<const std::byte>>;
  CIRANDA_ASSERT(missing_ == 0);
  if (!in_segment_) {
    const auto header = receive_header(kMessage, message_bytes_max_);
    if (!header) return header.error();
    if (!header.value()) return Message();
  }
  const auto filled = fill_segment();
  if (!filled) return filled.error();
  if (!filled.value()) return Message();
  CIRANDA_TRY(opener_.check(message_));
  return Message(message_);
}

void MessageLink::expect(Incoming places) {
  CIRANDA_ASSERT(missing_ == 0 && !in_segment_);
  places_ = std::move(places);
  place_ = 0;
  offset_ = 0;
  missing_ = bytes_of(places_);
}

Result<bool> MessageLink::receive_data() {
  while (missing_ > 0 || in_segment_) {
    if (!in_segment_) {
      auto header = receive_header(kData, std::min<std::uint64_t>(missing_, kSegmentBytes));
      if (!header || !header.value()) return header;
    }
    auto filled = fill_segment();
    if (!filled || !filled.value()) return filled;
    if (!authenticates_) continue;
    const std::vector<DataOpener::Piece> pieces(segment_.begin(), segment_.end());
    CIRANDA_TRY(opener_.check(std::span(pieces)));
  }
  return true;
}

}  // namespace ciranda
