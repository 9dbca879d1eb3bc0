// What could break: a process is killed in an optimizer's step, and the rank that completes the
// step updates something twice or not at all, or leaves torn values.
#include "core/kernels/step_journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/oracle.h"

namespace ciranda::kernels {
namespace {

using Image = std::vector<std::byte>;

constexpr std::uint32_t kCutSeed = 0x70a2;
constexpr std::size_t kPage = 4096;
constexpr int kRanks = 3;
constexpr std::uint64_t kStep = kRanks + 1;
// Who begins the step and is killed, completes it and may be killed, and completes it then.
constexpr int kFirst = 1, kSecond = 0, kThird = 2;

// Memory in which almost every store of a new array is seen before it happens: only the two pages
// that were written last are writable (a store may cross two).
class WatchedMemory {
 public:
  explicit WatchedMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~WatchedMemory() { ::munmap(data_, bytes_); }
  WatchedMemory(const WatchedMemory&) = delete;
  WatchedMemory& operator=(const WatchedMemory&) = delete;

  std::byte* data() const { return data_; }
  Image image() const { return {data_, data_ + bytes_}; }

  // Runs `work` on a copy of `image`. Calls `before_store` before stores, with the memory as it
  // would be if the process were killed there.
  void run(const Image& image, const std::function<void()>& work,
           std::function<void()> before_store) {
    std::memcpy(data_, image.data(), bytes_);
    before_store_ = std::move(before_store);
    watched = this;
    struct sigaction action = {};
    struct sigaction old = {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) { watched->fault(info->si_addr); };
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &old);
    writable_ = {};
    ::mprotect(data_, bytes_, PROT_READ);
    work();
    ::mprotect(data_, bytes_, PROT_READ | PROT_WRITE);
    ::sigaction(SIGSEGV, &old, nullptr);
  }

 private:
  void fault(void* address) {
    const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(address) - data_);
    if (offset >= bytes_) ::abort();  // not ours
    before_store_();
    if (writable_[1] != nullptr) ::mprotect(writable_[1], kPage, PROT_READ);
    writable_ = {data_ + offset / kPage * kPage, writable_[0]};
    ::mprotect(writable_[0], kPage, PROT_READ | PROT_WRITE);
  }

  static inline WatchedMemory* watched = nullptr;
  std::byte* data_ = nullptr;
  const std::size_t bytes_;
  std::array<std::byte*, 2> writable_ = {};
  std::function<void()> before_store_;
};

struct Slice {  // of the bucket, in bytes; a run of one step number
  std::size_t begin;
  std::size_t end;
  std::int64_t step;
};

// A bucket of one chunk: the copies of its parameters and its state, and the journal.
class JournaledBucket {
 public:
  static constexpr std::size_t kBytes = 640 + 7 * kSavedBytes + 192;
  static constexpr Slice kSlices[] = {{0, 600, 4}, {640, kBytes - 64, 3}};

  JournaledBucket(const Variant& variant, const UpdateRule& rule, DType dtype,
                  std::mt19937_64& random)
      : variant_(variant),
        rule_(rule),
        dtype_(dtype),
        shape_{.bytes = kBytes, .ranks = kRanks, .states = state_count(rule)},
        journal_bytes_(whole_pages(StepJournal::memory_bytes(shape_))) {
    for (Image& gradient : gradients_) {
      gradient = oracle::random_elements(random, dtype, kBytes / dtype_bytes(dtype));
    }
    before_.resize(bytes());
    const Image parameters = oracle::random_elements(random, dtype, kBytes / dtype_bytes(dtype));
    for (int copy = 0; copy < kRanks; ++copy) {
      std::memcpy(before_.data() + array_offset(copy), parameters.data(), kBytes);
    }
    for (int array = kRanks; array < arrays(); ++array) {
      // Averages of squares are not negative.
      Image state = oracle::random_elements(random, dtype, kBytes / dtype_bytes(dtype));
      for (std::size_t i = dtype_bytes(dtype) - 1; i < kBytes; i += dtype_bytes(dtype)) {
        state[i] &= std::byte{0x7F};
      }
      std::memcpy(before_.data() + array_offset(array), state.data(), kBytes);
    }
    after_ = before_;
    for (int rank = 0; rank < kRanks; ++rank) {  // earlier steps; the journal remembers them
      Image stepped = before_;
      work(stepped.data(), rank, /*resumes=*/false, static_cast<std::uint64_t>(rank) + 1);
      std::copy_n(stepped.begin(), journal_bytes_, before_.begin());
    }
    for (const Slice& slice : kSlices) {
      on(after_.data(), slice, [&](const UpdateArgs& args) { update(rule_, args); });
    }
  }

