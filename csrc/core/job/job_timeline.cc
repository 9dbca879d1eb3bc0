#include "core/job/job_timeline.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>

#include "core/base/assert.h"
#include "core/base/clock.h"
#include "core/base/secret.h"

namespace ciranda {
namespace {

constexpr std::size_t kBarriers = 16;  // the fastest ones count
constexpr std::uint64_t kHurryNs = 2'000'000;
constexpr std::chrono::microseconds kPause{100};
// Two names, so that the barrier of a rank that stops never matches one of a rank that starts.
const std::string kStart = "ciranda.timeline.start";  // NOLINT(cert-err58-cpp)
const std::string kStop = "ciranda.timeline.stop";    // NOLINT(cert-err58-cpp)

// Each rank tells this to all ranks.
struct Seen {
  std::uint64_t records = 0;
  std::array<BarrierTimes, kBarriers> barriers = {};
};
static_assert(std::is_trivially_copyable_v<Seen>);

template <typename T>
std::string to_bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <typename T>
Result<std::vector<T>> from_bytes(const std::vector<std::string>& all) {
  std::vector<T> values(all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != sizeof(T)) {
      return Error{
          .code = ErrorCode::kMalformed,
          .text = "rank " + std::to_string(rank) + " sent timeline figures of another size",
          .rank = static_cast<Rank>(rank)};
    }
    std::memcpy(&values[rank], all[rank].data(), sizeof(T));
  }
  return values;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

// -------------------------------------------------------------------------------------------
// For users

Status JobTimeline::start(const std::string& path, bool marks_cycles) {
  Timeline& timeline = engine_.timeline();
  Status started = timeline.start(path, marks_cycles);
  if (engine_.one_host()) return started;
  const MutexLock lock(mutex_);
  // Go on even after an error: the other ranks wait, and learn that this one does not record.
  const bool records = timeline.is_on();
  timeline.pause();
  const auto clocks = read_clocks(kStart, records);
  if (!clocks || !clocks.value().all_record) {
    first_.reset();
  } else if (!first_) {
    first_ = clocks.value().of_this_host;
    if (!on_host_0()) timeline.set_clock(HostClock(*first_));
  }
  timeline.resume();
  return started;
}

Status JobTimeline::stop() {
  const MutexLock lock(mutex_);
  return first_ ? merge(*std::exchange(first_, {})) : engine_.timeline().stop();
}

void JobTimeline::end(std::uint64_t patience_ns) {
  const MutexLock lock(mutex_);
  if (!first_) return;
  patience_ns_ = patience_ns;
  const Status ended = merge(*std::exchange(first_, {}));
  if (!ended && warn_) warn_(ended.error().text);
}

// -------------------------------------------------------------------------------------------
// One file

Status JobTimeline::merge(const ClockReading& first) {
  CIRANDA_ASSERT(!engine_.one_host() && !first_);  // on one host nothing is measured
  Timeline& timeline = engine_.timeline();
  timeline.pause();
  const Status met = meet(kStop);
  const Result<Clocks> clocks = met ? read_clocks(kStop, /*records=*/true) : met.error();
  if (clocks && !on_host_0()) timeline.set_clock(HostClock(first, clocks.value().of_this_host));
  const TimelinePart part = timeline.take();
  if (!clocks) return keep_apart(part, clocks.error());
  Status written;
  if (on_host_0()) written = write(part);
  const Status gathered = gather(part, written);
  return gathered || on_host_0() ? written : keep_apart(part, gathered.error());
}

// Sends the events of the ranks of other hosts to rank 0, one piece of each rank at a time. Rank 0
// takes part to the end even if it cannot write its file.
Status JobTimeline::gather(const TimelinePart& part, Status& written) {
  const std::uint64_t pieces = on_host_0() ? 0 : part.events.size();
  const auto told = collect(OpKind::kAllgather, kStop, to_bytes(pieces));
  if (!told) return told.error();
  const auto counts = from_bytes<std::uint64_t>(told.value());
  if (!counts) return counts.error();
  // All ranks of host 0 have written their parts by now, so nobody else holds the file.
  std::optional<TimelineFile> file;
  if (engine_.rank() == 0 && written.ok()) {
    auto opened = TimelineFile::open(part.path, part.job);
    if (opened) {
      file.emplace(std::move(opened).value());
    } else {
      written = opened.error();
    }
  }
  const std::uint64_t rounds = *std::max_element(counts.value().begin(), counts.value().end());
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const auto all = collect(OpKind::kGather, kStop, i < pieces ? part.events[i] : std::string());
    if (!all) return all.error();
    for (const std::string& piece : all.value()) {
      if (file && !piece.empty()) file->add(piece);
    }
  }
  if (file) written = file->close();
  const auto ended = collect(OpKind::kAllgather, kStop, to_bytes(written.ok()));
  if (!ended) return ended.error();
  if (ended.value().front() == to_bytes(true)) return {};
  return Error{.code = ErrorCode::kSystem,
               .text = "rank 0 cannot write the timelines of the other ranks",
               .rank = 0};
}

// Writes this host's own file, and warns once a host.
Status JobTimeline::keep_apart(const TimelinePart& part, const Error& why) {
  Status written = write(part);
  if (written && !on_host_0() && engine_.local_rank() == 0 && warn_) {
    warn_("the timeline of this host is in " + part.path +
          ", not in the file of host 0: " + why.text);
  }
  return written;
}

// -------------------------------------------------------------------------------------------
// Collective operations

Result<JobTimeline::Clocks> JobTimeline::read_clocks(const std::string& name, bool records) {
  Seen seen{.records = records ? 1U : 0U};
  for (BarrierTimes& barrier : seen.barriers) {
    barrier.begin_ns = monotonic_ns();
    CIRANDA_TRY(meet(name));
    barrier.end_ns = monotonic_ns();
  }
  const auto told = collect(OpKind::kAllgather, name, to_bytes(seen));
  if (!told) return told.error();
  const auto all = from_bytes<Seen>(told.value());
  if (!all) return all.error();
  const auto first_here = static_cast<std::size_t>(engine_.local_ranks().front());
  CIRANDA_ASSERT(all.value().size() == static_cast<std::size_t>(engine_.size()) &&
                 first_here < all.value().size());
  return Clocks{
      .all_record = std::all_of(all.value().begin(), all.value().end(),
                                [](const Seen& of_rank) { return of_rank.records != 0; }),
      .of_this_host = compare_clocks(all.value()[first_here].barriers, all.value()[0].barriers)};
}

Status JobTimeline::meet(const std::string& name) {
  Submission barrier;
  barrier.spec =
      std::make_shared<const RequestSpec>(RequestSpec{.name = name, .kind = OpKind::kBarrier});
  const auto handle = engine_.submit(std::move(barrier));
  return handle ? wait(handle.value()) : handle.error();
}

// Returns the bytes of each rank, by rank; a gather returns them on rank 0 and nothing elsewhere.
Result<std::vector<std::string>> JobTimeline::collect(OpKind kind, const std::string& name,
                                                      std::string mine) {
  struct Memory {  // outlives this call if wait() gives up
    std::string mine, all;
  };
  const auto memory = std::make_shared<Memory>(Memory{.mine = std::move(mine), .all = {}});
  const bool gathers = kind == OpKind::kGather;
  Submission submission;
  submission.spec = std::make_shared<const RequestSpec>(
      RequestSpec{.name = name,
                  .kind = kind,
                  .root = gathers ? 0 : kNoRank,
                  .tensors = {{.dtype = DType::kUInt8, .shape = {kAnyRows}}}});
  submission.rows.assign(gathers ? static_cast<std::size_t>(engine_.size()) : 1, 0);
  submission.rows.front() = static_cast<std::int64_t>(memory->mine.size());
  if (!gathers) submission.digest = sha256(bytes_of(memory->mine));
  submission.inputs = {bytes_of(memory->mine).data()};
  submission.allocate = [memory](std::size_t, std::int64_t rows) -> Result<std::byte*> {
    memory->all.resize(static_cast<std::size_t>(rows));
    return reinterpret_cast<std::byte*>(memory->all.data());
  };
  const auto handle = engine_.submit(std::move(submission));
  if (!handle) return handle.error();
  CIRANDA_TRY(wait(handle.value()));
  CIRANDA_ASSERT(gathers || handle.value()->digests().size() == handle.value()->rows().size());
  std::vector<std::string> parts;
  std::size_t at = 0;
  for (const std::int64_t rows : handle.value()->rows()) {
    parts.push_back(memory->all.substr(at, static_cast<std::size_t>(rows)));
    at += static_cast<std::size_t>(rows);
    const std::size_t rank = parts.size() - 1;
    if (!gathers && handle.value()->digests()[rank] != sha256(bytes_of(parts[rank]))) {
      return Error{.code = ErrorCode::kMalformed,
                   .text = "the timeline message of rank " + std::to_string(rank) +
                           " was changed on its way",
                   .rank = static_cast<Rank>(rank)};
    }
  }
  CIRANDA_ASSERT(at == memory->all.size());  // the engine asked for as many rows as it tells
  return parts;
}

// Blocks until the operation is done. If patience_ns_ is set, it polls: continuously for kHurryNs,
// about as long as a barrier takes, then every kPause. Returns kTimeout when the patience is over.
Status JobTimeline::wait(const Handle& handle) {
  if (patience_ns_ == kNever) return engine_.wait(handle);
  const std::uint64_t begin_ns = monotonic_ns();
  while (!engine_.poll(handle)) {
    const std::uint64_t waited_ns = monotonic_ns() - begin_ns;
    if (waited_ns > patience_ns_) {
      return Error{.code = ErrorCode::kTimeout,
                   .text = "not all ranks reached shutdown within " +
                           std::to_string(patience_ns_ / 1'000'000) + " ms"};
    }
    if (waited_ns < kHurryNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  return handle->status();
}

}  // namespace ciranda
