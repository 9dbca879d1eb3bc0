#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace ciranda::ps {

// Decides when to report a long wait: first after 5 s, then at growing intervals. The interval
// carries over to later waits, so that a job with many long waits reports only some of them.
//
// Not thread-safe.
class WaitNotice {
 public:
  // `who`: who waits, as in "ciranda: worker 3".
  explicit WaitNotice(std::string who = "ciranda", std::uint64_t first_ns = 5'000'000'000)
      : who_(std::move(who)), after_ns_(first_ns) {}

  // Returns when to report next on a wait that began at `begun_ns` (both monotonic_ns).
  std::uint64_t due_ns(std::uint64_t begun_ns) const;
  // Returns the report if it is due, and counts it as made. `for_what`: as in "server 1 to answer".
  std::optional<std::string> words(std::uint64_t begun_ns, std::uint64_t now_ns,
                                   const std::string& for_what);
  // Prints the report on stderr if it is due.
  void say(std::uint64_t begun_ns, std::uint64_t now_ns, const std::string& for_what);

 private:
  std::string who_;
  std::uint64_t after_ns_;     // from the wait's beginning, or from the last report
  std::uint64_t said_ns_ = 0;  // when the last report was made
};

}  // namespace ciranda::ps