  std::size_t bytes() const {
    return journal_bytes_ + static_cast<std::size_t>(arrays()) * whole_pages(kBytes);
  }
  const Image& before() const { return before_; }

  // One rank's work in `memory`, from the beginning or where another one was killed.
  void work(std::byte* memory, int rank, bool resumes, std::uint64_t step = kStep) const {
    const StepJournal journal(memory, shape_, &variant_);
    auto chunk = resumes ? journal.resume(rank, step, 0) : journal.begin(rank, step, 0);
    for (const Slice& slice : kSlices) {
      on(memory, slice, [&](const UpdateArgs& args) { chunk.update(rule_, args, slice.begin); });
    }
    chunk.end();
  }
  // What survivors do; returns whether the memory is as if nobody had been killed.
  bool complete(Image& image, int rank) const {
    const StepJournal journal(image.data(), shape_);
    if (!journal.begun(kStep)) return same(image, before_);
    if (!journal.chunk_done(kStep, 0)) work(image.data(), rank, /*resumes=*/true);
    return journal.done(kStep) && journal.next_step() == kStep + 1 && same(image, after_);
  }

  // Tears the piece that is being updated: any of its stores may have happened.
  void tear(Image& image, std::mt19937_64& random) const {
    for (const Slice& slice : kSlices) {
      for (std::size_t at = slice.begin; at < slice.end; at += kSavedBytes) {
        const std::size_t end = std::min(at + kSavedBytes, slice.end);
        if (is_as_in(after_, image, at, end)) continue;
        if (is_as_in(before_, image, at, end)) return;  // its old values may not be saved yet
        for (int array = 0; array < arrays(); ++array) {
          for (std::size_t i = array_offset(array) + at; i < array_offset(array) + end; ++i) {
            image[i] = random() % 2 == 0 ? before_[i] : after_[i];
          }
        }
        return;
      }
    }
  }

 private:
  static std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  int arrays() const { return kRanks + shape_.states; }
  std::size_t array_offset(int array) const {
    return journal_bytes_ + static_cast<std::size_t>(array) * whole_pages(kBytes);
  }

  // Calls fn with the arguments of update() for a slice.
  template <typename Fn>
  void on(std::byte* memory, const Slice& slice, Fn fn) const {
    std::array<const std::byte*, kRanks> gradients;
    std::array<std::byte*, kRanks + 3> places;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      gradients[rank] = gradients_[rank].data() + slice.begin;
    }
    for (int array = 0; array < arrays(); ++array) {
      places[static_cast<std::size_t>(array)] = memory + array_offset(array) + slice.begin;
    }
    fn(UpdateArgs{
        .dtype = dtype_,
        .step = slice.step,
        .gradient_scale = 0.5,
        .gradients = gradients,
        .parameters = std::span(places).first(kRanks),
        .states = std::span(places).subspan(kRanks, static_cast<std::size_t>(shape_.states)),
        .gradient_outputs = {},
        .count = (slice.end - slice.begin) / dtype_bytes(dtype_)});
  }

  bool is_as_in(const Image& other, const Image& image, std::size_t begin, std::size_t end) const {
    for (int array = 0; array < arrays(); ++array) {
      const std::size_t at = array_offset(array) + begin;
      if (std::memcmp(&other[at], &image[at], end - begin) != 0) return false;
    }
    return true;
  }
  bool same(const Image& image, const Image& want) const {
    return std::equal(image.begin() + static_cast<std::ptrdiff_t>(journal_bytes_), image.end(),
                      want.begin() + static_cast<std::ptrdiff_t>(journal_bytes_));
  }

  const Variant& variant_;
  const UpdateRule rule_;
  const DType dtype_;
  const StepJournal::Shape shape_;
  const std::size_t journal_bytes_;
  std::array<Image, kRanks> gradients_;
  Image before_, after_;
};

