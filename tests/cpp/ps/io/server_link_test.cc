// What could break: an answer that overwrites what another server holds, or state that lands beside
// its place.
#include "core/ps/io/server_link.h"

#include "ps/io/links.h"

namespace ciranda::ps {
namespace {

using testing::at;
using testing::connect_ends;
using testing::declare_through;
using testing::Ends;
using testing::heard_by_server;
using testing::heard_by_worker;
using testing::kSizes;
using testing::memory_of;
using testing::model_of;
using testing::Way;

class ServerLinkEnds : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(, ServerLinkEnds, ::testing::Values(Way::kHere, Way::kElsewhere),
                         testing::name_of);

TEST_P(ServerLinkEnds, AnAnswerBringsTheServersShareAndNoOther) {
  const Model model = model_of(kSizes);
  WorkerMemory memory = memory_of(model, 2, 1.0f);
  Ends ends = connect_ends(GetParam(), memory, 1, 2);
  std::byte* const seen = declare_through(ends, memory);
  for (const auto& [begin, bytes] : memory.layout->parameters_of(1)) {
    std::fill_n(at(seen, begin), bytes / sizeof(float), 5.0f);
  }
  ASSERT_TRUE(ends.server->send(Ack{.seq = 1, .version = 9}).ok());
  const auto heard = heard_by_worker(ends);
  ASSERT_TRUE(heard.ok());
  EXPECT_EQ(std::get<Ack>(heard.value()).version, 9u);
  std::byte* const own = memory.memory.segment.data();
  for (const auto& [begin, bytes] : memory.layout->parameters_of(1)) {
    ASSERT_EQ(*at(own, begin), 5.0f);
    ASSERT_EQ(*at(own, begin + bytes - sizeof(float)), 5.0f);
  }
  for (const auto& [begin, bytes] : memory.layout->parameters_of(0)) {
    ASSERT_EQ(*at(own, begin), 1.0f);
  }
}

TEST_P(ServerLinkEnds, FetchedStateLandsInItsTable) {
  const Model model = model_of(kSizes);
  WorkerMemory memory = memory_of(model, 2, 1.0f);
  Ends ends = connect_ends(GetParam(), memory, 1, 2);
  declare_through(ends, memory);
  const auto bytes = static_cast<std::size_t>(memory.layout->elements(0)) * sizeof(float);
  memory.fetched = SharedMemory::create(bytes).value();
  memory.fetched_bytes = bytes;
  memory.fetched_table = 0;
  ASSERT_TRUE(ends.worker->send(FetchState{}).ok());
  ASSERT_TRUE(heard_by_server(ends).ok());
  std::byte* const into = ends.server->attached().memory(bytes).value();
  for (const auto& [begin, size] : memory.layout->table_of(1, 0)) *at(into, begin) = 4.0f;
  ASSERT_TRUE(ends.server->send(Fetched{}).ok());
  ASSERT_TRUE(heard_by_worker(ends).ok());
  for (const auto& [begin, size] : memory.layout->table_of(1, 0)) {
    ASSERT_EQ(*at(memory.fetched.segment.data(), begin), 4.0f);
  }
}

TEST(ServerLink, DataForWhichNobodyAskedIsRefused) {
  const WorkerMemory memory = memory_of(model_of(kSizes), 1, 1.0f);
  for (const Message& unasked : {Message(Fetched{}), Message(RowsRead{})}) {
    Ends ends = connect_ends(Way::kElsewhere, memory);
    declare_through(ends, memory);
    ASSERT_TRUE(ends.server->send(unasked).ok());
    const auto heard = heard_by_worker(ends);
    ASSERT_FALSE(heard.ok());
    EXPECT_EQ(heard.error().code, ErrorCode::kMalformed);
  }
}

TEST_P(ServerLinkEnds, TheEndOfAServerIsSaidAfterItsLastWords) {
  const WorkerMemory memory;
  Ends ends = connect_ends(GetParam(), memory);
  ASSERT_TRUE(ends.server->send(Refused{.text = "why"}).ok());
  ends.server->end();
  const auto last = heard_by_worker(ends);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(std::get<Refused>(last.value()).text, "why");
  ends.server.reset();
  const auto end = ends.worker->receive();
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code, ErrorCode::kRankLost);
}

}  // namespace
}  // namespace ciranda::ps
