#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/base/assert.h"
#include "core/base/dtype.h"
#include "core/base/result.h"
#include "core/base/zero_array.h"
#include "core/wire/codec.h"

namespace ciranda::ps {

// The number of a server's vector. Vector 0 is its parameters; other vectors have the same length.
using VectorId = std::uint32_t;
inline constexpr VectorId kParametersVector = 0;
inline constexpr VectorId kVectorsMax = 256;
inline constexpr std::size_t kVectorTermsMax = 1024;  // sums of a VectorWork, and terms of a sum
inline constexpr std::size_t kVectorDotsMax = 4096;

// A coordinator's work order for the servers' vectors. Each server does the work on its share, so a
// few numbers are sent for work on data of the model's size (Dean et al., "Large Scale Distributed
// Deep Networks", 2012, 4.2).
struct VectorWork {
  std::uint64_t number = 0;  // from 1; a number that was done is not done again
  struct Term {
    VectorId vector = 0;
    double factor = 0.0;
    bool operator==(const Term&) const = default;
  };
  // Sets vector `into` to the sum of factor * vector over the terms; no terms: to zero. `into` may
  // be one of the vectors that are read.
  struct Sum {
    VectorId into = 0;
    std::vector<Term> terms = {};
    bool operator==(const Sum&) const = default;
  };
  struct Dot {
    VectorId one = 0;
    VectorId other = 0;
    bool operator==(const Dot&) const = default;
  };
  std::vector<Sum> sums = {};  // done one after another
  std::vector<Dot> dots = {};  // done after the sums; their results are the answer
  bool operator==(const VectorWork&) const = default;
};

void write(Writer& out, const VectorWork& work);
void read(Reader& in, VectorWork& work);

// Work that a server has done, and the results of its dot products.
struct VectorsWorked {
  VectorWork work = {};
  std::vector<double> dots = {};
};

// A server's vectors other than its parameters. They are zero until something is written to them.
//
// Not thread-safe.
class Vectors {
 public:
  // Contiguous elements of one dtype.
  struct Run {
    std::uint64_t at = 0;  // offset in bytes from the start of a vector
    std::size_t elements = 0;
    DType dtype = DType::kFloat32;
  };
  // `bytes`: size of each vector. A vector starts on a cache line, and its pages take memory only
  // once they are touched.
  Vectors(std::vector<Run> runs, std::uint64_t bytes) : runs_(std::move(runs)), bytes_(bytes) {}

  // Allocates the vectors up to this one. kInvalidArgument: there is no such vector, or a parameter
  // is neither float32 nor float64. kSystem: not enough memory.
  Status reserve(VectorId vector);
  // Does the same for all vectors of `work`.
  Status reserve(const VectorWork& work);
  // Does the work. Returns the dot products of this server's share, which are summed in double. The
  // errors are reserve()'s; nothing is done then.
  Result<std::vector<double>> work(const VectorWork& work, std::byte* parameters);

  // Returns the number of vectors other than the parameters. data() takes 1 to count().
  std::size_t count() const { return arrays_.size(); }
  std::byte* data(VectorId vector) {
    CIRANDA_ASSERT(vector != kParametersVector && vector <= arrays_.size());  // by reserve()
    return arrays_[vector - 1].data;
  }

 private:
  std::byte* at(VectorId vector, std::byte* parameters) {
    return vector == kParametersVector ? parameters : data(vector);
  }
  void sum(const VectorWork::Sum& sum, std::byte* parameters);

  const std::vector<Run> runs_;
  const std::uint64_t bytes_;
  std::vector<ZeroArray> arrays_;
};

}  // namespace ciranda::ps
