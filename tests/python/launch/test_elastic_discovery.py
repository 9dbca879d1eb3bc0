"""Hosts that come and go while an elastic job runs: breaks when a host that is named gets no ranks,
when one that is named no more keeps them, or when a script that fails empties hosts.

Hosts are agents on this one, behind a program that stands in for ssh; ranks have no torch.
"""

from __future__ import annotations

import re

import pytest

HEAD = """
import fake_member as member
me = member.INCARNATION

def name(hosts):
    open("hosts.tmp", "w").write(hosts)
    os.rename("hosts.tmp", "hosts")

member.ready()
epoch = member.hear()
member.formed(epoch, 7)

def until(size):
    global epoch
    while epoch is not None and epoch.size != size:
        epoch = member.hear()
        if epoch is not None:
            member.formed(epoch, 8)
    if epoch is None:
        sys.exit()

if me < 3:
    until(2)
"""
DISCOVER = "#!/bin/sh\ncat hosts\n"


@pytest.fixture
def run(launcher, ssh_stand_in):
    """Runs a job on the hosts that the file `hosts` names, which the ranks may change."""

    def run(text, *options, hosts="a:1\nb:1\n", discover=DISCOVER):
        (launcher.folder / "hosts").write_text(hosts)
        (launcher.folder / "discover").write_text(discover)
        (launcher.folder / "discover").chmod(0o755)
        script = launcher.script(HEAD + text)
        return launcher.run("--no-color", *options, script)

    return run


SCRIPT = ("--host-discovery-script", "./discover")


def lines_of(result):
    return [
        each.removeprefix("ciranda: ")
        for each in result.stderr.splitlines()
        if each.startswith("ciranda: ")
    ]


def test_a_host_joins_that_the_script_names_later(run):
    result = run(
        """
if me == 1:
    name("a:1\\nb:1\\n# a new one\\nc\\n")
until(4)
print("host", os.environ["HOROVOD_HOSTNAME"], epoch.hosts)
member.leave(9)
""",
        *(*SCRIPT, "--slots-per-host", "2", "-np", "2", "--min-np", "2", "--max-np", "4"),
    )
    assert result.returncode == 0, result.stderr
    there, *grown = lines_of(result)
    assert there == "host c is there"
    assert re.fullmatch("4 ranks go on at step [78]", grown[-1])
    assert result.stdout.count("] host c [0, 1, 2, 2]\n") == 2


def test_a_host_leaves_that_is_named_no_more_and_may_come_again(run):
    result = run(
        """
if me == 1:
    name("a:1\\n")
if me < 3:
    until(1)
    name("a:1\\nb:1\\n")
until(2)
print("host", os.environ["HOROVOD_HOSTNAME"], me)
member.leave(9)
""",
        *(*SCRIPT, "-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0.2", "1"),
    )
    assert result.returncode == 0, result.stderr
    *left, grown = lines_of(result)
    assert left == [
        "host b leaves: it is named no more",
        "1 rank goes on at step 8",
        "host b is back",
    ]
    assert re.fullmatch("2 ranks go on at step [78]", grown)
    assert "] host b 3\n" in result.stdout


def test_an_answer_that_is_wrong_changes_nothing_and_is_told_once(run):
    result = run(
        """
if me == 1:
    name("b:0\\n")
    member.wait_for("asked-1")
    name("fail")
    member.wait_for("failed")
    name("")
    member.wait_for("empty-1")
    name("a:1\\nb:1\\nc:1\\n")
until(3)
member.leave(9)
""",
        *(*SCRIPT, "-np", "2", "--min-np", "1", "--max-np", "3"),
        discover="""#!/bin/sh
hosts=$(cat hosts)
case $hosts in
*fail*) touch failed; exit 3 ;;
*:0*) touch asked-$(ls | grep -c asked-) ;;
"") touch empty-$(ls | grep -c empty-) ;;
esac
echo "$hosts"
""",
    )
    assert result.returncode == 0, result.stderr
    wrong, failed, empty, *rest = lines_of(result)
    assert wrong.endswith("as in node1:2; the hosts stay as they are"), wrong
    assert "/discover, line 1 of its output: the slots '0' in 'b:0'" in wrong
    assert failed.endswith("/discover: it ended with exit code 3; the hosts stay as they are")
    assert empty.endswith("/discover: it names no host; the hosts stay as they are")
    assert rest[0] == "host c is there"


def test_a_hostfile_is_read_again_when_it_changes(run):
    result = run(
        """
if me == 1:
    name("a slots=1\\nb slots=1\\nc slots=1\\n")
until(3)
member.leave(9)
""",
        *("--hostfile", "hosts", "-np", "2", "--min-np", "1", "--max-np", "3"),
        hosts="a slots=1\nb slots=1\n",
    )
    assert result.returncode == 0, result.stderr
    assert lines_of(result)[0] == "host c is there"


def test_free_slots_of_other_hosts_take_processes_of_a_lost_one(run):
    """The host c has no rank at the start."""
    result = run(
        """
if me == 2:
    agent = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
    os.kill(int(agent), signal.SIGKILL)
    time.sleep(60)
if me == 1:
    until(1)
until(2)
print("host", os.environ["HOROVOD_HOSTNAME"], me)
member.leave(9)
""",
        *("-H", "a:1,b:1,c:1", "-np", "2", "--min-np", "1", "--max-np", "2"),
        *("--blacklist-cooldown-range", "60", "60"),
    )
    assert result.returncode == 0, result.stderr
    assert "] host c 3\n" in result.stdout


def test_a_script_that_names_too_few_slots_is_waited_for(run, launcher):
    result = run(
        "member.leave(9)\n",
        *(*SCRIPT, "-np", "3", "--min-np", "2", "--elastic-timeout", "20"),
        discover="""#!/bin/sh
touch asked-$(ls | grep -c asked-)
echo a:1
test -e asked-2 && echo b:1
true
""",
    )
    assert result.returncode == 0, result.stderr
    assert "/discover have 1 of 2 slots that the job needs; it waits up to 20 s" in result.stderr
    result = run("", *(*SCRIPT, "-np", "3", "--elastic-timeout", "1"))
    assert result.returncode == 2
    assert (
        "/discover: after 1 s (--elastic-timeout) its hosts have 2 of 3 slots that the job needs"
        in result.stderr
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--slots-per-host", "2"), "--slots-per-host goes with --host-discovery-script"),
        ((*SCRIPT, "-H", "a:2"), "-H and --host-discovery-script both name the hosts"),
        (("--host-discovery-script", "none"), "--host-discovery-script none: no program is there"),
        ((*SCRIPT, "--slots-per-host", "0"), "--slots-per-host must be at least 1, not 0"),
        ((*SCRIPT, "--ps", "1"), "--host-discovery-script does not go with --ps"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, options, sentence):
    result = run("", *options)
    assert result.returncode == 2
    assert sentence in result.stderr


def test_hosts_without_slots_are_refused(run):
    result = run("", *SCRIPT, hosts="a\n")
    assert result.returncode == 2
    assert "line 1 of its output: 'a' has no slots; print HOST:SLOTS, or give --slots-per-host" in (
        result.stderr
    )
