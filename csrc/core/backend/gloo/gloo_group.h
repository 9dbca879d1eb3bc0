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

// The ranks of a group, connected to each other by Gloo, and Gloo's collectives among them. Only
// this class knows the library, and it turns the library's exceptions into values.
//
// Gloo does not authenticate and does not encrypt. Until the ranks are connected, anyone who
// reaches this rank's address can take a peer's place. Anyone who sees the network sees the data.
//
// A collective blocks until this rank's part in it is done. Every rank calls the same collectives
// in the same order. One thread at a time, except for cancel(). After an error the group is
// unusable.
class GlooGroup {
 public:
  // Listens on the numeric `address`, at one port for each peer. Does not block.
  static Result<std::unique_ptr<GlooGroup>> listen(Rank rank, int size, const std::string& address);
  ~GlooGroup();  // blocks some milliseconds per peer; peers may still receive what was sent
  GlooGroup(const GlooGroup&) = delete;
  GlooGroup& operator=(const GlooGroup&) = delete;

  // Returns the address at which each peer reaches this rank, for the peers' connect().
  std::vector<std::byte> addresses() const;
  // Connects to all peers. `addresses` holds each rank's addresses(), by rank. Must precede any
  // collective. Blocks until all peers have connected.
  Status connect(std::span<const std::vector<std::byte>> addresses);

  // out = reduction over all ranks' `in`, the same bits on every rank; kAverage is kSum here. `in`
  // may be `out`.
  Status allreduce(DType dtype, ReduceOp op, const std::byte* in, std::byte* out,
                   std::uint64_t bytes);
  // Only the root reads `in`, which may be `out`.
  Status broadcast(Rank root, const std::byte* in, std::byte* out, std::uint64_t bytes);
  // The part of each rank has `counts[rank]` bytes. The parts follow one another in `out`.
  Status allgather(const std::byte* in, std::byte* out, const std::vector<std::uint64_t>& counts);
  // The counts are bytes to and from each rank. The parts follow one another.
  Status alltoall(const std::byte* in, const std::vector<std::uint64_t>& in_counts, std::byte* out,
                  const std::vector<std::uint64_t>& out_counts);

  // Makes every call that blocks, now or later, return soon with an error, whatever the peers do.
  // Thread-safe. Blocks at most 10 ms, for a turn of Gloo's own thread.
  void cancel();

  // The version of the library, and the path from which it was loaded.
  static std::string version();
  static std::string path();

 private:
  struct Mesh;
  explicit GlooGroup(std::unique_ptr<Mesh> mesh);

  const std::unique_ptr<Mesh> mesh_;
};

}  // namespace ciranda
