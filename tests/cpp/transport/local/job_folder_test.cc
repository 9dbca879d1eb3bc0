// What could break: a folder where others wait in our name, a second rank 0 that takes the socket
// of the first, something left behind.
#include "core/transport/local/job_folder.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core/base/clock.h"
#include "required.h"

namespace ciranda {
namespace {

class JobFolderTest : public ::testing::Test {
 protected:
  JobFolderTest() {
    char name[] = "/tmp/ciranda-test-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~JobFolderTest() override { ::rmdir(folder_.c_str()); }

  static bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }
  static Result<Fd> connect(const std::string& folder) {
    return connect_in_job_folder(folder, monotonic_ns(), 0);
  }

  std::string folder_;
};

TEST_F(JobFolderTest, ItsListenerIsFoundAndNothingIsLeftBehind) {
  const std::string made = folder_ + "/made";
  {
    JobFolder folder(made, "job");
    ASSERT_TRUE(folder.listen(1).ok());
    EXPECT_TRUE(connect(made).ok());
  }
  EXPECT_FALSE(exists(made));
}

TEST_F(JobFolderTest, AFolderThatWasThereStays) {
  {
    JobFolder folder(folder_, "job");
    ASSERT_TRUE(folder.listen(1).ok());
  }
  EXPECT_TRUE(exists(folder_));
  EXPECT_FALSE(exists(folder_ + "/local"));
}

TEST_F(JobFolderTest, ASecondRankZeroIsRefusedAndTakesNothing) {
  JobFolder first(folder_, "job");
  ASSERT_TRUE(first.listen(1).ok());
  {
    JobFolder second(folder_, "other");
    const Status refused = second.listen(1);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().text.find("rank 0 of job 'other' too"), std::string::npos)
        << refused.error().text;
  }
  EXPECT_TRUE(connect(folder_).ok());
}

TEST_F(JobFolderTest, AFolderThatOthersCanReadIsRefused) {
  ::chmod(folder_.c_str(), 0755);
  const Status refused = JobFolder(folder_, "job").listen(1);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("not a private directory"), std::string::npos);
}

TEST_F(JobFolderTest, AFolderOfAnotherUserIsNamedWithItsOwnerAndTheWayOut) {
  if (::geteuid() != 0) CIRANDA_SKIP("only root can give a folder away");
  ASSERT_EQ(::chown(folder_.c_str(), 1, 1), 0);
  const Status refused = JobFolder(folder_, "job").listen(1);
  ASSERT_FALSE(refused.ok());
  const std::string& said = refused.error().text;
  EXPECT_NE(said.find("belongs to user 1 (daemon), who could make it first"), std::string::npos)
      << said;
  EXPECT_NE(said.find("CIRANDA_JOB_DIR"), std::string::npos);
}

TEST_F(JobFolderTest, WhoConnectsLooksWhoseTheFolderIs) {
  if (::geteuid() != 0) CIRANDA_SKIP("only root can give a folder away");
  JobFolder folder(folder_, "job");
  ASSERT_TRUE(folder.listen(1).ok());
  ASSERT_EQ(::chown(folder_.c_str(), 1, 1), 0);
  const auto refused = connect(folder_);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("belongs to user 1 (daemon)"), std::string::npos)
      << refused.error().text;
}

// The kernel tells who has begun to listen.
TEST_F(JobFolderTest, WhoConnectsLooksWhoListens) {
  if (::geteuid() != 0) CIRANDA_SKIP("only root can be somebody else");
  const Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (folder_ + "/local").c_str());
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    ::_exit(::setresuid(1, 1, 1) == 0 && ::listen(listener.get(), 1) == 0 ? 0 : 1);
  }
  int how = 1;
  ASSERT_EQ(::waitpid(stranger, &how, 0), stranger);
  ASSERT_EQ(how, 0);
  const auto refused = connect(folder_);
  ::unlink(address.sun_path);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text.find("a process of user 1 (daemon)"), std::string::npos)
      << refused.error().text;
}

TEST_F(JobFolderTest, AStaleSocketOfAKilledJobIsReplaced) {
  {
    const Fd stale(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (folder_ + "/local").c_str());
    ASSERT_EQ(::bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_FALSE(connect(folder_).ok());
  JobFolder folder(folder_, "job");
  ASSERT_TRUE(folder.listen(1).ok());
  EXPECT_TRUE(connect(folder_).ok());
}

TEST_F(JobFolderTest, NobodyListeningIsAnErrorInTime) {
  const auto socket = connect(folder_);
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.error().code, ErrorCode::kTimeout);
}

}  // namespace
}  // namespace ciranda
