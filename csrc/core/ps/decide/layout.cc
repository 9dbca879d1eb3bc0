#include "core/ps/decide/layout.h"

#include <algorithm>

#include "core/base/assert.h"

namespace ciranda::ps {
namespace {

constexpr std::uint64_t kLineBytes = 64;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kChunkBytesMax = std::uint64_t{1} << 20;
constexpr std::uint64_t kChunksPerServerMin = 16;

constexpr std::uint64_t divided_up(std::uint64_t value, std::uint64_t by) {
  return (value + by - 1) / by;
}
constexpr std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) {
  return divided_up(value, unit) * unit;
}

}  // namespace

Layout::Layout(const Model& model, int servers) : shares_(static_cast<std::size_t>(servers)) {
  CIRANDA_ASSERT(servers >= 1);
  const auto server_count = static_cast<std::uint64_t>(servers);
  std::uint64_t chunk = 0;  // numbered through all tables
  std::uint64_t total = 0;
  for (std::size_t t = 0; t < model.tables.size(); ++t) {
    const std::uint64_t element_bytes = dtype_bytes(model.tables[t].dtype);
    TablePlace table{.slots = {}, .elements = 0, .element_bytes = element_bytes, .at = half_bytes_};
    std::uint64_t bytes = 0;
    for (const Slot& slot : model.tables[t].slots) {
      const std::uint64_t own = static_cast<std::uint64_t>(element_count(slot.shape));
      const auto begin = static_cast<std::int64_t>(bytes / element_bytes);
      table.slots.push_back({.begin = begin, .end = begin + static_cast<std::int64_t>(own)});
      bytes += rounded_up(own * element_bytes, kLineBytes);
    }
    table.elements = static_cast<std::int64_t>(bytes / element_bytes);

    const std::uint64_t even = divided_up(bytes, kChunksPerServerMin * server_count);
    const std::uint64_t chunk_bytes =
        std::min(rounded_up(std::max<std::uint64_t>(even, 1), kLineBytes), kChunkBytesMax);
    for (std::uint64_t at = 0; at < bytes; at += chunk_bytes, ++chunk) {
      Share& share = shares_[chunk % server_count];
      const std::uint64_t own = std::min(chunk_bytes, bytes - at);
      const auto begin = static_cast<std::int64_t>(at / element_bytes);
      const auto end = static_cast<std::int64_t>((at + own) / element_bytes);
      CIRANDA_ASSERT(share.bytes % kLineBytes == 0);  // so that each piece begins on a line
      if (!share.pieces.empty() && share.pieces.back().table == t &&
          share.pieces.back().end == begin) {
        share.pieces.back().end = end;
      } else {
        share.pieces.push_back({.table = t, .begin = begin, .end = end, .at = share.bytes});
      }
      share.bytes += own;
    }
    total += bytes;
    half_bytes_ += rounded_up(bytes, kPageBytes);
    tables_.push_back(std::move(table));
  }
  for (const Share& share : shares_) total -= share.bytes;
  CIRANDA_ASSERT(total == 0);  // each byte belongs to one server
}

// Returns the byte range of a piece in its table.
Layout::Range Layout::range_of(const Piece& piece) const {
  const std::uint64_t bytes = tables_[piece.table].element_bytes;
  return {.at = static_cast<std::uint64_t>(piece.begin) * bytes,
          .bytes = static_cast<std::uint64_t>(piece.end - piece.begin) * bytes};
}

std::vector<Layout::Range> Layout::ranges(int server, std::uint64_t from) const {
  std::vector<Range> ranges;
  for (const Piece& piece : pieces(server)) {
    ranges.push_back(range_of(piece));
    ranges.back().at += from + tables_[piece.table].at;
  }
  return ranges;
}

std::vector<Layout::Range> Layout::gradients_of(int server) const {
  return ranges(server, 0);
}

std::vector<Layout::Range> Layout::parameters_of(int server) const {
  return ranges(server, half_bytes_);
}

std::vector<Layout::Range> Layout::table_of(int server, std::size_t table) const {
  std::vector<Range> ranges;
  for (const Piece& piece : pieces(server)) {
    if (piece.table == table) ranges.push_back(range_of(piece));
  }
  return ranges;
}

}  // namespace ciranda::ps
