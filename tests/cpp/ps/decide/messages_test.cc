// What could break: a message that comes back otherwise, or bytes of a stranger that are believed.
#include "core/ps/decide/messages.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace ciranda::ps {
namespace {

std::vector<Message> one_message_of_each() {
  kernels::UpdateRule adam{.kind = kernels::RuleKind::kAdam, .lr = 0.25, .maximize = true};
  adam.amsgrad = true;
  return {
      Enter{.job_id = "job",
            .worker = 3,
            .life = 2,
            .process = 1ull << 63,
            .workers = 4,
            .servers = 2,
            .server = 1,
            .origin = {.job = "29500", .host = 1ull << 63, .process = 2, .starter = 3}},
      Declare{.model_bytes = 12'345, .decided = 9, .returns = true, .answered = 8},
      Push{.worker = 3,
           .seq = 1ull << 40,
           .base = 7,
           .scale = 0.5,
           .rules = {adam, {}},
           .used = {true, false, true, true, true, true, true, true, false, true},
           .of = {.task = 4, .part = 2, .settled = 3},
           .into = 7,
           .rule_slots = {7, 3}},
      Pull{},
      FetchState{.table = 5, .array = 2},
      FetchSteps{},
      Average{.name = "loss", .value = -0.75},
      AskStats{},
      Beat{},
      Leave{.checkpoint = 7},
      MoveGradients{},
      Mark{.checkpoint = kCheckpointMax},
      PullRows{.table = 3, .count = 1'000},
      PushRows{.seq = 9,
               .table = 3,
               .count = 7,
               .scale = 0.5,
               .begins = true,
               .rule = adam,
               .of = {.task = 4, .part = 2, .settled = 3}},
      TakeTask{.done = 4, .failed = true, .text = "why"},
      Schedule{.task = 5, .copies = 2, .call = "train [5]"},
      CloseTasks{.tasks = 5},
      AskTask{.task = 5, .waits = true, .failures = 1},
      VectorWork{.number = 3,
                 .sums = {{.into = 2, .terms = {{0, 1.0}, {255, -0.5}}}, {.into = 1}},
                 .dots = {{1, 1}, {1, 255}}},
      Welcome{.decided = 17, .decided_rows = 6, .scheduled = 5, .keeps_state = true},
      Refused{.code = ErrorCode::kMismatch, .text = "no"},
      Ready{.version = 300, .checkpoint = 300},
      Ack{.worker = 1, .seq = 2, .outcome = Outcome::kLate, .version = UINT64_MAX, .checkpoint = 9},
      Fetched{},
      Averaged{.mean = 0.5, .workers = 4},
      Stats{.version = 1,
            .held_bytes = 2,
            .busy_ns = 3,
            .oldest_ns = 4,
            .outcomes = {5, 6, 7, 8},
            .staleness = std::vector<std::uint64_t>(16, 9),
            .gradient_bytes = 10,
            .parameter_bytes = 11,
            .lost = 12},
      Given{.task = 5, .settled = 3, .call = "train [5]"},
      TaskStatus{.task = 5, .done = true, .failed = true, .settled = 3, .text = "why"},
      VectorValues{.dots = {0.5, -3.0}},
      RowsRead{},
      RowsPushed{},
  };
}

std::vector<std::byte> bytes_of(const auto& what) {
  std::vector<std::byte> bytes;
  encode(what, bytes);
  return bytes;
}

TEST(PsMessages, ComeBackAsTheyWere) {
  const std::vector<Message> messages = one_message_of_each();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].index(), i);
    const std::vector<std::byte> bytes = bytes_of(messages[i]);
    const auto decoded = decode_message(bytes);
    ASSERT_TRUE(decoded.ok()) << i << ": " << decoded.error().text;
    EXPECT_TRUE(decoded.value() == messages[i]) << i;
  }
}

TEST(PsMessages, CutOrLongerTheyAreNone) {
  for (const Message& message : one_message_of_each()) {
    std::vector<std::byte> bytes = bytes_of(message);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_FALSE(decode_message(std::span(bytes).first(cut)).ok())
          << message.index() << " cut at " << cut;
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decode_message(bytes).ok()) << message.index();
  }
}

TEST(PsMessages, ThePushOfTheLargestModelFitsAPacket) {
  const Push push{.worker = kRanksMax - 1,
                  .seq = UINT64_MAX,
                  .base = UINT64_MAX,
                  .rules = std::vector<kernels::UpdateRule>(kTablesMax),
                  .used = std::vector<bool>(kSlotsMax, true),
                  .of = {UINT64_MAX, UINT64_MAX, UINT64_MAX}};
  EXPECT_LE(bytes_of(Message(push)).size(), kPacketBytesMax);
  const Push of_many_rules{.rules = std::vector<kernels::UpdateRule>(kRulesMax),
                           .used = std::vector<bool>(kSlotsMax / 2, true),
                           .rule_slots = std::vector<std::uint32_t>(kRulesMax, 1)};
  EXPECT_LE(bytes_of(Message(of_many_rules)).size(), kPacketBytesMax);
}

TEST(PsMessages, BitsBehindTheLastSlotAreRefused) {
  std::vector<std::byte> bytes = bytes_of(Message(Push{.used = {true, true, true}}));
  ASSERT_TRUE(decode_message(bytes).ok());
  bytes[bytes.size() - 2] = std::byte{0x0f};
  EXPECT_FALSE(decode_message(bytes).ok());
}

}  // namespace
}  // namespace ciranda::ps
