"""The whole tree has to go in every case; one process left behind holds a GPU or a port."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ciranda.launch.run.ending import Ending, Reason, Step

# A rank with everything that is hard to find again: a child, one in its own session, and a
# daemon that was forked twice (which may ignore polite requests). Files say when all are there;
# the ranks go on once the test has counted them.
TREE = """
import subprocess
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["sleep", "300"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    if STUBBORN:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"daemon-{rank}", "w").close()
    time.sleep(300)
os.wait()
open(f"ready-{rank}", "w").close()
while not os.path.exists("counted"):
    time.sleep(0.01)
"""
COMMAND = [sys.executable, "-m", "ciranda"]
READY = ("daemon-0", "daemon-1", "ready-0", "ready-1")


def start_tree(launcher, then="time.sleep(300)\n", *, stubborn=False):
    script = launcher.script(f"STUBBORN = {stubborn}\n" + TREE + then)
    process = launcher.start("-np", "2", script)
    launcher.wait_for_files(*READY)
    assert len(launcher.processes()) >= 2 + 2 * 4  # launcher, supervisor, and each rank's four
    (launcher.folder / "counted").touch()
    return process


@pytest.mark.timing
def test_killing_the_launcher_ends_the_tree_within_a_second(launcher, gone, record_property):
    process = start_tree(launcher)
    process.kill()
    process.wait()
    took = gone(launcher)
    record_property("tree gone after", f"{took:.3f} s")
    assert took < 1.0
    process.communicate()
    assert not launcher.job_dirs()


def test_killing_the_launcher_of_ranks_that_write_leaves_no_folder(launcher, gone):
    for _ in range(3):  # the ranks die of their broken pipes while the supervisor wakes up
        process = launcher.start("-np", "2", "sh", "-c", "touch ready-$RANK; exec yes")
        launcher.wait_for_files("ready-0", "ready-1")
        process.kill()
        process.communicate()
        gone(launcher)
        assert not launcher.job_dirs()
        for rank in (0, 1):
            (launcher.folder / f"ready-{rank}").unlink()


@pytest.mark.timing
def test_killing_the_supervisor_ends_the_tree_within_a_second(launcher, gone, record_property):
    process = start_tree(launcher)
    supervisor = launcher.supervisor_of(process)
    os.kill(supervisor, signal.SIGKILL)
    took = gone(launcher)
    record_property("tree gone after", f"{took:.3f} s")
    assert took < 1.0
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 1
    assert f"supervisor (pid {supervisor}) was killed" in errors


def test_a_stopped_rank_and_its_daemon_are_ended_too(launcher, gone):
    process = start_tree(launcher, "os.kill(os.getpid(), signal.SIGSTOP)\n")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)  # the second is not polite
    process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    gone(launcher)


def test_leftovers_of_a_job_that_succeeds_are_ended(launcher, gone):
    process = start_tree(launcher, "", stubborn=True)
    process.communicate(timeout=20)
    assert process.returncode == 0
    gone(launcher)


def test_a_failure_ends_the_tree_of_the_others(launcher, gone):
    process = start_tree(launcher, "if rank: sys.exit(5)\ntime.sleep(300)\n")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 5, errors
    gone(launcher)


def test_sigterm_ends_the_ranks_politely_with_143(launcher, gone):
    script = launcher.script(
        "def end(*_):\n    print('saved', rank)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "open(f'ready-{rank}', 'w').close()\ntime.sleep(300)\n"
    )
    process = launcher.start("-np", "2", script)
    launcher.wait_for_files("ready-0", "ready-1")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=10)
    assert process.returncode == 143
    assert sorted(output.splitlines()) == ["[0] saved 0", "[1] saved 1"]
    assert "ciranda: terminated; logs: " in errors
    gone(launcher)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGHUP, 129, "hung up"), (signal.SIGQUIT, 131, "quit")],
)
def test_a_hangup_and_a_quit_end_the_job_with_a_word(launcher, number, code, word):
    process = launcher.start("-np", "1", "sh", "-c", "touch ready-0; sleep 300")
    launcher.wait_for_files("ready-0")
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == code
    assert f"ciranda: {word}; logs: " in errors


def test_user_signals_go_to_the_ranks(launcher):
    """As Slurm's --signal=USR1@60 sends them."""
    script = launcher.script(
        "def save(number, _):\n    print('saved', number)\n    sys.exit(0)\n"
        "for each in (signal.SIGUSR1, signal.SIGUSR2):\n    signal.signal(each, save)\n"
        "open(f'ready-{rank}', 'w').close()\ntime.sleep(50)\n"
    )
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        process = launcher.start("-np", "2", script)
        launcher.wait_for_files("ready-0", "ready-1")
        process.send_signal(number)
        output, errors = process.communicate(timeout=10)
        assert process.returncode == 0, errors
        assert sorted(output.splitlines()) == [f"[{rank}] saved {number}" for rank in (0, 1)]
        for rank in (0, 1):
            (launcher.folder / f"ready-{rank}").unlink()


