#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernels/update_rule.h"

namespace ciranda::kernels {

struct Variant;

// The journal of an optimizer's step that several processes make together in shared memory: by it
// the step can be completed although some of them were killed in the middle.
//
// The memory is a bucket: equal copies of the parameters, and arrays of state. A rank updates a
// chunk of it at a time, in pieces of 1 KiB. It first saves the old values of a piece in the
// journal, where they stay in the cache, and marks the chunk when all its pieces are updated. So at
// any moment a chunk is marked, or untouched, or its first pieces are updated and the next one may
// be torn. resume() puts the old values of that piece back, and the update goes on there: the bits
// are those of a step in which nobody was killed. A rank may be killed while it resumes a chunk,
// too.
//
// The object is a view of memory that all ranks map and that is zero before the first step. Steps
// are numbered from 1. Each rank has its own place in the journal, so ranks may work on different
// chunks at the same time. No method blocks.
class StepJournal {
 public:
  static constexpr std::uint64_t kChunkBytes = 131072;  // the chunks that ranks claim are multiples

  struct Shape {
    std::uint64_t bytes = 0;  // of the parameters
    int ranks = 0;
    int states = 0;  // arrays of state
  };
  static std::size_t memory_bytes(const Shape& shape);
  // `memory` is aligned to 64 bytes. Null: the variant that this processor runs best.
  StepJournal(std::byte* memory, const Shape& shape, const Variant* variant = nullptr);

  // Returns the number of the step after the latest one that is done. No step may be in progress.
  std::uint64_t next_step() const;
  // For use when nobody works on the bucket any more:
  bool begun(std::uint64_t step) const;  // some rank has begun a chunk
  bool done(std::uint64_t step) const;   // all chunks are done

  // A rank's work on one chunk.
  class Work {
   public:
    // Runs kernels::update() with `args`, which begin at byte `offset` of the bucket and end within
    // the chunk. The calls for one chunk come in the order of their offsets, and are the same if
    // another rank resumes the chunk. There are no gradient outputs.
    void update(const UpdateRule& rule, const UpdateArgs& args, std::uint64_t offset);
    void end();  // marks the chunk as done

   private:
    friend class StepJournal;
    Work(const StepJournal& journal, int rank, std::uint64_t step, std::uint64_t chunk);
    void restore(const UpdateArgs& args, std::uint64_t bytes) const;
    void save_and_update(const UpdateRule& rule, const UpdateArgs& args,
                         std::uint64_t offset) const;
    void note_place(std::uint64_t at) const;

    const StepJournal& journal_;
    const int rank_;
    const std::uint64_t step_;
    const std::uint64_t chunk_;
    std::uint64_t from_;                // what is before this byte is updated
    const std::byte* saved_ = nullptr;  // old values of the piece at from_, which may be torn
  };
  // `chunk` begins at this byte of the bucket. Nobody else works on it in this step, or has.
  Work begin(int rank, std::uint64_t step, std::uint64_t chunk) const;
  // As begin(), where a rank that was killed may have worked on the chunk.
  Work resume(int rank, std::uint64_t step, std::uint64_t chunk) const;
  bool chunk_done(std::uint64_t step, std::uint64_t chunk) const;

 private:
  struct Place;
  static std::size_t places_offset(const Shape& shape);
  static std::size_t saved_offset(const Shape& shape);
  static std::size_t saved_bytes(const Shape& shape);
  std::uint64_t& mark(std::uint64_t chunk) const;  // the latest step that is done on it
  Place& place(int rank) const;
  std::byte* saved_by(int rank) const;

  std::byte* memory_;
  Shape shape_;
  const Variant* variant_;
};

}  // namespace ciranda::kernels
