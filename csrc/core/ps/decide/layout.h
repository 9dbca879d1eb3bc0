#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/ps/decide/model.h"

namespace ciranda::ps {

// Where the parameters of a model lie, and on which server: a pure function, so that nobody asks
// and nothing is ever moved. Each table is cut into equal chunks (at least 16 for each server,
// where it has as many lines of the cache, and at most 1 MiB long), which are numbered through all
// tables; chunk i is server i mod N's.
class Layout {
 public:
  // `model`: check() has accepted it; servers >= 1.
  Layout(const Model& model, int servers);

  int servers() const { return static_cast<int>(shares_.size()); }

  // A parameter's place in its table, in elements; slots start on lines of the cache.
  struct Place {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::span<const Place> slots(std::size_t table) const { return tables_[table].slots; }
  std::int64_t elements(std::size_t table) const { return tables_[table].elements; }

  // A worker's memory: the gradients of all tables, then the parameters, in bytes from its start.
  std::uint64_t gradients_at(std::size_t table) const { return tables_[table].at; }
  std::uint64_t parameters_at(std::size_t table) const { return half_bytes_ + tables_[table].at; }
  std::uint64_t memory_bytes() const { return 2 * half_bytes_; }
  std::uint64_t gradient_bytes() const { return half_bytes_; }

  // A server's part of a table: neighbouring chunks are one. `at`: where it lies in each of the
  // server's own arrays, in bytes.
  struct Piece {
    std::size_t table = 0;
    std::int64_t begin = 0;  // elements of the table
    std::int64_t end = 0;
    std::uint64_t at = 0;
  };
  std::span<const Piece> pieces(int server) const { return share(server).pieces; }
  // The bytes of a worker's memory that are the server's: gradients, parameters; and those of
  // memory of a table's size. What travels between hosts, in this order.
  struct Range {
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> gradients_of(int server) const;
  std::vector<Range> parameters_of(int server) const;
  std::vector<Range> table_of(int server, std::size_t table) const;
  // Bytes of the server's parameters, and of each of its state arrays.
  std::uint64_t share_bytes(int server) const { return share(server).bytes; }

 private:
  struct TablePlace {
    std::vector<Place> slots;
    std::int64_t elements = 0;  // whole lines
    std::uint64_t element_bytes = 0;
    std::uint64_t at = 0;  // bytes from the start of the gradients, or of the parameters
  };
  struct Share {
    std::vector<Piece> pieces;
    std::uint64_t bytes = 0;
  };
  std::vector<Range> ranges(int server, std::uint64_t from) const;
  Range range_of(const Piece& piece) const;
  const Share& share(int server) const { return shares_[static_cast<std::size_t>(server)]; }

  std::vector<TablePlace> tables_;
  std::vector<Share> shares_;
  std::uint64_t half_bytes_ = 0;
};

}  // namespace ciranda::ps