def test_signals_that_our_parent_blocks_do_not_hold_us(launcher):
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))"
    become = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", f"{block}; {become}", *COMMAND, "run", "-np", "2", "echo", "here"],
        capture_output=True,
        text=True,
        cwd=launcher.folder,
        env=launcher.environment,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (0, "[0] here\n[1] here\n"), done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("code", [0, 3])
def test_closed_streams_do_not_change_the_exit_code(launcher, closed, code):
    """As a daemon starts us."""
    program = f"cat; echo said; echo worse >&2; exit {code}"
    shell = f'exec "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *COMMAND, "run", "-np", "1", "--", "sh", "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=launcher.folder,
        env=launcher.environment,
        timeout=20,
    )
    assert done.returncode == code, done.stderr
    assert ("[0] said\n" in done.stdout) is (">&-" not in closed.replace("2>&-", ""))


def test_output_that_a_full_disk_takes_is_not_a_success(launcher):
    shell = 'exec "$@" > /dev/full'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *COMMAND, "run", "-np", "1", "echo", "a result"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=launcher.folder,
        env=launcher.environment,
        timeout=20,
    )
    assert done.returncode == 1
    start = "ciranda: the job succeeded, but its output could not be shown: No space left on device"
    assert done.stderr.startswith(start)
    assert [path.read_text() for path in launcher.temporary.glob("*/rank-0.log")] == ["a result\n"]


def test_under_nohup_the_job_goes_on_after_a_hangup(launcher):
    process = launcher.start(
        "-np",
        "1",
        "sh",
        "-c",
        "touch ready-0; while [ ! -e go ]; do sleep 0.1; done; echo done",
        ignored=(signal.SIGHUP,),
    )
    launcher.wait_for_files("ready-0")
    process.send_signal(signal.SIGHUP)
    (launcher.folder / "go").touch()
    output, _ = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "[0] done\n")


def test_many_more_ranks_than_cores_and_descriptors(launcher):
    command = 'ulimit -S -n 256; exec "$@"'
    found = subprocess.run(
        ["sh", "-c", command, "sh", *COMMAND, "run", "-np", "100", "echo", "x"],
        env=launcher.environment,
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert len(found.stdout.splitlines()) == 100


@pytest.mark.timing
def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(launcher):
    process = launcher.start(
        "-np", "1", "sh", "-c", "trap '' TERM; touch ready-0; while :; do sleep 1; done"
    )
    launcher.wait_for_files("ready-0")
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert 4.5 < time.monotonic() - started < 8


class Terminal:
    """The launcher as a terminal's foreground job: Ctrl-C comes from the terminal's driver."""

    def __init__(self, launcher, *arguments):
        self.shown = b""
        pid, self.master = pty.fork()
        if pid == 0:
            os.chdir(launcher.folder)
            command = [sys.executable, "-m", "ciranda", "run", "--no-color", *arguments]
            os.execve(command[0], command, launcher.environment)  # noqa: S606 - no shell is wanted
        self.pid = pid

    def ctrl_c(self):
        os.write(self.master, b"\x03")

    def wait(self):
        while True:
            try:
                self.shown += os.read(self.master, 65536)
            except OSError:
                break
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_is_polite_quiet_and_reaches_each_rank_once(launcher, gone):
    script = launcher.script(
        "open(f'ready-{rank}', 'w').close()\n"
        "try:\n    time.sleep(300)\n"
        "except KeyboardInterrupt:\n"
        "    print('saving', rank)\n    time.sleep(0.5)\n    print('saved', rank)\n    raise\n"
    )
    terminal = Terminal(launcher, "-np", "2", script)
    launcher.wait_for_files("ready-0", "ready-1")
    terminal.ctrl_c()
    started = time.monotonic()
    assert terminal.wait() == 130
    assert time.monotonic() - started < 4
    text = terminal.shown.decode()
    for rank in (0, 1):
        assert text.count(f"saving {rank}") == text.count(f"saved {rank}") == 1
    assert "KeyboardInterrupt" not in text and "╭" not in text
    assert "ciranda: interrupted; logs: " in text
    gone(launcher)


@pytest.mark.timing
def test_a_second_ctrl_c_ends_everything_at_once(launcher, gone):
    script = launcher.script(
        "STUBBORN = True\n" + TREE + "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, lambda *_: print('not now'))\n"
        "while True: time.sleep(1)\n"
    )
    terminal = Terminal(launcher, "-np", "2", script)
    launcher.wait_for_files(*READY)
    time.sleep(0.5)  # the handlers
    terminal.ctrl_c()
    time.sleep(0.3)
    assert launcher.processes()
    terminal.ctrl_c()
    started = time.monotonic()
    assert terminal.wait() == 130
    assert time.monotonic() - started < 1.5
    gone(launcher)


def test_a_third_ctrl_c_helps_when_nobody_reads_our_output(launcher, gone):
    process = launcher.start("-np", "1", "sh", "-c", "touch ready-0; yes")
    launcher.wait_for_files("ready-0")
    time.sleep(0.3)  # now the launcher is stuck in writing to its full pipe
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert process.wait(timeout=5) == 130
    gone(launcher)
    process.communicate()


def test_a_background_job_does_not_read_the_shells_terminal(launcher):
    master, slave = pty.openpty()
    code = (
        "import os, subprocess, sys\n"
        "os.setsid(); import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "command = [sys.executable, '-m', 'ciranda', 'run', '-np', '1', 'sh', '-c', 'wc -c']\n"
        "done = subprocess.run(command, preexec_fn=os.setpgrp, stdout=subprocess.PIPE)\n"
        "sys.exit(done.stdout != b'[0] 0\\n')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=slave, cwd=launcher.folder, env=launcher.environment
    )
    try:
        assert process.wait(timeout=20) == 0
    finally:
        os.close(slave)
        os.close(master)


@pytest.mark.timing
def test_an_idle_launcher_uses_no_cpu(launcher):
    process = launcher.start("-np", "2", "sh", "-c", "touch ready-$RANK; exec sleep 300")
    launcher.wait_for_files("ready-0", "ready-1")
    pids = [process.pid, launcher.supervisor_of(process)]
    time.sleep(0.5)
    before = [_cpu_ticks(pid) for pid in pids]
    time.sleep(2)
    assert [_cpu_ticks(pid) for pid in pids] == before
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)


