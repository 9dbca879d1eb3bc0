#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/result.h"
#include "core/base/zero_array.h"
#include "core/wire/codec.h"

namespace ciranda::ps {

// A vector of a server: 0 is its parameters, the others lie beside them and are as long.
using VectorId = std::uint32_t;
inline constexpr VectorId kParametersVector = 0;
inline constexpr VectorId kVectorsMax = 256;
inline constexpr std::size_t kVectorTermsMax = 1024;  // of all sums of a VectorWork
inline constexpr std::size_t kVectorDotsMax = 4096;

// What a coordinator has servers do with their vectors, where each server does it to its share: a
// few numbers for work on all of the model (Dean et al., "Large Scale Distributed Deep Networks",
// 2012, 4.2).
struct VectorWork {
  std::uint64_t number = 0;  // from 1; one that was done before is not done again
  struct Term {
    VectorId vector = 0;
    double factor = 0.0;
    bool operator==(const Term&) const = default;
  };
  // into = the sum of the terms, each from before it; none: zeros.
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
  std::vector<Sum> sums = {};  // one after the other
  std::vector<Dot> dots = {};  // afterwards; what they come to is the answer
  bool operator==(const VectorWork&) const = default;
};

void write(Writer& out, const VectorWork& work);
void read(Reader& in, VectorWork& work);

// Work that a server has done, and what its dot products came to.
struct VectorsWorked {
  VectorWork work = {};
  std::vector<double> dots = {};
};

// A server's vectors but for its parameters. Of zeros until something is written to them.
//
// Not thread-safe.
class Vectors {
 public:
  // Of memory that begins on a line of the cache; pages that nobody has touched take none. A
  // run: elements of one dtype, one behind the other.
  struct Run {
    std::uint64_t at = 0;  // bytes from the beginning
    std::size_t elements = 0;
    DType dtype = DType::kFloat32;
  };
  Vectors(std::vector<Run> runs, std::uint64_t bytes) : runs_(std::move(runs)), bytes_(bytes) {}

  // kInvalidArgument: of another dtype than float32 and float64, or no such vector; kSystem: there
  // is no memory for it.
  Status reserve(VectorId vector);
  // The same of all that the work speaks of.
  Status reserve(const VectorWork& work);
  // Errors as reserve()'s, and nothing is done. The dot products of this server's share, summed in
  // double.
  Result<std::vector<double>> work(const VectorWork& work, std::byte* parameters);

  // So many are there, beside the parameters; and where one of them lies.
  std::size_t count() const { return arrays_.size(); }
  std::byte* data(VectorId vector) { return arrays_[vector - 1].data; }

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
