// What could break: a server that reads another share than its own, or believes a message whose
// data it has no place for.
#include "core/ps/io/worker_link.h"

#include "ps/io/links.h"

namespace ciranda::ps {
namespace {

using testing::at;
using testing::connect_ends;
using testing::declare_through;
using testing::Ends;
using testing::heard_by_server;
using testing::kSizes;
using testing::memory_of;
using testing::model_of;
using testing::Way;

Push push_of(const Model& model) {
  Push push{.seq = 1, .used = std::vector<bool>(slot_count(model), true)};
  for (const Table& table : model.tables) push.rules.push_back(table.rule);
  return push;
}

class WorkerLinks : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(, WorkerLinks, ::testing::Values(Way::kHere, Way::kElsewhere),
                         testing::name_of);

TEST_P(WorkerLinks, ADeclarationBringsModelAndParameters) {
  const Model model = model_of(kSizes);
  const WorkerMemory memory = memory_of(model, 2, 3.0f);
  Ends ends = connect_ends(GetParam(), memory, 1, 2);
  std::byte* const seen = declare_through(ends, memory);
  for (const auto& [begin, bytes] : memory.layout->parameters_of(1)) {
    ASSERT_EQ(*at(seen, begin), 3.0f);
    ASSERT_EQ(*at(seen, begin + bytes - sizeof(float)), 3.0f);
  }
}

TEST_P(WorkerLinks, APushIsReadWhereItBelongs) {
  const Model model = model_of(kSizes);
  WorkerMemory memory = memory_of(model, 2, 3.0f);
  Ends ends = connect_ends(GetParam(), memory, 1, 2);
  std::byte* const seen = declare_through(ends, memory);
  for (const auto& [begin, bytes] : memory.layout->gradients_of(1)) {
    *at(memory.memory.segment.data(), begin) = 7.0f;
  }
  ASSERT_TRUE(ends.worker->send(push_of(model)).ok());
  const auto heard = heard_by_server(ends);
  ASSERT_TRUE(heard.ok()) << heard.error().text;
  EXPECT_EQ(std::get<Push>(heard.value()), push_of(model));
  for (const auto& [begin, bytes] : memory.layout->gradients_of(1)) {
    ASSERT_EQ(*at(seen, begin), 7.0f);
  }
}

TEST_P(WorkerLinks, TheEndOfAWorkerIsNoMessage) {
  const WorkerMemory memory;
  Ends ends = connect_ends(GetParam(), memory);
  ends.worker.reset();
  const auto heard = ends.server->receive();
  ASSERT_FALSE(heard.ok());
  EXPECT_EQ(heard.error().code, ErrorCode::kRankLost);
}

// Between hosts a message that has no place for its data is refused before any of that is read.
TEST(WorkerLink, DataWithoutAPlaceIsRefused) {
  const Model model = model_of(kSizes);
  const WorkerMemory memory = memory_of(model, 1, 0.0f);
  const auto refusal = [&](const Message& message, bool declared) {
    Ends ends = connect_ends(Way::kElsewhere, memory);
    if (declared) declare_through(ends, memory);
    // As one that knows the messages, but has another link, might send it.
    std::vector<std::byte> bytes;
    encode(message, bytes);
    EXPECT_TRUE(ends.worker->send(message).ok());
    const auto heard = heard_by_server(ends);
    return heard ? "" : heard.error().text;
  };
  EXPECT_EQ(refusal(push_of(model), false),
            "a worker pushed before it had declared its parameters");
  EXPECT_NE(refusal(Declare{.model_bytes = memory.model_blob_bytes}, true)
                .find("has declared its parameters already"),
            std::string::npos);
}

// The memory of an answer belongs to one question.
TEST(WorkerLink, AQuestionBeforeTheAnswerToTheOneBeforeIsRefused) {
  Model model = model_of(kSizes);
  model.row_tables = {{.name = "words", .rows = 100, .columns = 2}};
  WorkerMemory memory = memory_of(model, 1, 0.0f);
  memory.rows.resize(1);
  const Message questions[] = {PullRows{}, PushRows{}, FetchState{}, FetchSteps{}};
  for (const Message& first : questions) {
    for (const Message& second : questions) {
      Ends ends = connect_ends(Way::kElsewhere, memory);
      declare_through(ends, memory);
      ASSERT_TRUE(ends.worker->send(first).ok());
      ASSERT_TRUE(ends.worker->send(second).ok());
      ASSERT_TRUE(heard_by_server(ends).ok());
      const auto heard = heard_by_server(ends);
      ASSERT_FALSE(heard.ok());
      EXPECT_EQ(heard.error().code, ErrorCode::kMalformed);
    }
  }
}

// A model that cannot be is refused by what it says, before memory is made for it.
TEST(WorkerLink, AModelThatCannotBeIsRefused) {
  WorkerMemory memory = memory_of(model_of(kSizes), 1, 0.0f);
  std::fill_n(memory.model_blob.segment.data(), memory.model_blob_bytes, std::byte{0xff});
  Ends ends = connect_ends(Way::kElsewhere, memory);
  ASSERT_TRUE(ends.worker->send(Declare{.model_bytes = memory.model_blob_bytes}).ok());
  EXPECT_FALSE(heard_by_server(ends).ok());
}

// It waits for each answer, so one that leaves many of them unread reads nothing.
TEST(WorkerLink, WhoReadsNoAnswersIsGone) {
  const Model model = model_of({{200'000}});
  const WorkerMemory memory = memory_of(model, 1, 0.0f);
  Ends ends = connect_ends(Way::kElsewhere, memory);
  declare_through(ends, memory);
  Status sent;
  for (int answers = 0; sent && answers < 1'000; ++answers) sent = ends.server->send(Ready{});
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code, ErrorCode::kRankLost);
}

}  // namespace
}  // namespace ciranda::ps
