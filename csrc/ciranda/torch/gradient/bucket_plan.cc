#include "ciranda/torch/gradient/bucket_plan.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/assert.h"
#include "core/wire/types.h"

namespace ciranda {
namespace {

// A bucket on the CPU fits into the caches; keeping a GPU's network busy takes more.
constexpr std::int64_t kBucketBytes = 4 << 20;
constexpr std::int64_t kDeviceBucketBytes = 25 << 20;

// One request can name all slots of a bucket.
constexpr std::size_t kSlotsMax = 2048;
static_assert(kSlotsMax <= kTensorsPerRequestMax);

using Positions = std::vector<std::size_t>;
using Kind = std::tuple<std::size_t, std::ptrdiff_t, c10::ScalarType>;  // rule, device, dtype

struct OpenBucket {
  Positions positions;
  std::int64_t bytes = 0;
};

// Returns the number of a device in `devices`, since a GPU's index differs between ranks.
std::ptrdiff_t number_of(c10::Device device, std::vector<c10::Device>& devices) {
  const auto number = std::find(devices.begin(), devices.end(), device) - devices.begin();
  if (static_cast<std::size_t>(number) == devices.size()) devices.push_back(device);
  return number;
}

// Adds the parameter. If the bucket is full, empties it first and returns its contents.
Positions put_in(OpenBucket& bucket, const Unplaced& wanted, std::int64_t bytes_max) {
  const auto bytes = static_cast<std::int64_t>(wanted.parameter.nbytes());
  Positions full;
  const bool full_bytes = !bucket.positions.empty() && bucket.bytes + bytes > bytes_max;
  if (full_bytes || bucket.positions.size() == kSlotsMax) {
    full = std::exchange(bucket.positions, {});
    bucket.bytes = 0;
  }
  bucket.positions.push_back(wanted.position);
  bucket.bytes += bytes;
  return full;
}

}  // namespace

std::vector<Positions> plan_buckets(const std::vector<Unplaced>& parameters,
                                    const ReducerOptions& options) {
  std::map<std::size_t, std::size_t> group_of;
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    for (const std::size_t position : options.groups[g]) group_of[position] = g;
  }
  std::vector<Positions> plan;
  std::vector<c10::Device> devices;
  std::map<std::pair<std::size_t, Kind>, OpenBucket> grouped;
  std::map<Kind, OpenBucket> open;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const Unplaced& wanted = parameters[i];
    const c10::Device device = wanted.parameter.device();
    const Kind kind{wanted.rule, number_of(device, devices), wanted.parameter.scalar_type()};
    const auto group = group_of.find(wanted.position);
    const bool alone = group == group_of.end();
    const std::int64_t bytes_max =
        options.bucket_bytes.value_or(device.is_cpu() ? kBucketBytes : kDeviceBucketBytes);
    Positions full = alone ? put_in(open[kind], wanted, bytes_max)
                           : put_in(grouped[{group->second, kind}], wanted,
                                    std::numeric_limits<std::int64_t>::max());
    if (!full.empty()) plan.push_back(std::move(full));
  }
  for (auto& [key, bucket] : grouped) plan.push_back(std::move(bucket.positions));
  for (auto& [kind, bucket] : open) plan.push_back(std::move(bucket.positions));
  std::size_t planned = 0;
  for (const Positions& bucket : plan) {
    CIRANDA_ASSERT(!bucket.empty() && bucket.size() <= kSlotsMax);
    planned += bucket.size();
  }
  CIRANDA_ASSERT(planned == parameters.size());  // I15: each has one slot
  return plan;
}

}  // namespace ciranda
