"""Parameter servers of a job: started, watched and ended with it, and workers that come back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ciranda.launch.plan.processes import label_of, name_of, names_of, server_number
from ciranda.launch.run.local import SERVER_PROGRAM

# Ends the server's process from within a rank, as the kernel might.
KILL_SERVER_1 = """
import time
from pathlib import Path
def is_it(entry):
    try:
        told = (entry / "environ").read_bytes().split(b"\\0")
        asked = (entry / "cmdline").read_bytes().split(b"\\0")
    except OSError:
        return False
    mine = os.environ["CIRANDA_JOB_ID"].encode()
    return (b"--server", b"1") in zip(asked, asked[1:]) and b"CIRANDA_JOB_ID=" + mine in told
if rank == 0:
    (pid,) = [int(e.name) for e in Path("/proc").iterdir() if e.name.isdecimal() and is_it(e)]
    os.kill(pid, signal.SIGKILL)
time.sleep(300)
"""


# Until servers are there: what ends one before that, ends it without a word.
LISTENING = """
for server in range(len(os.environ["CIRANDA_PS_SERVERS"].split(","))):
    while not os.path.exists(f"{os.environ['CIRANDA_JOB_DIR']}/ps{server}"):
        time.sleep(0.01)
"""


def test_processes_have_numbers_and_names() -> None:
    numbers = [0, 1, 2, 5, server_number(1), server_number(0)]
    assert names_of(numbers) == "ranks 0-2, 5 and servers 0, 1"
    assert names_of([3]) == name_of(3) == "rank 3"
    assert names_of([server_number(2)]) == name_of(server_number(2)) == "server 2"
    assert [label_of(number) for number in numbers[3:]] == ["5", "s1", "s0"]


def test_servers_end_with_the_job_and_say_what_they_did(launcher):
    text = "print(os.environ['CIRANDA_PS_SERVERS'], os.environ['CIRANDA_LIFE'])\n"
    script = launcher.script(text + LISTENING)
    done = launcher.run("-np", "2", "--ps", "3", script)
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert said[:2] == ["[0] here,here,here 1", "[1] here,here,here 1"]
    assert [line.partition(":")[0] for line in said[2:]] == [
        f"[s{server}] server {server} of 3" for server in range(3)
    ]


def test_a_lost_server_ends_the_job_and_is_named(launcher):
    done = launcher.run("-np", "2", "--ps", "2", launcher.script(KILL_SERVER_1))
    assert done.returncode == 128 + signal.SIGKILL
    assert "server 1 on" in done.stderr.splitlines()[1]
    assert "Killed, SIGKILL (9)" in done.stderr.splitlines()[2]
    assert "server-1.log" in done.stderr
    assert "ranks 0, 1: by the launcher" in done.stderr


def test_a_killed_rank_comes_back_as_often_as_it_may(launcher):
    text = (
        "import sys\n"
        "life = int(os.environ['CIRANDA_LIFE'])\n"
        "print(f'life {life}: {sys.stdin.read()!r}' if rank == 0 else f'life {life}')\n"
        "if rank == 1 and life <= int(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    script = launcher.script(text)
    done = launcher.run("-np", "2", "--ps", "1", "--restarts", "2", script, "2", stdin="x")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines())[:4] == [
        "[0] life 1: 'x'",
        "[1] life 1",
        "[1] life 2",
        "[1] life 3",
    ]
    again = "ciranda: rank 1 was ended by Killed, SIGKILL (9); it is started again, {} of 2"
    assert done.stderr.splitlines() == [again.format(1), again.format(2)]

    done = launcher.run("-np", "2", "--ps", "1", "--restarts", "2", script, "3")
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 on" in done.stderr
    assert "restarts" in done.stderr and "2 of 2" in done.stderr


@pytest.mark.usefixtures("warm_start")
def test_enough_workers_go_on_without_one_that_may_not_come_back(launcher):
    script = launcher.script(
        "import torch, ciranda.torch as cr\n"
        "cr.init()\n"
        "x = torch.nn.Parameter(torch.zeros(4))\n"
        "optimizer = cr.DistributedOptimizer(\n"
        "    torch.optim.SGD([x], lr=1.0), [('x', x)], ps=cr.ps.Sync())\n"
        "for number in range(4):\n"
        "    if (rank, number) == (1, 2): os.kill(os.getpid(), signal.SIGKILL)\n"
        "    x.grad = torch.ones_like(x)\n"
        "    optimizer.step()\n"
        "print('x is', float(x[0]))\n"
    )
    options = ("-np", "3", "--ps", "1", "--min-np", "2", "--reset-limit")
    done = launcher.run(*options, "0", script)
    assert done.returncode == 0, done.stderr
    assert "ciranda: rank 1 was ended by Killed, SIGKILL (9); 2 ranks go on" in done.stderr
    assert [line for line in sorted(done.stdout.splitlines()) if "x is" in line] == [
        "[0] x is -4.0",
        "[2] x is -4.0",
    ]


def test_fewer_workers_than_are_enough_end_the_job(launcher):
    text = "if rank > 0 and int(os.environ['CIRANDA_LIFE']) <= 2: os.kill(os.getpid(), 9)\n"
    script = launcher.script(text)
    options = ("-np", "3", "--ps", "1", "--min-np", "2")
    done = launcher.run(*options, "--reset-limit", "1", script)
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr.count("it is started again, 1 of 1") == 1
    assert done.stderr.count("2 ranks go on") == 1

    done = launcher.run(*options, script)  # ten restarts for each worker
    assert done.returncode == 0
    assert done.stderr.count("it is started again") == 4


def test_a_worker_that_is_killed_once_its_program_has_ended_has_done_its_work(launcher):
    script = launcher.script(
        "import atexit\n"
        "def killed():\n"
        "    if os.environ['CIRANDA_RANK'] == '1':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "atexit.register(killed)\n"  # the last that runs
        "import torch, ciranda.torch as cr\n"
        "cr.init()\n"
        "x = torch.nn.Parameter(torch.zeros(4))\n"
        "optimizer = cr.DistributedOptimizer(\n"
        "    torch.optim.SGD([x], lr=1.0), [('x', x)], ps=cr.ps.Async())\n"
        "x.grad = torch.ones_like(x)\n"
        "optimizer.step()\n"
    )
    late = (
        "ciranda: rank 1 was ended by Killed, SIGKILL (9) after its program had ended; that counts"
    )
    done = launcher.run("-np", "2", "--ps", "1", "--restarts", "1", script)
    assert done.returncode == 0, done.stderr
    assert late in done.stderr


@pytest.mark.parametrize(
    ("number", "words"),
    [("SIGKILL", "Killed, SIGKILL (9)"), ("SIGTERM", "Terminated, SIGTERM (15)")],
)
@pytest.mark.usefixtures("warm_start")
def test_a_killed_server_that_keeps_its_state_comes_back(launcher, tmp_path, number, words):
    """Its lines go on under its name, and so does its state, which is gone with the job."""
    text = KILL_SERVER_1.replace("time.sleep(300)", "time.sleep(0.1)").replace("SIGKILL", number)
    training = (
        "import torch, ciranda.torch as cr\n"
        "cr.init()\n"
        "x = torch.nn.Parameter(torch.zeros(40_000))\n"
        "optimizer = cr.DistributedOptimizer(\n"
        "    torch.optim.SGD([x], lr=1.0), [('x', x)], ps=cr.ps.Async())\n"
        "def step():\n"
        "    x.grad = torch.ones_like(x)\n"
        "    optimizer.step()\n"
        "step()\n" + text + "step()\n"
        "print(x.min().item(), x.max().item())\n"
    )
    state = tmp_path / "new" / "state"
    options = ["-np", "1", "--ps", "2", "--ps-dir", str(state), "--restarts", "1"]
    done = launcher.run(*options, launcher.script(training))
    assert done.returncode == 0, done.stderr
    assert "[0] -2.0 -2.0" in done.stdout
    assert "[s1] server 1 of 2: 2 pushes" in done.stdout
    again = f"ciranda: server 1 was ended by {words}; it is started again, 1 of 1"
    assert again in done.stderr
    assert "[s1] ciranda-ps: server 1 goes on from version 1" in done.stderr
    missed = (
        "server 1 of 2 was ended by SIGTERM while it has workers; its parameters and state are "
        f"in {state}"
    )
    assert (missed in done.stderr) == (number == "SIGTERM")
    assert sorted(path.name for path in state.iterdir()) == ["server-0", "server-1"]
    assert not list(state.glob("*/*"))


@pytest.mark.usefixtures("warm_start")
def test_a_server_that_is_ended_and_kept_nothing_ends_the_job_at_once(launcher, tmp_path):
    training = "import torch, ciranda.torch as cr\ncr.init()\n" + KILL_SERVER_1.replace(
        "SIGKILL", "SIGTERM"
    )
    script = launcher.script(training)
    for options in ([], ["--ps-dir", str(tmp_path / "state")]):
        done = launcher.run("-np", "1", "--ps", "2", *options, script)
        assert done.returncode == 128 + signal.SIGTERM
        assert "culprit     server 1 on" in done.stderr
        assert "Terminated, SIGTERM (15)" in done.stderr
        missed = "server 1 of 2 was ended by SIGTERM while it has workers; its parameters and state"
        end = " are in " if options else " are gone; to let another server"
        assert missed + end in done.stderr


@pytest.mark.usefixtures("warm_start")
def test_a_state_of_another_job_is_refused(launcher, tmp_path):
    training = (
        "import torch, ciranda.torch as cr\n"
        "cr.init()\n"
        "x = torch.nn.Parameter(torch.zeros(4))\n"
        "cr.DistributedOptimizer(\n"
        "    torch.optim.SGD([x], lr=1.0), [('x', x)], ps=cr.ps.Async())\n"
        "os._exit(3)\n"  # without leaving
    )
    options = ["-np", "1", "--ps", "1", "--ps-dir", str(tmp_path)]
    script = launcher.script(training)
    assert launcher.run(*options, script).returncode == 3
    done = launcher.run(*options, script)
    assert done.returncode == 1
    assert f"the snapshot {tmp_path}/server-0/snapshot-" in done.stderr
    assert "cannot be used: it belongs to job '" in done.stderr
    assert "name another folder, or remove what is in this one" in done.stderr


def test_a_rank_may_ask_its_servers_after_ctrl_c(launcher):
    text = (
        "try:\n"
        "    open(f'ready-{rank}', 'w').close()\n"
        "    time.sleep(300)\n"
        "except KeyboardInterrupt:\n"
        "    print('saved')\n"
    )
    process = launcher.start("-np", "1", "--ps", "1", launcher.script(LISTENING + text))
    launcher.wait_for_files("ready-0")
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    lines = said.splitlines()
    assert lines[0] == "[0] saved"
    assert lines[1].startswith("[s0] server 0 of 1")  # afterwards


def test_a_server_that_does_not_end_fails_no_job(launcher):
    text = KILL_SERVER_1.replace("SIGKILL", "SIGSTOP").replace("time.sleep(300)", "")
    done = launcher.run("-np", "1", "--ps", "2", launcher.script(LISTENING + text))
    assert done.returncode == 0, done.stderr


TRAINING = """
import atexit, torch
def die():
    os.kill(os.getpid(), signal.SIGKILL)
