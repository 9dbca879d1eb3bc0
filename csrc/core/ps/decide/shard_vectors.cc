// The vectors of a shard, on which a coordinator's work runs.
#include <utility>

#include "core/base/assert.h"
#include "core/ps/decide/shard.h"

namespace ciranda::ps {

std::vector<Vectors::Run> Shard::runs_of(const Model& model, const Layout& layout, int server) {
  std::vector<Vectors::Run> runs;
  for (const Layout::Piece& piece : layout.pieces(server)) {
    runs.push_back({.at = piece.at,
                    .elements = static_cast<std::size_t>(piece.end - piece.begin),
                    .dtype = model.tables[piece.table].dtype});
  }
  return runs;
}

Result<std::vector<double>> Shard::work(const VectorWork& work) {
  CIRANDA_ASSERT(given_);
  return vectors_.work(work, parameters_.data);
}

}  // namespace ciranda::ps
