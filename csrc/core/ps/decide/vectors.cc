#include "core/ps/decide/vectors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/ps/decide/refusal.h"

namespace ciranda::ps {
namespace {

// Elements of each vector that are read at a time, few enough to stay in the cache.
constexpr std::size_t kBlock = 1024;

template <typename T>
double dot_of(const std::byte* one, const std::byte* other, std::size_t begin, std::size_t end) {
  const auto* a = reinterpret_cast<const T*>(one);
  const auto* b = reinterpret_cast<const T*>(other);
  double sums[4] = {};
  std::size_t i = begin;
  for (; i + 4 <= end; i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (; i < end; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

struct Source {
  const std::byte* data = nullptr;
  double factor = 0.0;
};

template <typename T>
void sum_into(std::byte* into, std::span<const Source> sources, std::size_t begin,
              std::size_t end) {
  double sums[kBlock] = {};
  const std::size_t count = end - begin;
  for (const Source& source : sources) {
    const auto* from = reinterpret_cast<const T*>(source.data) + begin;
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] += source.factor * static_cast<double>(from[i]);
    }
  }
  auto* to = reinterpret_cast<T*>(into) + begin;
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(sums[i]);
}

}  // namespace

// -------------------------------------------------------------------------------------------
// Bytes

void write(Writer& out, const VectorWork& work) {
  out.varint(work.number);
  out.varint(work.sums.size());
  for (const VectorWork::Sum& sum : work.sums) {
    out.varint(sum.into);
    out.varint(sum.terms.size());
    for (const VectorWork::Term& term : sum.terms) {
      out.varint(term.vector);
      out.f64(term.factor);
    }
  }
  out.varint(work.dots.size());
  for (const VectorWork::Dot& dot : work.dots) {
    out.varint(dot.one);
    out.varint(dot.other);
  }
}

void read(Reader& in, VectorWork& work) {
  const auto vector = [&](const char* field) {
    return static_cast<VectorId>(in.varint(field, kVectorsMax - 1));
  };
  work.number = in.varint("work.number", UINT64_MAX);
  work.sums.resize(in.count("work.sums", kVectorTermsMax, 2));
  for (VectorWork::Sum& sum : work.sums) {
    sum.into = vector("work.into");
    sum.terms.resize(in.count("work.terms", kVectorTermsMax, 9));
    for (VectorWork::Term& term : sum.terms) {
      term.vector = vector("work.vector");
      term.factor = in.f64("work.factor");
    }
  }
  work.dots.resize(in.count("work.dots", kVectorDotsMax, 2));
  for (VectorWork::Dot& dot : work.dots) {
    dot.one = vector("work.one");
    dot.other = vector("work.other");
  }
}

// -------------------------------------------------------------------------------------------
// Work

Status Vectors::reserve(VectorId vector) {
  if (vector <= arrays_.size()) return {};
  if (vector >= kVectorsMax) {
    return refused("there is no vector " + std::to_string(vector) + ", only 0 to " +
                   std::to_string(kVectorsMax - 1));
  }
  for (const Run& run : runs_) {
    if (run.dtype == DType::kFloat32 || run.dtype == DType::kFloat64) continue;
    return refused("vectors hold float32 and float64, but a parameter is " +
                   std::string(dtype_name(run.dtype)));
  }
  while (arrays_.size() < vector) {
    ZeroArray array(bytes_);
    if (array.data == nullptr) {
      return Error{
          .code = ErrorCode::kSystem,
          .text = "there is no memory for another vector of " + std::to_string(bytes_) + " bytes"};
    }
    arrays_.push_back(std::move(array));
  }
  return {};
}

Status Vectors::reserve(const VectorWork& work) {
  VectorId most = 0;
  for (const VectorWork::Sum& each : work.sums) {
    most = std::max(most, each.into);
    for (const VectorWork::Term& term : each.terms) most = std::max(most, term.vector);
  }
  for (const VectorWork::Dot& dot : work.dots) most = std::max({most, dot.one, dot.other});
  return reserve(most);
}

Result<std::vector<double>> Vectors::work(const VectorWork& work, std::byte* parameters) {
  CIRANDA_TRY(reserve(work));
  for (const VectorWork::Sum& each : work.sums) sum(each, parameters);
  std::vector<double> values(work.dots.size());
  for (const Run& run : runs_) {
    for (std::size_t begin = 0; begin < run.elements; begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, run.elements);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::byte* one = at(work.dots[i].one, parameters) + run.at;
        const std::byte* other = at(work.dots[i].other, parameters) + run.at;
        values[i] += run.dtype == DType::kFloat32 ? dot_of<float>(one, other, begin, end)
                                                  : dot_of<double>(one, other, begin, end);
      }
    }
  }
  return values;
}

void Vectors::sum(const VectorWork::Sum& sum, std::byte* parameters) {
  std::vector<Source> sources(sum.terms.size());
  for (const Run& run : runs_) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      sources[i] = {.data = at(sum.terms[i].vector, parameters) + run.at,
                    .factor = sum.terms[i].factor};
    }
    std::byte* const into = at(sum.into, parameters) + run.at;
    for (std::size_t begin = 0; begin < run.elements; begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, run.elements);
      if (run.dtype == DType::kFloat32) {
        sum_into<float>(into, sources, begin, end);
      } else {
        sum_into<double>(into, sources, begin, end);
      }
    }
  }
}

}  // namespace ciranda::ps
