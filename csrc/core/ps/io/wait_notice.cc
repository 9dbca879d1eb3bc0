#include "core/ps/io/wait_notice.h"

#include <algorithm>
#include <cstdio>

namespace ciranda::ps {
namespace {

constexpr std::uint64_t kLongestNs = 600'000'000'000;

}  // namespace

std::uint64_t WaitNotice::due_ns(std::uint64_t begun_ns) const {
  return std::max(begun_ns, said_ns_) + after_ns_;
}

std::optional<std::string> WaitNotice::words(std::uint64_t begun_ns, std::uint64_t now_ns,
                                             const std::string& for_what) {
  if (now_ns < due_ns(begun_ns)) return std::nullopt;
  said_ns_ = now_ns;
  after_ns_ = std::min(2 * after_ns_, kLongestNs);
  return who_ + " has waited " + std::to_string((now_ns - begun_ns) / 1'000'000'000) + " s for " +
         for_what;
}

void WaitNotice::say(std::uint64_t begun_ns, std::uint64_t now_ns, const std::string& for_what) {
  const auto said = words(begun_ns, now_ns, for_what);
  if (said) std::fprintf(stderr, "%s\n", said->c_str());
}

}  // namespace ciranda::ps