struct RuleCase {
  const char* name;
  UpdateRule rule;
  DType dtype;
};
// Each rule, number of arrays and dtype.
const RuleCase kRuleCases[] = {
    {"SGD", {.kind = RuleKind::kSgd}, DType::kFloat32},
    {"SGD_momentum", {.kind = RuleKind::kSgd, .momentum = 0.9}, DType::kBFloat16},
    {"Adam", {.kind = RuleKind::kAdam}, DType::kFloat32},
    {"AdamW", {.kind = RuleKind::kAdamW, .amsgrad = true}, DType::kFloat64},
    {"Adagrad", {.kind = RuleKind::kAdagrad}, DType::kFloat16},
    {"RMSprop", {.kind = RuleKind::kRmsprop, .momentum = 0.9, .centered = true}, DType::kFloat32},
    {"Lion", {.kind = RuleKind::kLion}, DType::kFloat64},
};
void PrintTo(const RuleCase& each, std::ostream* out) {
  *out << each.name;
}

class EveryRule : public testing::TestWithParam<std::tuple<const Variant*, RuleCase>> {};
std::string variant_and_rule(const testing::TestParamInfo<EveryRule::ParamType>& info) {
  const auto& [variant, rule] = info.param;
  return std::string(variant->name) + "_" + rule.name;
}
INSTANTIATE_TEST_SUITE_P(StepJournal, EveryRule,
                         testing::Combine(testing::ValuesIn(oracle::available_variants()),
                                          testing::ValuesIn(kRuleCases)),
                         variant_and_rule);

TEST_P(EveryRule, IsCompletedToTheBitAfterAKillAtAnyStoreAndASecondOne) {
  std::mt19937_64 random(kCutSeed);
  const auto& [variant, rule] = GetParam();
  const JournaledBucket bucket(*variant, rule.rule, rule.dtype, random);
  WatchedMemory memory(bucket.bytes());
  std::vector<Image> killed;  // of some first kills
  std::uint64_t stores = 0;
  int wrong = 0;
  const auto cut = [&](int next_rank, std::uint64_t every) {
    ++stores;
    if (random() % every != 0) return;
    Image image = memory.image();
    if (random() % 2 == 0) bucket.tear(image, random);
    if (next_rank == kSecond && random() % 8 == 0) killed.push_back(image);
    if (!bucket.complete(image, next_rank)) ++wrong;
  };
  memory.run(
      bucket.before(), [&] { bucket.work(memory.data(), kFirst, /*resumes=*/false); },
      [&] { cut(kSecond, 16); });
  EXPECT_GT(stores, 200U);
  EXPECT_EQ(wrong, 0) << "after one kill, seed " << kCutSeed;
  Image whole = memory.image();
  EXPECT_TRUE(bucket.complete(whole, kSecond)) << "without a kill";

  EXPECT_GT(killed.size(), 1U);
  killed.resize(std::min<std::size_t>(killed.size(), 3));
  for (const Image& image : killed) {
    memory.run(
        image, [&] { bucket.work(memory.data(), kSecond, /*resumes=*/true); },
        [&] { cut(kThird, 48); });
  }
  EXPECT_EQ(wrong, 0) << "after two kills, seed " << kCutSeed;
}

TEST(StepJournal, TellsWhichChunksOfWhichStepAreDone) {
  constexpr std::uint64_t kBytes = 3 * StepJournal::kChunkBytes - 64;
  const StepJournal::Shape shape{.bytes = kBytes, .ranks = 2, .states = 0};
  alignas(64) static std::array<std::byte, 40000> memory = {};
  ASSERT_LE(StepJournal::memory_bytes(shape), memory.size());
  const StepJournal journal(memory.data(), shape);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    EXPECT_EQ(journal.next_step(), step);
    EXPECT_FALSE(journal.begun(step));
    for (std::uint64_t chunk : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{0}}) {
      const std::uint64_t begin = chunk * StepJournal::kChunkBytes;
      auto work = journal.begin(static_cast<int>(chunk % 2), step, begin);
      EXPECT_TRUE(journal.begun(step));
      EXPECT_FALSE(journal.chunk_done(step, begin));
      EXPECT_FALSE(journal.done(step));
      work.end();
      EXPECT_TRUE(journal.chunk_done(step, begin));
    }
    EXPECT_TRUE(journal.done(step));
  }
}

}  // namespace
}  // namespace ciranda::kernels
