// What could break: one server that is not there and keeps the others from being called, or is not
// named.
#include "core/ps/io/connect.h"

#include "ps/io/service.h"

namespace ciranda::ps {
namespace {

using ConnectToServers = testing::Service;

TEST_F(ConnectToServers, SomeAreHereAndSomeElsewhere) {
  workers_ = 1;
  servers_count_ = 2;
  auto here = Server::start(options_of(0, 10'000'000'000));
  ASSERT_TRUE(here.ok());
  be_elsewhere();
  auto elsewhere = Server::start(options_of(1, 10'000'000'000));
  ASSERT_TRUE(elsewhere.ok());
  std::vector<std::thread> threads;
  for (Server* server : {here.value().get(), elsewhere.value().get()}) {
    threads.emplace_back([server] { EXPECT_TRUE(server->run().ok()); });
  }
  {
    const auto client = connect(0);
    EXPECT_EQ(client->stats().value().size(), 2u);
  }
  for (std::thread& thread : threads) thread.join();  // it has left both
}

TEST_F(ConnectToServers, TheOneThatIsNotThereIsNamed) {
  be_elsewhere();
  start_servers(1, 1);
  servers_count_ = 2;
  const Fd taken = listen_tcp("127.0.0.1").value();
  const std::uint16_t port = local_address(taken.get()).value().endpoint().port;
  endpoints_.push_back(Endpoint{.host = "127.0.0.1", .port = port});  // nobody answers there
  ServersAddress address = options(0).address;
  address.timeout_ms = 300;
  const WorkerMemory memory;
  WaitNotice notice;
  const auto links = connect_to_servers(address, memory, notice);
  ASSERT_FALSE(links.ok());
  EXPECT_EQ(links.error().text.find("server 1 could not be reached in time"), 0u)
      << links.error().text;
}

}  // namespace
}  // namespace ciranda::ps
