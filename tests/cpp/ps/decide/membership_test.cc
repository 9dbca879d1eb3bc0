// What could break: an old process that is heard again, a worker of another job, a job that waits
// for a worker that has left.
#include "core/ps/decide/membership.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "core/ps/decide/leases.h"
#include "ps/decide/models.h"

namespace ciranda::ps {
namespace {

using testing::kLeaseNs;

using Workers = std::vector<Worker>;

class MembershipTest : public ::testing::Test {
 protected:
  static ServerProtocolOptions options(int workers, bool has_coordinator = false) {
    return {.job_id = "job",
            .workers = workers,
            .lease_ns = kLeaseNs,
            .has_coordinator = has_coordinator};
  }
  static Enter entry(Worker worker, int workers, Life life = 1, std::uint64_t process = 7) {
    return {
        .job_id = "job", .worker = worker, .life = life, .process = process, .workers = workers};
  }
  // Returns the connection of a worker that enters.
  Caller enter(Membership& members, const Enter& entry) {
    static Caller callers = 0;
    members.open(++callers);
    const auto checked = members.check(callers, entry, leases_);
    EXPECT_TRUE(checked.ok());
    members.enter(callers, entry);
    leases_.begin(callers, 0);
    return callers;
  }

  Leases leases_{kLeaseNs};
};

TEST_F(MembershipTest, AnEntryTellsWhomItReplacesAndAnOlderProcessIsRefused) {
  Membership members(options(2));
  const Caller first = enter(members, entry(0, 2, 3));
  members.open(100);
  const auto same = members.check(100, entry(0, 2, 3), leases_);
  ASSERT_TRUE(same.ok());
  EXPECT_TRUE(same.value().returns);
  EXPECT_EQ(same.value().replaces, first);
  const auto next = members.check(100, entry(0, 2, 4, 8), leases_);
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(next.value().returns);
  EXPECT_EQ(members.check(100, entry(0, 2, 3, 8), leases_).error().text,
            "worker 0 is connected already; give each process its own number");
  EXPECT_EQ(members.check(100, entry(0, 2, 2), leases_).error().text,
            "worker 0 has been restarted since this process started");
  EXPECT_EQ(members.check(first, entry(0, 2, 3), leases_).error().text, "worker 0 enters twice");
  EXPECT_EQ(members.close(first, /*left=*/false), 0);
  members.enter(100, entry(0, 2, 4, 8));
  EXPECT_EQ(members.caller_of(0), 100);
  EXPECT_EQ(members.member_of(100), 0);
}

TEST_F(MembershipTest, OnlyMembersThatAreHeardKeepAnotherJobAway) {
  Membership members(options(2));
  Enter one = entry(0, 2);
  one.origin = {.job = "one"};
  Enter other = entry(1, 2);
  other.origin = {.job = "other"};
  const Caller caller = enter(members, one);
  members.open(100);
  EXPECT_NE(members.check(100, other, leases_).error().text.find("seems to belong to another job"),
            std::string::npos);
  EXPECT_EQ(leases_.end(kLeaseNs), std::vector<Caller>{caller});
  EXPECT_TRUE(members.check(100, other, leases_).ok());
  EXPECT_TRUE(leases_.hear(caller, kLeaseNs));
  EXPECT_FALSE(members.check(100, other, leases_).ok());
  members.close(caller, /*left=*/false);
  EXPECT_TRUE(members.check(100, other, leases_).ok());
}

TEST_F(MembershipTest, TheGiverIsTheLowestWorkerThatHasNotLeft) {
  Membership members(options(2, /*has_coordinator=*/true));
  EXPECT_EQ(members.giver(), 0);
  members.close(enter(members, entry(0, 2)), /*left=*/false);
  EXPECT_EQ(members.giver(), 0);
  EXPECT_EQ(members.gone_workers(), Workers{0});
  members.close(enter(members, entry(0, 2)), /*left=*/true);
  EXPECT_EQ(members.giver(), 1);
  members.close(enter(members, entry(1, 2)), /*left=*/true);
  EXPECT_EQ(members.giver(), std::nullopt);
  EXPECT_TRUE(members.have_workers_left());
  EXPECT_FALSE(members.have_all_left());
  EXPECT_FALSE(members.has_members());
  members.close(enter(members, entry(2, 2)), /*left=*/true);
  EXPECT_TRUE(members.have_all_left());
}

TEST_F(MembershipTest, WhoDoesNotComeBackAfterARestartIsAbsent) {
  Membership members(options(3));
  members.restore("job");
  members.restore(0, {.life = 2, .process = 7, .left = false});
  EXPECT_EQ(members.absent_workers(), (Workers{0, 1, 2}));
  enter(members, entry(0, 3, 2));
  EXPECT_EQ(members.absent_workers(), (Workers{1, 2}));
}

TEST_F(MembershipTest, AJobThatGoesOnExpectsAllInTheirFirstLives) {
  Membership members(options(1));
  members.restore("earlier");
  ASSERT_TRUE(
      members.repeat({.kind = Change::Kind::kEntered, .worker = 0, .life = 5, .process = 9}).ok());
  ASSERT_TRUE(members.repeat({.kind = Change::Kind::kLeft, .worker = 0}).ok());
  EXPECT_EQ(members.saved(0).life, 5u);
  EXPECT_TRUE(members.have_all_left());
  EXPECT_EQ(members.repeat({.kind = Change::Kind::kLeft, .worker = 1}).error().text,
            "a stored change names a worker that this job does not have");
  EXPECT_EQ(members.job_id(), "earlier");
  members.begin_job("job");
  EXPECT_EQ(members.job_id(), "job");
  EXPECT_FALSE(members.have_all_left());
  enter(members, entry(0, 1));
}

}  // namespace
}  // namespace ciranda::ps
