#include "core/engine/run/submitted_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace ciranda::testing {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::ranges::transform(text, bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

// What an engine does with the submission.
void give(Submission& submission, std::string_view all, std::vector<std::int64_t> rows) {
  auto place = submission.allocate(0, static_cast<std::int64_t>(all.size()));
  ASSERT_TRUE(place.ok());
  std::ranges::copy(bytes_of(all), place.value());
  submission.handle->set_rows(std::move(rows));
  submission.handle->complete({});
}

class SubmittedExchangeTest : public ::testing::Test {
 protected:
  SubmittedExchangeTest() : exchange_(std::in_place, bytes_of("own")) {
    exchange_->submit("ciranda.exchange.x", kWorldGroup, queue_);
    queue_.drain_into(submissions_);
  }

  SubmissionQueue queue_;
  std::optional<SubmittedExchange> exchange_;
  std::vector<Submission> submissions_;
};

TEST_F(SubmittedExchangeTest, GivesEveryRanksBytes) {
  ASSERT_EQ(submissions_.size(), 1u);
  EXPECT_EQ(submissions_[0].rows, std::vector<std::int64_t>{3});
  EXPECT_FALSE(exchange_->done());
  give(submissions_[0], "ownothers", {3, 0, 6});
  ASSERT_TRUE(exchange_->done());
  const auto all = exchange_->result();
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all.value(), (std::vector{bytes_of("own"), bytes_of(""), bytes_of("others")}));
}

TEST_F(SubmittedExchangeTest, TellsWhyItFailed) {
  submissions_[0].handle->complete(Error{.code = ErrorCode::kRankLost, .text = "gone"});
  ASSERT_TRUE(exchange_->done());
  EXPECT_EQ(exchange_->result().error().text, "gone");
}

TEST_F(SubmittedExchangeTest, IsRefusedUnderANameInUse) {
  SubmittedExchange second({});
  second.submit("ciranda.exchange.x", kWorldGroup, queue_);
  ASSERT_TRUE(second.done());
  EXPECT_EQ(second.result().error().code, ErrorCode::kDuplicateName);
}

TEST_F(SubmittedExchangeTest, MayBeGoneWhenTheAnswerComes) {
  exchange_.reset();
  give(submissions_[0], "own", {3});
}

}  // namespace
}  // namespace ciranda::testing
