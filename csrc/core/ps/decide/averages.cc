#include "core/ps/decide/averages.h"

#include <cstddef>
#include <cstdint>

#include "core/ps/decide/refusal.h"

namespace ciranda::ps {
namespace {

constexpr std::size_t kAveragesMax = 1024;  // names

}  // namespace

Result<Averaged> Averages::add(Worker worker, const Average& value) {
  if (!latest_.contains(value.name) && latest_.size() >= kAveragesMax) {
    return refused(ErrorCode::kLimit, "ps.average() was called with more than " +
                                          std::to_string(kAveragesMax) + " names");
  }
  auto& latest = latest_[value.name];
  latest[worker] = value.value;
  double sum = 0.0;
  for (const auto& [each, number] : latest) sum += number;
  return Averaged{.mean = sum / static_cast<double>(latest.size()),
                  .workers = static_cast<std::uint32_t>(latest.size())};
}

}  // namespace ciranda::ps
