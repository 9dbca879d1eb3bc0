#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/assert.h"
#include "core/ps/decide/model.h"

namespace ciranda::ps {

// Maps the parameters of a model to places in memory and to servers. It depends only on the model
// and the number of servers, so workers and servers compute the same, and nothing ever moves. Each
// table is cut into equal chunks of whole cache lines, about 16 for each server; chunks of more
// than 1 MiB are cut smaller. The chunks of all tables are numbered together, and server i mod N
// holds chunk i.
class Layout {
 public:
  // check() must have accepted `model`; servers >= 1.
  Layout(const Model& model, int servers);

  int servers() const { return static_cast<int>(shares_.size()); }

  // A slot's range in its table, in elements. Each slot starts on a cache line.
  struct Place {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::span<const Place> slots(std::size_t table) const { return tables_[table].slots; }
  std::int64_t elements(std::size_t table) const { return tables_[table].elements; }

  // Byte offsets in a worker's memory: every table's gradients, then every table's parameters.
  std::uint64_t gradients_at(std::size_t table) const { return tables_[table].at; }
  std::uint64_t parameters_at(std::size_t table) const { return half_bytes_ + tables_[table].at; }
  std::uint64_t memory_bytes() const { return 2 * half_bytes_; }
  std::uint64_t gradient_bytes() const { return half_bytes_; }

  // A server's part of a table; adjacent chunks are joined. `at`: its offset in bytes in each of
  // the server's own arrays.
  struct Piece {
    std::size_t table = 0;
    std::int64_t begin = 0;  // elements of the table
    std::int64_t end = 0;
    std::uint64_t at = 0;
  };
  std::span<const Piece> pieces(int server) const { return share(server).pieces; }
  // The server's byte ranges in a worker's memory (gradients, parameters) and in memory of a
  // table's size. Their contents are sent between hosts in this order.
  struct Range {
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> gradients_of(int server) const;
  std::vector<Range> parameters_of(int server) const;
  std::vector<Range> table_of(int server, std::size_t table) const;
  // Returns the bytes of the server's parameters, and of each of its state arrays.
  std::uint64_t share_bytes(int server) const { return share(server).bytes; }

 private:
  struct TablePlace {
    std::vector<Place> slots;
    std::int64_t elements = 0;  // rounded up to whole cache lines
    std::uint64_t element_bytes = 0;
    std::uint64_t at = 0;  // byte offset in the gradients, and in the parameters
  };
  struct Share {
    std::vector<Piece> pieces;
    std::uint64_t bytes = 0;
  };
  std::vector<Range> ranges(int server, std::uint64_t from) const;
  Range range_of(const Piece& piece) const;
  const Share& share(int server) const {
    CIRANDA_ASSERT(static_cast<std::size_t>(server) < shares_.size());
    return shares_[static_cast<std::size_t>(server)];
  }

  std::vector<TablePlace> tables_;
  std::vector<Share> shares_;
  std::uint64_t half_bytes_ = 0;
};

}  // namespace ciranda::ps
