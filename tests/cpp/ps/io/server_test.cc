// What could break: a stranger that ends a server, a worker that keeps the others waiting, a
// refusal that nobody hears.
#include "core/ps/io/server.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <ctime>

#include "core/base/clock.h"
#include "core/transport/local/job_folder.h"
#include "core/transport/tcp/socket_io.h"
#include "ps/io/service.h"
#include "required.h"
#include "sanitizers.h"

namespace ciranda::ps {
namespace {

using testing::declare;
using testing::expect_parameters;
using testing::kSizes;
using testing::model_of;
using testing::push;

using ServiceServer = testing::ServiceAnywhere;
INSTANTIATE_TEST_SUITE_P(, ServiceServer, testing::kWays, testing::name_of);
using ServiceServerHere = testing::Service;

TEST_P(ServiceServer, RoundsAreTheMeanOfAllWorkers) {
  start_servers(2, 3);
  const Model model = model_of(kSizes, {.kind = ModeKind::kSync});
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 3; ++worker) {
    threads.emplace_back([&, worker] {
      const auto client = connect(worker);
      ASSERT_TRUE(declare(*client, model, 0.0f).ok());
      for (int i = 1; i <= 20; ++i) {
        const auto outcome = push(*client, model, static_cast<float>(worker));
        ASSERT_TRUE(outcome.ok());
        EXPECT_EQ(outcome.value(), Outcome::kApplied);
        expect_parameters(*client, model, static_cast<float>(-i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(ServiceServer, ASilentWorkersLeaseEnds) {
  start_servers(1, 2, /*lease_ns=*/300'000'000);
  const Model model = model_of(kSizes, {.kind = ModeKind::kSync});
  const auto client = Client::connect(options(0)).value();
  ClientOptions silent = options(1);
  silent.pace.beat_ns = 3'600'000'000'000;
  const auto other = Client::connect(silent).value();
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  ASSERT_TRUE(declare(*other, model, 0.0f).ok());
  ASSERT_TRUE(push(*client, model, 1.0f).ok());  // once the other's lease is over
  const auto late = push(*other, model, 1.0f);
  ASSERT_TRUE(late.ok());
  EXPECT_EQ(late.value(), Outcome::kLate);
  expect_parameters(*other, model, -1.0f);
}

TEST_P(ServiceServer, WhoDoesNotFitIsRefusedInASentence) {
  start_servers(1, 2);
  const auto refused = [&](auto change) {
    ClientOptions other = options(1);
    change(other);
    return refusal(other);
  };
  EXPECT_NE(refused([](auto& other) { other.job_id = "b"; }).find("to job 'b', server 0 to job"),
            std::string::npos);
  EXPECT_NE(refused([](auto& other) { other.workers = 3; }).find("for 3 workers and 1 servers"),
            std::string::npos);
  EXPECT_NE(refused([](auto& other) { other.address.worker = 2; }).find("there is no worker 2"),
            std::string::npos);

  const Model model = model_of(kSizes);
  const auto client = connect(0);
  const auto other = connect(1);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  Model another = model;
  another.tables[1].slots[0].shape = {18};
  const Status declared = declare(*other, another, 0.0f);
  ASSERT_FALSE(declared.ok());
  EXPECT_EQ(declared.error().code, ErrorCode::kMismatch);
  EXPECT_EQ(declared.error().text,
            "server 0: worker 1 trains another model than the workers before it: parameter 'p3' is "
            "[18] instead of [17]");
  EXPECT_TRUE(push(*client, model, 1.0f).ok());  // the server lives on
}

// Whatever comes first, the server says why it hangs up, and serves the others.
TEST_F(ServiceServerHere, StrangersAreCutOff) {
  start_servers(1, 1);
  const Model model = model_of(kSizes);
  const auto client = connect(0);
  ASSERT_TRUE(declare(*client, model, 0.0f).ok());
  std::vector<std::vector<std::byte>> packets;
  for (const Message& message :
       {Message(Push{}), Message(Pull{}), Message(Ack{}), Message(Declare{.model_bytes = 5}),
        Message(Enter{.version = 99, .job_id = "job"}), Message(Leave{})}) {
    encode(message, packets.emplace_back());
  }
  packets.push_back(std::vector<std::byte>(100, std::byte{0xff}));
  for (const auto& packet : packets) {
    auto socket = connect_in_job_folder(folder_of_server(folder_, 0), kNever, 0).value();
    ASSERT_TRUE(send_packet(socket.get(), packet, {}).ok());
    ASSERT_TRUE(wait_readable(socket.get(), kNever).ok());
    std::vector<std::byte> answer(kPacketBytesMax);
    const auto received = receive_packet(socket.get(), answer);
    ASSERT_TRUE(received.ok());
    ASSERT_EQ(received.value().what, Received::kPacket);
    const auto message = decode_message(std::span(answer).first(received.value().bytes));
    ASSERT_TRUE(message.ok());
    EXPECT_TRUE(std::holds_alternative<Refused>(message.value()));
  }
  EXPECT_TRUE(push(*client, model, 1.0f).ok());
}

// As where the folder was opened to others later.
TEST_F(ServiceServerHere, AnotherUserIsTurnedAway) {
  if (::geteuid() != 0) CIRANDA_SKIP("only root can be somebody else");
  start_servers(1, 1);
  std::filesystem::permissions(folder_, std::filesystem::perms(0755));
  std::filesystem::permissions(folder_of_server(folder_, 0), std::filesystem::perms(0755));
  const std::string path = folder_of_server(folder_, 0) + "/local";
  std::filesystem::permissions(path, std::filesystem::perms(0777));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  std::vector<std::byte> entry;
  encode(Message(Enter{.job_id = "job"}), entry);
  auto pipe = make_packet_sockets().value();
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    std::array<std::byte, 4096> answer;
    const Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const bool connected =
        ::setresuid(1, 1, 1) == 0 &&
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (!connected) ::_exit(1);
    (void)::send(socket.get(), entry.data(), entry.size(), MSG_NOSIGNAL);
    const ssize_t count = ::recv(socket.get(), answer.data(), answer.size(), 0);
    if (count > 0) (void)::send(pipe[1].get(), answer.data(), static_cast<std::size_t>(count), 0);
    ::_exit(0);
  }
  int how = 1;
  ASSERT_EQ(::waitpid(stranger, &how, 0), stranger);
  ASSERT_EQ(how, 0);
  std::vector<std::byte> answer(kPacketBytesMax);
  const auto received = receive_packet(pipe[0].get(), answer);
  ASSERT_TRUE(received.ok());
  const auto message = decode_message(std::span(answer).first(received.value().bytes));
  ASSERT_TRUE(message.ok() && std::holds_alternative<Refused>(message.value()));
  EXPECT_EQ(std::get<Refused>(message.value()).text,
            "a process of user 1 (daemon) tried to join this job");
}

// Who calls waits until there is one, and who has connected for nothing makes room.
TEST_F(ServiceServerHere, WithoutDescriptorsItSleeps) {
  if (ciranda::testing::kUnderAsan)
    GTEST_SKIP() << "UBSan looks at memory through a pipe of its own";
  entry_ns_ = 1'000'000'000;
  start_servers(1, 1);
  Fd idle = connect_in_job_folder(folder_of_server(folder_, 0), kNever, 0).value();
  const auto client = connect(0);  // after which the other is accepted, too
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const Fd next(::dup(idle.get()));  // the lowest that is free
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next.get());
  Fd waiting(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (folder_of_server(folder_, 0) + "/local").c_str());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  ASSERT_EQ(::connect(waiting.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::clock_t begun = std::clock();
  ASSERT_TRUE(wait_readable(idle.get(), monotonic_ns() + 20'000'000'000).value());
  EXPECT_LT(std::clock() - begun, CLOCKS_PER_SEC / 4);  // of the second until then
  idle.reset();
  std::vector<std::byte> packet;
  encode(Message(Pull{}), packet);
  EXPECT_TRUE(send_packet(waiting.get(), packet, {}).ok());
  EXPECT_TRUE(wait_readable(waiting.get(), monotonic_ns() + 20'000'000'000).value());
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(declare(*client, model_of(kSizes), 0.0f).ok());
}

}  // namespace
}  // namespace ciranda::ps