AT_EXIT
import ciranda.torch as cr
cr.init()
x = torch.nn.Parameter(torch.zeros(4))
optimizer = cr.DistributedOptimizer(
    torch.optim.SGD([x], lr=1.0), [("x", x)], ps=cr.ps.Async())
x.grad = torch.ones_like(x)
optimizer.step()
print(x[0].item())
"""


def test_who_is_killed_after_his_program_has_ended_fails_no_job(launcher):
    script = launcher.script(TRAINING.replace("AT_EXIT", "atexit.register(die)  # the last to run"))
    done = launcher.run("-np", "1", "--ps", "1", "--restarts", "1", script)
    assert done.returncode == 0, done.stderr
    assert "[0] -1.0" in done.stdout
    said = "ciranda: rank 0 was ended by Killed, SIGKILL (9) after its program had ended; "
    assert done.stderr.splitlines() == [said + "that counts"]
    failing = launcher.script(
        TRAINING.replace("AT_EXIT", "atexit.register(die)") + "raise ValueError('at the end')"
    )
    done = launcher.run("-np", "1", "--ps", "1", failing)
    assert done.returncode == 128 + signal.SIGKILL
    assert "ValueError: at the end" in done.stderr


@pytest.mark.usefixtures("warm_start")
def test_nobody_is_started_again_for_servers_that_have_ended(launcher):
    left = (
        "cr.shutdown()\n"
        "while os.path.exists(f\"{os.environ['CIRANDA_JOB_DIR']}/ps0/local\"):\n"
        "    time.sleep(0.01)\n"
        "time.sleep(2)\n"  # the server is no process any more
        "die()\n"
    )
    script = launcher.script(TRAINING.replace("AT_EXIT", "") + left)
    done = launcher.run("-np", "1", "--ps", "1", "--restarts", "1", script)
    assert done.returncode == 128 + signal.SIGKILL
    said = "after its servers, which all workers had left; it is not started again"
    assert f"ciranda: rank 0 was ended by Killed, SIGKILL (9) {said}" in done.stderr


def test_nobody_comes_back_to_a_job_that_has_failed(launcher):
    text = (
        "if rank == 1:\n"
        "    open('pid', 'w').write(str(os.getpid()))\n"
        "    sys.exit(3)\n"
        "while not os.path.exists('pid') or os.path.exists(f\"/proc/{open('pid').read()}\"):\n"
        "    time.sleep(0.01)\n"
        "time.sleep(0.2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = launcher.run("-np", "2", "--ps", "1", "--restarts", "5", launcher.script(text))
    assert done.returncode == 3
    assert "started again" not in done.stderr


def test_what_a_killed_rank_has_started_ends_with_it(launcher):
    text = (
        "import subprocess\n"
        "if os.environ['CIRANDA_LIFE'] == '1':\n"
        "    subprocess.Popen(['sleep', '300'])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "sleeping = [p for p in os.listdir('/proc') if p.isdecimal() and is_mine(p)]\n"
        "assert not sleeping, sleeping\n"
    )
    is_mine = (
        "def is_mine(pid):\n"
        "    try:\n"
        "        told = open(f'/proc/{pid}/environ', 'rb').read().split(b'\\0')\n"
        "        name = open(f'/proc/{pid}/comm').read().strip()\n"
        "    except OSError:\n"
        "        return False\n"
        "    job = b'CIRANDA_JOB_ID=' + os.environ['CIRANDA_JOB_ID'].encode()\n"
        "    return job in told and name == 'sleep'\n"
    )
    script = launcher.script(is_mine + text)
    done = launcher.run("-np", "1", "--ps", "1", "--restarts", "1", script)
    assert done.returncode == 0, done.stderr


def test_a_rank_that_fails_by_itself_does_not_come_back(launcher):
    script = launcher.script("sys.exit(3 if rank == 1 else 0)")
    done = launcher.run("-np", "2", "--ps", "1", "--restarts", "5", script)
    assert done.returncode == 3
    assert "started again" not in done.stderr


def test_ending_the_launcher_ends_servers_and_no_rank_comes_back(launcher, gone):
    script = launcher.script("open(f'ready-{rank}', 'w').close()\ntime.sleep(300)")
    process = launcher.start("-np", "2", "--ps", "2", "--restarts", "9", script)
    launcher.wait_for_files("ready-0", "ready-1")
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "started again" not in errors
    gone(launcher)


MEETING = ["--rendezvous=127.0.0.1:1", "--key-file=key"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ps", "0"], "--ps must be 1 to 64 servers, not 0"),
        (["--restarts", "1"], "--restarts goes with --ps"),
        (["--ps-dir", "state"], "--ps-dir goes with --ps"),
        (["--checkpoint-dir", "there"], "--checkpoint-dir goes with --ps"),
        (["--restore", "there"], "--restore goes with --ps"),
        (["--ps", "1", "--checkpoint-every", "9"], "--checkpoint-every goes with --checkpoint-dir"),
        (
            ["--ps", "1", "--checkpoint-dir", "there", "--checkpoint-every", "often"],
            "--checkpoint-every must be a number of pushes, such as 1000, or of seconds, such as",
        ),
        (["--ps", "1", "--durability", "log"], "--durability goes with --ps-dir"),
        (["--ps", "1", "--restarts", "-1"], "--restarts must be at least 0, not -1"),
        (["--ps-hosts", "a:60,b:5"], "--ps must be 1 to 64 servers, not 65"),
        (["--ps-hosts", "a,,b"], "--ps-hosts: a host is missing"),
        (
            ["--ps", "1", "--no-ssh", "--nodes=2", "--node-rank=0", *MEETING],
            "--ps: without ssh nobody tells all hosts where servers are; start them by hand",
        ),
        (["--ps", "1", "-x", "CIRANDA_LIFE=2"], "CIRANDA_LIFE is set by the launcher"),
    ],
)
def test_what_cannot_be_is_refused(launcher, options, sentence):
    done = launcher.run("-np", "2", *options, launcher.script("pass"))
    assert done.returncode == 2
    assert sentence in done.stderr


def test_a_dry_run_shows_them(launcher):
    done = launcher.run("-np", "2", "--ps", "2", "--dry-run", launcher.script("pass"))
    assert done.returncode == 0, done.stderr
    assert "2 ranks and 2 parameter servers on" in done.stdout
    assert "set for server 1:" in done.stdout
    program = next(line for line in done.stdout.splitlines() if line.startswith("server 0"))
    path, *arguments = program.split("/dev/null")[1].split()
    assert Path(path).name == "ciranda-ps"
    assert arguments == ["--workers", "2", "--servers", "2", "--server", "0"]


def test_servers_are_spread_over_the_hosts_that_are_named_or_those_of_the_ranks(launcher):
    def hosts_of(*options: str) -> list[str]:
        done = launcher.run("-H", "a,b", *options, "--dry-run", launcher.script("pass"))
        assert done.returncode == 0, done.stderr
        assert "CIRANDA_PS_SERVERS=<chosen by the agents>" in done.stdout
        assert "--tls" in done.stdout
        return [line.split()[2] for line in done.stdout.splitlines() if line.startswith("server")]

    assert hosts_of("--ps", "3", "--tls") == ["a", "b", "a"]
    assert hosts_of("--ps-hosts", "c:2,b", "--tls") == ["c", "c", "b"]
    assert hosts_of("--ps-hosts", "c,d", "--ps", "3", "--tls") == ["c", "d", "c"]


def test_servers_that_were_started_by_hand_are_told_to_the_ranks(launcher):
    script = launcher.script(
        "print(*[os.environ.get(name) for name in ('CIRANDA_PS', 'CIRANDA_KEY_FILE')])"
    )
    told = {"CIRANDA_PS": "192.0.2.7:20000", "CIRANDA_KEY_FILE": "/keys/job"}
    done = launcher.run("-np", "1", script, environment=told)
    assert done.stdout == "[0] 192.0.2.7:20000 /keys/job\n"
    del told["CIRANDA_PS"]  # the key of another job's ranks
    assert launcher.run("-np", "1", script, environment=told).stdout == "[0] None None\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "--workers is missing"),
        (["--workers", "two"], "--workers must be a whole number from 1 to 256, not 'two'"),
        (["--workers", "2", "--server", "1"], "--server 1 is not one of 1 servers"),
        (["--workers", "2"], "--listen HOST:PORT and --key-file FILE are missing"),
        (["--workers", "2", "--key-file", "key"], "must be given together"),
        (["--workers", "2", "--listen", "127.0.0.1:20000"], "must be given together"),
        (["--workers", "2", "--listen", "here", "--key-file", "key"], "expected HOST:PORT"),
        (["--workers", "2", "--colour"], "'--colour' is not an option"),
        (["--workers", "2", "more"], "'more' is not understood"),
    ],
)
def test_a_server_that_nobody_could_call_does_not_start(options, sentence):
    done = subprocess.run([SERVER_PROGRAM, *options], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith("ciranda-ps: ") and sentence in done.stderr


def test_a_server_opens_what_it_was_not_given(tmp_path):
    """Else its socket is its standard error, say."""
    made = tmp_path / "made"
    words = f"exec {SERVER_PROGRAM} --workers 1 --checkpoint-dir {made} <&- >&- 2>&-"
    told = {**os.environ, "CIRANDA_JOB_ID": "job", "CIRANDA_JOB_DIR": str(tmp_path)}
    server = subprocess.Popen(["/bin/sh", "-c", words], env=told)
    try:
        limit = time.monotonic() + 30
        while not (tmp_path / "ps0" / "local").exists():
            assert time.monotonic() < limit and server.poll() is None
            time.sleep(0.02)
        opened = [os.readlink(f"/proc/{server.pid}/fd/{each}") for each in range(3)]
        assert opened == ["/dev/null"] * 3
    finally:
        server.kill()
        server.wait()


def test_servers_of_an_outer_job_are_not_inherited(launcher):
    script = launcher.script("print(os.environ.get('CIRANDA_PS_SERVERS'))")
    done = launcher.run("-np", "1", script, environment={"CIRANDA_PS_SERVERS": "3"})
    assert done.stdout == "[0] None\n"
