"""Elastic jobs on several hosts, without torch: breaks when a host's ranks do not hear of an epoch,
when a lost host holds up the others, or when its ranks are left to themselves.

Hosts are agents on this one, behind a program that stands in for ssh.
"""

from __future__ import annotations

import re

import pytest
from launch.conftest import SSH_STAND_IN

HEAD = """
import fake_member as member
me = member.INCARNATION

def agent():
    supervisor = os.getppid()
    return int(open(f"/proc/{supervisor}/stat").read().rpartition(")")[2].split()[1])

for each in (1, 2) if me == 3 and "SPARE" in os.environ else ():
    member.wait_for(f"formed-1-{each}")
"""
JOIN = "epoch = member.join(step=7)\n"


@pytest.fixture
def run(launcher, ssh_stand_in):
    """Runs a job of two ranks on each of the hosts a and b."""

    def run(text, *options, hosts="a:2,b:2", join=JOIN):
        script = launcher.script(HEAD + join + text)
        return launcher.run("--no-color", "-H", hosts, "--min-np", "2", *options, script)

    return run


def lines_of(result):
    """The launcher's lines, with every time as T."""
    lines = [each for each in result.stderr.splitlines() if each.startswith("ciranda: ")]
    return [re.sub(r"after [0-9.]+ s", "after T s", each[len("ciranda: ") :]) for each in lines]


def test_a_lost_rank_is_started_again_on_its_host(run):
    result = run(
        """
if epoch.number == 1:
    print(epoch.hosts, epoch.meet_at.partition(":")[0])
if me == 4:
    os.kill(os.getpid(), signal.SIGKILL)
member.train(epoch, until=3, step=9)
print("host", os.environ["HOROVOD_HOSTNAME"])
""",
        "--max-np",
        "4",
    )
    assert result.returncode == 0, result.stderr
    killed, back, summary = lines_of(result)
    assert re.fullmatch(
        r"rank 3 was killed by SIGKILL; 3 ranks go on after T s at step [79]", killed
    )
    assert re.fullmatch(r"back to 4 ranks after T s at step [079]", back)
    assert summary == "1 rank was lost and 1 joined: rank 3 (SIGKILL)"
    assert result.stdout.count("[0, 0, 1, 1] 127.0.0.1") == 4
    assert "[3] host b\n" in result.stdout


@pytest.mark.parametrize(("victim", "host"), [(3, "b"), (1, "a")])
def test_the_others_go_on_without_a_lost_host(run, victim, host):
    result = run(
        f"""
if me == {victim}:
    os.kill(agent(), signal.SIGKILL)
    time.sleep(60)
first = epoch
while epoch.number < 2:
    epoch = member.hear()
    member.formed(epoch, 8)
print(epoch.hosts, epoch.meet_at != first.meet_at)
member.leave(9)
"""
    )
    assert result.returncode == 0, result.stderr
    lost, summary = lines_of(result)
    why = "its agent (ended|was killed)[^;]*"
    go_on = "2 ranks go on after T s at step 8"
    assert re.fullmatch(f"host {host} was lost: {why}; {go_on}", lost), lost
    assert summary.startswith("2 ranks were lost: ")
    assert f"(with host {host})" in summary
    there = "[0, 0] False" if host == "b" else "[1, 1] True"
    assert result.stdout.count(there) == 2


def test_one_of_two_hosts_that_cannot_reach_each_other_is_given_up(launcher, run):
    result = run(
        """
if me == 1:
    member.cannot_reach(3)
while epoch.number < 2 and me < 3:
    epoch = member.hear()
    member.formed(epoch, 8)
if me < 3:
    member.wait_for("folder")
    while os.path.exists(open("folder").read()):
        time.sleep(0.01)  # its agent removes it, after it has ended its ranks
    member.leave(9)
    sys.exit()
if me == 3:
    open("folder.tmp", "w").write(os.environ["CIRANDA_JOB_DIR"])
    os.rename("folder.tmp", "folder")
assert member.hear() is None  # nobody names it a member any more
""",
    )
    assert result.returncode == 0, result.stderr
    assert lines_of(result)[0] == (
        "host b was lost: host a cannot reach it; 2 ranks go on after T s at step 8"
    )
    launcher.wait_until(lambda: not launcher.processes(), 10)


def test_a_host_that_is_silent_is_lost_and_ends_its_ranks(launcher, run):
    result = run(
        """
if me == 3:
    os.kill(agent(), signal.SIGSTOP)
while epoch.number < 2 and me < 3:
    epoch = member.hear()
    member.formed(epoch, 8)
if me < 3:
    os.kill(int(open("agent").read()), signal.SIGCONT)
    member.leave(9)
    sys.exit()
if me == 3:
    open("agent.tmp", "w").write(str(agent()))
    os.rename("agent.tmp", "agent")
assert member.hear() is None  # nobody names it a member any more
open(f"went-on-{me}", "w").close()
""",
    )
    assert result.returncode == 0, result.stderr
    assert lines_of(result)[0] == (
        "host b was lost: its agent has sent nothing for 2.5 s; 2 ranks go on after T s at step 8"
    )
    launcher.wait_until(lambda: not launcher.processes(), 10)


