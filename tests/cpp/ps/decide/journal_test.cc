// What could break: a change that comes back otherwise, or bytes of a broken disk that are
// believed.
#include "core/ps/decide/journal.h"

#include <gtest/gtest.h>

#include <vector>

#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::exact_rule;

Push push_of(Worker worker) {
  return {.worker = worker,
          .seq = 7,
          .base = 3,
          .clock = 9,
          .scale = 0.25,
          .rules = {exact_rule(), exact_rule()},
          .used = {true, false, true}};
}

std::vector<Change> one_change_of_each() {
  return {{.kind = Change::Kind::kApplied, .pushes = {push_of(0), push_of(2)}, .scale = 0.5},
          {.kind = Change::Kind::kSkipped, .pushes = {push_of(1)}, .outcome = Outcome::kStale},
          {.kind = Change::Kind::kEntered, .worker = 3, .life = 1ull << 40, .process = 1ull << 63},
          {.kind = Change::Kind::kLeft, .worker = 255},
          {.kind = Change::Kind::kScheduled, .task = 7, .copies = 2, .text = "train [7]"},
          {.kind = Change::Kind::kTaskDone, .task = 7, .failed = true, .text = "why"},
          {.kind = Change::Kind::kTasksClosed, .task = 7},
          {.kind = Change::Kind::kWorked,
           .work = {.number = 1, .sums = {{.into = 3, .terms = {{0, 2.0}}}}, .dots = {{3, 0}}}},
          {.kind = Change::Kind::kRows,
           .worker = 2,
           .rows = {.seq = 5, .table = 1, .count = 3, .rule = exact_rule()}},
          {.kind = Change::Kind::kResumed, .text = "the next job"}};
}

std::vector<std::byte> bytes_of(const Change& change) {
  std::vector<std::byte> bytes;
  encode(change, bytes);
  return bytes;
}

TEST(Journal, ChangesComeBackAsTheyWere) {
  ASSERT_EQ(one_change_of_each().size(), static_cast<std::size_t>(kChangeKindCount));
  for (const Change& change : one_change_of_each()) {
    const auto back = decode_change(bytes_of(change));
    ASSERT_TRUE(back.ok()) << back.error().text;
    EXPECT_EQ(back.value(), change);
  }
}

TEST(Journal, CutOrLongerOnesAreRefused) {
  for (const Change& change : one_change_of_each()) {
    std::vector<std::byte> bytes = bytes_of(change);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decode_change(std::span(bytes).first(size)).ok()) << size;
    }
    bytes.push_back({});
    EXPECT_EQ(decode_change(bytes).error().code, ErrorCode::kMalformed);
  }
}

TEST(Journal, AnotherMessageIsNoPush) {
  // A Beat, where the push should be.
  const std::vector<std::byte> bytes = {std::byte{1}, std::byte{0}, std::byte{1}, std::byte{8}};
  EXPECT_EQ(decode_change(bytes).error().text, "change.push at byte 4 is another message");
}

}  // namespace
}  // namespace ciranda::ps