def _cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_ranks_have_default_signals_and_no_strange_descriptors(launcher):
    command = "grep Sig /proc/self/status; ls /proc/$$/fd"
    result = launcher.run("-np", "1", "sh", "-c", command, ignored=(signal.SIGQUIT,))
    lines = [line.removeprefix("[0] ") for line in result.stdout.splitlines()]
    masks = dict(line.split(":\t") for line in lines if line.startswith(("SigIgn", "SigBlk")))
    # Signals 1 to 31; glibc keeps the two above for itself. What our starter ignores (a shell that
    # runs us in the background: SIGQUIT) stays ignored; what Python ignores or the launcher handles
    # does not.
    assert int(masks["SigBlk"], 16) & 0x7FFFFFFF == 0
    assert int(masks["SigIgn"], 16) & 0x7FFFFFFF == 1 << (signal.SIGQUIT - 1)
    assert [line for line in lines if line.isdecimal()] == ["0", "1", "2"]


# The decisions alone, with a clock of our own


def test_first_interrupt_is_polite_and_second_kills():
    ending = Ending(now=0.0, timeout_s=None)
    ending.signalled(signal.SIGINT, 1.0)
    assert (ending.step, ending.reason) == (Step.INTERRUPT, Reason.INTERRUPTED)
    ending.signalled(signal.SIGINT, 1.1)
    assert (ending.step, ending.reason) == (Step.KILL, Reason.INTERRUPTED)


def test_an_interrupt_grows_less_polite_with_time():
    ending = Ending(now=0.0, timeout_s=None)
    ending.signalled(signal.SIGINT, 1.0)
    seen = []
    for _ in range(3):
        assert ending.deadline is not None
        ending.tick(ending.deadline - 0.01)
        ending.tick(ending.deadline)
        seen.append(ending.step)
    assert seen == [Step.TERMINATE, Step.KILL, Step.GIVE_UP]
    assert ending.deadline is None


def test_a_failure_waits_for_the_victims_first():
    ending = Ending(now=0.0, timeout_s=10.0)
    ending.rank_failed(1.0)
    ending.rank_failed(2.0)
    assert (ending.step, ending.deadline, ending.by_launcher) == (Step.WAIT, 3.0, False)
    ending.tick(3.0)
    assert (ending.step, ending.reason, ending.by_launcher) == (Step.TERMINATE, Reason.FAILED, True)


@pytest.mark.parametrize("before", ["nothing", "failure", "interrupt", "termination"])
def test_a_lost_host_cuts_every_grace_short(before):
    ending = Ending(now=0.0, timeout_s=None)
    if before == "failure":
        ending.rank_failed(1.0)
    elif before != "nothing":
        ending.signalled(signal.SIGINT if before == "interrupt" else signal.SIGTERM, 1.0)
    ending.cut_short(2.0)
    assert (ending.step, ending.deadline) == (Step.TERMINATE, 3.0)
    ending.cut_short(2.5)
    assert ending.deadline == 3.0
    ending.tick(3.0)
    ending.cut_short(3.1)
    assert ending.step is Step.KILL
    assert (ending.reason is Reason.FAILED) == (before in ("nothing", "failure"))


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGTERM, Reason.TERMINATED),
        (signal.SIGHUP, Reason.HUNG_UP),
        (signal.SIGQUIT, Reason.QUIT),
    ],
)
def test_other_signals_skip_the_interrupt(number, reason):
    ending = Ending(now=0.0, timeout_s=1.0)
    ending.signalled(number, 0.5)
    assert (ending.step, ending.reason) == (Step.TERMINATE, reason)
    ending.rank_failed(0.6)
    assert ending.reason is reason


def test_a_timeout_terminates():
    ending = Ending(now=0.0, timeout_s=1.0)
    ending.tick(0.9)
    assert ending.step is Step.RUN
    ending.tick(1.0)
    assert (ending.step, ending.reason) == (Step.TERMINATE, Reason.TIMED_OUT)
