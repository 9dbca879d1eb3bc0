#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/member/messages.h"
#include "core/wire/types.h"

namespace ciranda::member {

enum class NewsKind : std::uint8_t {
  kFormed,        // all members of an epoch have formed it
  kWaiting,       // a member was lost and too few are left: the job waits for new ones
  kEndedLate,     // a signal ended a process after its work was done, which does no harm
  kBadMessage,    // a process sent bytes that are no message, and is killed
  kNoMoreStarts,  // reset_limit is used up: a lost process is not started again
  kSilent,        // a process was silent for a lease, and is killed
};
// A member that was lost, and the rank that it had.
struct Lost {
  Incarnation incarnation = 0;
  Rank rank = 0;
  bool operator==(const Lost&) const = default;
};
// Something that the arbiter tells the user.
struct News {
  NewsKind kind = NewsKind::kFormed;
  Incarnation incarnation = 0;       // of the process, if the news are about one
  EpochNumber epoch = 0;             // the newest one; 0: none yet
  std::vector<Incarnation> members;  // kFormed: in the order of ranks; kWaiting: who is left
  std::vector<Incarnation> joined;   // kFormed: those that were not in the epoch formed before
  std::uint64_t step = 0;            // kFormed
  bool planned = false;              // kFormed
  std::vector<Lost> lost;            // kFormed, kWaiting: since the epoch formed before
  // kFormed, kWaiting: the time since the first of these losses. Of a planned epoch: since the job
  // was last as large as before its losses; 0 if it only grows. Of the first epoch: since the
  // start.
  std::uint64_t since_ns = 0;
  bool operator==(const News&) const = default;
};

// Words the news of losses: which members were lost since an epoch was formed, and since when.
//
// Not thread-safe. Never blocks. The caller passes in the time, which never goes back.
class LossNews {
 public:
  // The job starts.
  void begin(std::uint64_t now_ns) { broken_since_ = now_ns; }
  void lose(Lost lost, std::uint64_t now_ns);
  // All members have formed this epoch.
  News formed(const NewEpoch& epoch, std::uint64_t step, std::uint64_t now_ns);
  // Those who are left wait for others. Nothing if that was told since the latest loss.
  std::optional<News> waiting(EpochNumber newest, std::vector<Incarnation> left,
                              std::uint64_t now_ns);

 private:
  bool told_waiting_ = false;
  std::vector<Incarnation> formed_members_;       // of the newest epoch that was formed
  std::vector<Lost> lost_;                        // since then
  std::optional<std::uint64_t> broken_since_;     // the first of these losses, or the start
  std::optional<std::uint64_t> too_small_since_;  // fewer members than before a loss
  std::size_t size_before_ = 0;
};

}  // namespace ciranda::member