@pytest.mark.parametrize("join", [JOIN, "member.ready(); member.hear()\n"])
def test_a_job_that_has_too_few_ranks_without_a_host_ends(run, join):
    """The host is lost after all ranks have formed the first epoch, or before any has."""
    result = run(
        """
if me == 3:
    os.kill(agent(), signal.SIGKILL)
assert member.hear() is None
""",
        *("--min-np", "3", "--elastic-timeout", "2", "--blacklist-cooldown-range", "60", "60"),
        join=join,
    )
    assert result.returncode == 1
    cause = "2 ranks are left, --min-np is 3, and 2 s (--elastic-timeout) were not enough"
    assert cause in result.stderr, result.stderr
    assert "lost hosts: b" in result.stderr
    assert " --blacklist-cooldown-range 60.0 60.0 " in result.stderr


def test_a_lost_host_comes_back(run):
    result = run(
        """
if me == 3:
    os.kill(agent(), signal.SIGKILL)
    time.sleep(60)
while epoch.number == 1 or epoch.size < 4:
    epoch = member.hear()
    member.formed(epoch, 9)
member.leave(9)
print("host", os.environ["HOROVOD_HOSTNAME"], epoch.hosts)
""",
        *("--max-np", "4", "--blacklist-cooldown-range", "1", "60"),
    )
    assert result.returncode == 0, result.stderr
    lost, back, *_, grown, summary = lines_of(result)  # the two may come one after the other
    assert re.fullmatch("host b was lost: [^;]*; 2 ranks go on after T s at step [79]", lost), lost
    assert back == "host b is back"
    assert re.search(r"(back to 4 ranks after T s|4 ranks go on) at step [079]", grown), grown
    assert summary.startswith("2 ranks were lost and 2 joined: ")
    assert result.stdout.count("] host b [0, 0, 1, 1]\n") == 2


def test_a_host_that_does_not_come_back_is_called_again(launcher, run):
    """The second and the third call fail, as ssh does when a host is still down."""
    (launcher.folder / "ssh").write_text(
        SSH_STAND_IN.replace("\n", "\necho >> calls\n[ $(wc -l < calls) -lt 3 ] || exit 255\n", 1)
    )
    result = run(
        """
if me == 3:
    os.kill(agent(), signal.SIGKILL)
    time.sleep(60)
while epoch.number < 2:
    epoch = member.hear()
    member.formed(epoch, 8)
while len(open("calls").readlines()) < 5:
    time.sleep(0.05)
member.leave(9)
""",
        *("--blacklist-cooldown-range", "0.2", "0.4"),
    )
    assert result.returncode == 0, result.stderr
    assert len(lines_of(result)) == 2


def test_a_host_leaves_whose_agent_gets_sigterm(run):
    result = run(
        """
if me == 3:
    os.kill(agent(), signal.SIGTERM)
while epoch.number < 2:
    epoch = member.hear()
    if epoch is None:
        member.mark(f"left-{me}")
        sys.exit()
    member.formed(epoch, 8)
print(epoch.hosts, epoch.planned)
for each in (3, 4):
    member.wait_for(f"left-{each}")
member.leave(9)
""",
        *("--blacklist-cooldown-range", "60", "60"),
    )
    assert result.returncode == 0, result.stderr
    assert lines_of(result) == [
        "host b leaves: its agent got SIGTERM",
        "2 ranks go on at step 8",
    ]
    assert result.stdout.count("[0, 0] True\n") == 2


def test_a_host_comes_back_after_it_has_left(run):
    result = run(
        """
if me == 3:
    os.kill(agent(), signal.SIGTERM)
while epoch is not None and (epoch.number == 1 or epoch.size < 4):
    epoch = member.hear()
    if epoch is None:
        sys.exit()
    member.formed(epoch, 9)
member.leave(9)
print("host", os.environ["HOROVOD_HOSTNAME"], epoch.hosts)
""",
        *("--max-np", "4", "--blacklist-cooldown-range", "1", "60"),
    )
    assert result.returncode == 0, result.stderr
    leaves, left, back, *_, grown = lines_of(result)
    assert leaves == "host b leaves: its agent got SIGTERM"
    assert left == "2 ranks go on at step 9"
    assert back == "host b is back"
    assert re.search(r"4 ranks go on at step [079]", grown), grown
    assert result.stdout.count("] host b [0, 0, 1, 1]\n") == 2


def test_spares_take_free_slots_of_other_hosts(run):
    result = run(
        """
if me == 1:
    member.wait_for("ready-3")
    os.kill(os.getpid(), signal.SIGKILL)
member.train(epoch, until=2)
print(epoch.number, epoch.hosts, os.environ["HOROVOD_HOSTNAME"])
""",
        *("-np", "2", "--spares", "1", "--reset-limit", "0", "-x", "SPARE=1"),
        hosts="a:2,b:1",
    )
    assert result.returncode == 0, result.stderr
    assert "2 ranks go on after" in result.stderr
    assert "[2] 2 [1, 0] b\n" in result.stdout
