#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/result.h"
#include "core/wire/types.h"

namespace ciranda {

// All ranks, each connected to each by Gloo, and Gloo's collectives among them: the only file that
// knows the library, whose exceptions become values here.
//
// Gloo does not authenticate and does not encrypt: until they are connected whoever reaches this
// rank's address can take a peer's place, and whoever sees the network sees the data.
//
// A collective blocks until this rank's part in it is done; every rank calls the same ones in the
// same order. One thread at a time, but for cancel(). After an error nothing works any more.
class GlooGroup {
 public:
  // Listens on `address`, numeric, at a port for each peer. Does not block.
  static Result<std::unique_ptr<GlooGroup>> listen(Rank rank, int size, const std::string& address);
  ~GlooGroup();  // blocks for some milliseconds a peer; they may still receive what was sent
  GlooGroup(const GlooGroup&) = delete;
  GlooGroup& operator=(const GlooGroup&) = delete;

  // Where each peer reaches this rank; for their connect().
  std::vector<std::byte> addresses() const;
  // With the addresses() of all ranks, by rank, before any collective. Blocks until all are there.
  Status connect(std::span<const std::vector<std::byte>> addresses);

  // out = reduction over all ranks' `in`, the same bits everywhere; kAverage is kSum here. `in` may
  // be `out`.
  Status allreduce(DType dtype, ReduceOp op, const std::byte* in, std::byte* out,
                   std::uint64_t bytes);
  // `in` is read on the root only, and may be `out`.
  Status broadcast(Rank root, const std::byte* in, std::byte* out, std::uint64_t bytes);
  // The ranks' parts have `counts` bytes each and follow one another in `out`.
  Status allgather(const std::byte* in, std::byte* out, const std::vector<std::uint64_t>& counts);
  // Bytes to and from each rank, which follow one another.
  Status alltoall(const std::byte* in, const std::vector<std::uint64_t>& in_counts, std::byte* out,
                  const std::vector<std::uint64_t>& out_counts);

  // What blocks, now or later, returns soon, with an error, whatever the peers do. Thread-safe.
  // Blocks at most 10 ms, for a turn of Gloo's own thread.
  void cancel();

  // Of the library, and where it was loaded from.
  static std::string version();
  static std::string path();

 private:
  struct Mesh;
  explicit GlooGroup(std::unique_ptr<Mesh> mesh);

  const std::unique_ptr<Mesh> mesh_;
};

}  // namespace ciranda
