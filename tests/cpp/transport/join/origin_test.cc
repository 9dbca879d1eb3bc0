// What could break: ranks of two jobs that are taken for one, and those of one job that are not.
#include "core/transport/join/origin.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace ciranda {
namespace {

// Processes that wait to be killed, with a command and an environment of their own.
class OriginTest : public ::testing::Test {
 protected:
  ~OriginTest() override {
    for (const pid_t pid : started_) ::kill(pid, SIGKILL);
    for (const pid_t pid : started_) ::waitpid(pid, nullptr, 0);
  }

  // `script`: of a shell, which starts a rank; the rank's pid is what it prints once it is one.
  pid_t start(const std::string& script) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(ends[1], 1);
      ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    started_.push_back(pid);
    std::string said;
    char each = 0;
    while (::read(ends[0], &each, 1) == 1 && each != '\n') said += each;
    ::close(ends[0]);
    const auto told = static_cast<pid_t>(std::stoi(said));
    if (told != pid) started_.push_back(told);
    return told;
  }
  static std::string rank(const std::string& number, const std::string& arguments = "") {
    return "RANK=" + number + " exec sh -c 'echo $$; kill -STOP $$' " + arguments;
  }
  static std::string below_a_shell(const std::string& number) { return rank(number) + " & wait"; }

  static Status check(pid_t rank_0, pid_t other, int number = 1) {
    return check_same_job({.pid = rank_0, .number = 0}, {.pid = other, .number = number}, "RANK");
  }

  std::vector<pid_t> started_;
};

TEST_F(OriginTest, RanksOfOneParentBelongTogether) {
  EXPECT_TRUE(check(start(rank("0")), start(rank("1"))).ok());
}

TEST_F(OriginTest, RanksOfTwoParentsDoNot) {
  const pid_t rank_0 = start(below_a_shell("0"));
  const pid_t other = start(below_a_shell("1"));
  const Status same = check(rank_0, other);
  ASSERT_FALSE(same.ok());
  EXPECT_EQ(same.error().rank, 1);
  const std::string& text = same.error().text;
  EXPECT_NE(text.find("rank 1 (pid " + std::to_string(other) + ") was started by another process"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("set CIRANDA_JOB_ID to the same name"), std::string::npos) << text;
}

TEST_F(OriginTest, DigestsTellThisProcessItsStarterAndItsHost) {
  const OriginDigests here = origin_of_this_process("RANK");
  const OriginDigests again = origin_of_this_process("RANK");
  EXPECT_NE(here.host, 0u);
  EXPECT_NE(here.process, here.starter);
  EXPECT_EQ(here.host, again.host);
  EXPECT_EQ(here.process, again.process);
  EXPECT_EQ(here.starter, again.starter);
  // A child: this process is its starter.
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const OriginDigests own = origin_of_this_process("RANK");
    ::_exit(::write(ends[1], &own, sizeof own) == sizeof own ? 0 : 1);
  }
  OriginDigests own;
  ASSERT_EQ(::read(ends[0], &own, sizeof own), static_cast<ssize_t>(sizeof own));
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(own.host, here.host);
  EXPECT_EQ(own.starter, here.process);
  EXPECT_NE(own.process, here.process);
}

TEST_F(OriginTest, AWrapperThatGotTheNumberTooIsNotTheStarter) {
  const auto wrapped = [&](const std::string& number) {
    return start("RANK=" + number + " exec sh -c \"" +
                 "sh -c 'echo \\$\\$; kill -STOP \\$\\$' & wait\"");
  };
  const pid_t rank_0 = wrapped("0");
  const pid_t other = wrapped("1");
  EXPECT_TRUE(check(rank_0, other).ok());
}

TEST_F(OriginTest, CommandsMayDifferByTheRanksNumberAlone) {
  const pid_t rank_0 = start(rank("0", "train --r=0.5"));
  EXPECT_TRUE(check(rank_0, start(rank("1", "train --r=1.5"))).ok());
  EXPECT_TRUE(check(rank_0, start(rank("4", "train --r=4.5"))).ok())
      << "the number that it was told";
  const Status other = check(rank_0, start(rank("1", "train --r=2.5")));
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().text.find("was started by another command than rank 0"),
            std::string::npos)
      << other.error().text;
  EXPECT_FALSE(check(rank_0, start(rank("1"))).ok());
}

TEST_F(OriginTest, ARankThatRankZeroStartedIsOfItsJob) {
  EXPECT_TRUE(check(::getpid(), start(rank("1"))).ok());
}

TEST_F(OriginTest, WhatCannotBeSeenIsBelieved) {
  EXPECT_TRUE(check(0, start(rank("1"))).ok());
  EXPECT_TRUE(check(start(rank("0")), 0).ok());
}

}  // namespace
}  // namespace ciranda
