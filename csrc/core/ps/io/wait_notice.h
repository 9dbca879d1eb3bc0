#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace ciranda::ps {

// What is said of who waits: nothing for 5 s, and then less and less often, in later waits too, so
// that a job in which one waits for longer all the time does not say so all the time.
//
// Not thread-safe.
class WaitNotice {
 public:
  // `who`: as in "ciranda: worker 3".
  explicit WaitNotice(std::string who = "ciranda", std::uint64_t first_ns = 5'000'000'000)
      : who_(std::move(who)), after_ns_(first_ns) {}

  // When there is something to say of a wait that began then (monotonic_ns).
  std::uint64_t due_ns(std::uint64_t begun_ns) const;
  // The sentence, where it is due; it counts as said. `for_what`: as in "server 1 to answer".
  std::optional<std::string> words(std::uint64_t begun_ns, std::uint64_t now_ns,
                                   const std::string& for_what);
  // The same, on stderr.
  void say(std::uint64_t begun_ns, std::uint64_t now_ns, const std::string& for_what);

 private:
  std::string who_;
  std::uint64_t after_ns_;  // the wait's beginning, or what was said last
  std::uint64_t said_ns_ = 0;
};

}  // namespace ciranda::ps
