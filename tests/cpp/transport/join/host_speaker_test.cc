// What could break: a rank of a host that is left out, or that waits for a first rank that is gone.
#include "core/transport/join/host_speaker.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/base/clock.h"

namespace ciranda {
namespace {

Introduction rank(Rank number) {
  return {.rank = number,
          .size = 2,
          .host = 0,
          .hosts = 1,
          .local_rank = number,
          .local_size = 2,
          .addresses = {{"192.0.2.1", static_cast<std::uint16_t>(4000 + number)}}};
}

std::uint64_t in_ms(std::uint64_t ms) {
  return monotonic_ns() + ms * 1'000'000;
}

TEST(HostSpeaker, GathersItsHostAndTellsItWhatCameOfTheMeeting) {
  std::vector<LocalMesh> meshes = make_loopback(2).value();
  std::optional<Result<HostTable>> heard;
  std::thread other(
      [&] { heard = let_first_speak(meshes[1], rank(1), {.deadline_ns = in_ms(10'000)}); });
  const auto host = gather_host(meshes[0], rank(0), {.deadline_ns = in_ms(10'000)});
  EXPECT_TRUE(host.ok());
  const MeetingId id = {std::byte{7}};
  EXPECT_TRUE(tell_host(meshes[0], make_host_table(id, host.value()).value()).ok());
  other.join();
  ASSERT_TRUE(heard->ok());
  EXPECT_EQ(heard->value().meeting, id);
  EXPECT_EQ(heard->value().ranks, (std::vector{rank(0), rank(1)}));
}

TEST(HostSpeaker, TellsItsHostWhyTheMeetingFailed) {
  std::vector<LocalMesh> meshes = make_loopback(2).value();
  refuse_host(meshes[0], {.text = "host 1 is missing"});
  const auto heard = let_first_speak(meshes[1], rank(1), {.deadline_ns = in_ms(10'000)});
  ASSERT_FALSE(heard.ok());
  EXPECT_EQ(heard.error().text, "host 1 is missing");
}

TEST(HostSpeaker, TellsItsHostThatTheMeetingWasBrokenOff) {
  for (const ErrorCode code : {ErrorCode::kRankLost, ErrorCode::kShutdown}) {
    std::vector<LocalMesh> meshes = make_loopback(2).value();
    refuse_host(meshes[0], {.code = code, .text = "host 1 is gone"});
    const auto heard = let_first_speak(meshes[1], rank(1), {.deadline_ns = in_ms(10'000)});
    ASSERT_FALSE(heard.ok());
    EXPECT_EQ(heard.error().code, ErrorCode::kRankLost);
    EXPECT_EQ(heard.error().text, "host 1 is gone");
  }
}

TEST(HostSpeaker, WhoSaysNothingAndWhoIsGoneIsNamed) {
  std::vector<LocalMesh> meshes = make_loopback(2).value();
  const auto silent = gather_host(meshes[0], rank(0), {.deadline_ns = in_ms(10)});
  ASSERT_FALSE(silent.ok());
  EXPECT_EQ(silent.error().code, ErrorCode::kTimeout);
  EXPECT_NE(silent.error().text.find("local rank 1 of host 0"), std::string::npos);

  meshes[1].peers[0].socket.reset();
  EXPECT_EQ(gather_host(meshes[0], rank(0), {.deadline_ns = in_ms(10'000)}).error().code,
            ErrorCode::kRankLost);
}

}  // namespace
}  // namespace ciranda
