// What could break: an answer that is read as another's, a conversation that goes on after its end,
// or one whose first error is hidden by a later one.
#include "core/ps/io/conversation.h"

#include "ps/io/service.h"

namespace ciranda::ps {
namespace {

using testing::kWays;
using testing::name_of;

class Conversing : public testing::ServiceAnywhere {
 protected:
  // Two servers, and one worker, which each of them has let in.
  void begin() {
    start_servers(2, 1);
    options_ = options(0);
    conversation_ = std::make_unique<Conversation>(options_, memory_, nullptr);
    const MutexLock lock(conversation_->mutex());
    const Status entered = conversation_->enter();
    ASSERT_TRUE(entered.ok()) << entered.error().text;
  }

  ClientOptions options_;
  WorkerMemory memory_;
  std::unique_ptr<Conversation> conversation_;
};
INSTANTIATE_TEST_SUITE_P(Ways, Conversing, kWays, name_of);

TEST_P(Conversing, EachServerAnswersInTheOrderOfItsQuestions) {
  begin();
  const MutexLock lock(conversation_->mutex());
  ASSERT_TRUE(conversation_->ask(1, Average{.name = "a", .value = 2.0}).ok());
  ASSERT_TRUE(conversation_->ask(0, AskStats{}).ok());
  ASSERT_TRUE(conversation_->ask(1, AskStats{}).ok());
  EXPECT_TRUE(conversation_->hear<Stats>(0).ok());
  EXPECT_EQ(conversation_->hear<Averaged>(1).value().mean, 2.0);
  EXPECT_TRUE(conversation_->hear<Stats>(1).ok());
  EXPECT_EQ(conversation_->ask_stats().value().size(), 2u);
  conversation_->leave();
}

TEST_P(Conversing, AnAnswerThatDoesNotFitIsRefused) {
  begin();
  const MutexLock lock(conversation_->mutex());
  ASSERT_TRUE(conversation_->ask(1, AskStats{}).ok());
  const auto heard = conversation_->hear<Averaged>(1);
  ASSERT_FALSE(heard.ok());
  EXPECT_EQ(heard.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(heard.error().text, "server 1 sent an answer that does not fit the question");
  conversation_->leave();
}

TEST_P(Conversing, TheFirstErrorIsThatOfAllLaterQuestions) {
  begin();
  const MutexLock lock(conversation_->mutex());
  EXPECT_TRUE(conversation_->check().ok());
  EXPECT_FALSE(conversation_->lost_server());
  stop_server(1);
  EXPECT_EQ(conversation_->ask_stats().error().text, "server 1 is lost");
  stop_server(0);
  for (const Status& status :
       {conversation_->check(), conversation_->ask_all(Pull{}), conversation_->settle()}) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().text, "server 1 is lost");
  }
  EXPECT_EQ(conversation_->lost_server(), 1);
  EXPECT_EQ(conversation_->attend().deadline_ns, kNever);  // nobody to send a beat to
}

TEST_P(Conversing, EndsWhenTheClientLeaves) {
  begin();
  {
    const MutexLock lock(conversation_->mutex());
    EXPECT_NE(conversation_->attend().deadline_ns, kNever);
    conversation_->leave();
    EXPECT_EQ(conversation_->check().error().code, ErrorCode::kShutdown);
    EXPECT_FALSE(conversation_->lost_server());
  }
  await_servers();
}

}  // namespace
}  // namespace ciranda::ps
