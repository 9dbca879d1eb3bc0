#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "core/wire/messages.h"

namespace ciranda {

// "All ranks agreed": run it now, or fail it everywhere with the same error.
struct Response {
  enum class Verdict : std::uint8_t {
    kRun,       // every rank contributed, everything matches
    kError,     // `error` says why; the same on every rank
    kResubmit,  // a rank used a CacheId that was evicted: only that rank's submission (named by
                // `resubmit_rank` and its token) must be sent again in full; nobody else acts
  };
  Verdict verdict = Verdict::kRun;
  std::uint64_t index = 0;  // 0, 1, 2, … over kRun and kError responses: the agreed order
  std::shared_ptr<const RequestSpec> spec;  // null only for kResubmit
  std::uint32_t occurrence = 0;
  // The number under which the spec is known from here on (kRun only), or kNoCacheId.
  CacheId cache_id = kNoCacheId;
  // contributions[r] belongs to rank r; absent where rank r had not submitted (kError only).
  std::vector<std::optional<Contribution>> contributions;
  std::optional<Error> error;
  Rank resubmit_rank = kNoRank;
  std::uint32_t resubmit_token = 0;
};

// An operation that some ranks wait for and others have not submitted.
struct StalledOp {
  std::shared_ptr<const RequestSpec> spec;
  std::uint32_t occurrence = 0;
  std::vector<Rank> missing;     // ascending
  std::uint64_t since_tick = 0;  // when the first request was handled, in the caller's ticks
};

}  // namespace ciranda
