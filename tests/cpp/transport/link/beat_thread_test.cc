// What could break: a thread that sleeps through a call, spins, or cannot be ended.
#include "core/transport/link/beat_thread.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <semaphore>

namespace ciranda {
namespace {

using Looks = std::counting_semaphore<>;

TEST(BeatThread, LooksAtOnceAndAfterEachCall) {
  Looks looks(0);
  BeatThread beats;
  ASSERT_TRUE(beats
                  .start("beats",
                         [&] {
                           looks.release();
                           return Attention{};
                         })
                  .ok());
  looks.acquire();
  for (int i = 0; i < 3; ++i) {
    beats.wake();
    looks.acquire();
  }
  beats.stop();
  EXPECT_FALSE(looks.try_acquire());  // it does not spin
  beats.stop();
}

TEST(BeatThread, LooksWhenASocketHasNewsAndWhenTheDeadlineIsOver) {
  const Fd news(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  Looks looks(0);
  int number = 0;
  BeatThread beats;
  ASSERT_TRUE(
      beats
          .start("beats",
                 [&]() -> Attention {
                   looks.release();
                   ++number;
                   if (number == 1) {
                     return {.sockets = {{.fd = news.get(), .events = POLLIN, .revents = 0}}};
                   }
                   return {.deadline_ns = number == 2 ? monotonic_ns() + 1'000'000 : kNever};
                 })
          .ok());
  for (int i = 0; i < 3; ++i) looks.acquire();
  beats.stop();
  EXPECT_EQ(number, 3);
}

TEST(BeatThread, OneThatWasNotStartedEnds) {
  BeatThread beats;
  beats.stop();
}

}  // namespace
}  // namespace ciranda
