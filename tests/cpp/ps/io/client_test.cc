// What could break: a lost server that is waited for, a worker that is gone and keeps others.
#include "core/ps/io/client.h"

#include "ps/io/service.h"

namespace ciranda::ps {
namespace {

using testing::declare;
using testing::expect_parameters;
using testing::kSizes;
using testing::model_of;
using testing::push;

using ServiceClient = testing::ServiceAnywhere;
INSTANTIATE_TEST_SUITE_P(, ServiceClient, testing::kWays, testing::name_of);

TEST_P(ServiceClient, AWorkerThatIsGoneKeepsNobodyAndMayComeBack) {
  start_servers(2, 2);
  const Model model = model_of(kSizes, {.kind = ModeKind::kSsp});
  const auto client = connect(0);
  auto other = connect(1);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  ASSERT_TRUE(declare(*other, model, 0.0f).ok());
  other.reset();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(push(*client, model, 1.0f).ok());
  other = connect(1, 2);
  ASSERT_TRUE(declare(*other, model, 50.0f).ok());
  expect_parameters(*other, model, -3.0f);
  std::thread pushes([&] { ASSERT_TRUE(push(*other, model, 1.0f).ok()); });
  ASSERT_TRUE(push(*client, model, 1.0f).ok());
  pushes.join();
  expect_parameters(*client, model, -5.0f);
  EXPECT_NE(refusal(options(1, 1)).find("has been restarted"), std::string::npos);
  EXPECT_NE(refusal(options(1, 2)).find("worker 1 is connected already"), std::string::npos);
}

TEST_P(ServiceClient, ALostServerIsNamed) {
  start_servers(2, 1);
  const Model model = model_of(kSizes);
  const auto client = connect(0);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  stop_server(1);
  const auto outcome = push(*client, model, 1.0f);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kRankLost);
  EXPECT_EQ(outcome.error().text, "server 1 is lost");
  EXPECT_FALSE(client->parameters().pull().ok());
}

TEST_P(ServiceClient, AServerThatDoesNotComeIsNamed) {
  start_servers(2, 1);
  stop_server(1);
  ClientOptions impatient = options(0);
  impatient.address.timeout_ms = 1;
  EXPECT_NE(refusal(impatient).find("server 1"), std::string::npos);
}

TEST_P(ServiceClient, AveragesWaitForNobody) {
  start_servers(2, 2);
  const auto client = connect(0);
  const auto other = connect(1);
  EXPECT_EQ(client->average("loss", 4.0).value(), 4.0);
  EXPECT_EQ(other->average("loss", 2.0).value(), 3.0);
  EXPECT_EQ(client->average("loss", 6.0).value(), 4.0);
  EXPECT_EQ(client->average("accuracy", 1.0).value(), 1.0);
}

}  // namespace
}  // namespace ciranda::ps
