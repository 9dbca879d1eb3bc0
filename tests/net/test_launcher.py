"""One job on several hosts: started by ssh, shown in one place, and gone everywhere together."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ciranda

PACKAGES = str(Path(ciranda.__file__).resolve().parents[1])
GONE_S = 5.0  # promised: everything everywhere has ended within that time
IPV4_AND_IPV6 = pytest.mark.parametrize("family", ["ipv4", "ipv6"])

SERVED_RANK = Path(__file__).parents[1] / "python" / "hosts" / "served.py"
REPORT = str(Path(__file__).with_name("report_rank.py"))
# A rank that cannot be ended politely, with a child and a daemon that are hard to find again.
TREE = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    time.sleep(300)
print("ready", flush=True)
time.sleep(300)
"""


class Cluster:
    """Hosts with sshd, and a launcher on the first. A tag finds all processes of a job again."""

    def __init__(self, network, folder: Path) -> None:
        self.network = network
        self.hosts = network.hosts
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.tag = f"CIRANDA_TEST_TAG={uuid.uuid4().hex}"
        name, _, text = self.tag.partition("=")
        self.environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("SLURM")},
            name: text,
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
            "PYTHONPATH": PACKAGES,
            "TMPDIR": str(self.temporary),
            "PYTHONIOENCODING": "utf-8",
        }
        # For the agents, whom sshd gives no PYTHONPATH: the ciranda that is tested.
        self.python = str(folder / "python")
        words = shlex.join(
            ["env", f"PYTHONPATH={PACKAGES}", f"TMPDIR={self.temporary}", self.tag, sys.executable]
        )
        self.program("python", f'exec {words} "$@"')

    def program(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def script(self, text: str) -> str:
        (self.folder / "rank.py").write_text(text)
        return "rank.py"

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "ciranda", "run", f"--python={self.python}", *arguments]

    def run(
        self, *arguments: str, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return self.hosts[0].run(
            self.argv(*arguments),
            cwd=cwd or self.folder,
            env={**self.environment, **variables},
            timeout=60,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return self.hosts[0].popen(
            self.argv(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_tree(self, hosts: str, rank_count: int, *options: str) -> subprocess.Popen[str]:
        """A job whose ranks are all there with their children."""
        process = self.start("-H", hosts, *options, self.script(TREE))
        lines = sorted(process.stdout.readline() for _ in range(rank_count))
        assert lines == [f"[{rank}] ready\n" for rank in range(rank_count)]
        self.job_dirs = {self._job_dir(pid) for pid in self.processes("sleep")}
        assert len(self.job_dirs) == hosts.count("node") and all(map(os.path.isdir, self.job_dirs))
        return process

    def _job_dir(self, pid: int) -> str:
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        (folder,) = [each for each in variables if each.startswith("CIRANDA_JOB_DIR=")]
        return folder.partition("=")[2]

    def processes(self, name: str = "") -> list[int]:
        """Living processes with our tag on any host, by their pids outside."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdecimal():
                    continue
                tagged = self.tag.encode() in (entry / "environ").read_bytes().split(b"\0")
                if tagged and name in (entry / "comm").read_text():
                    found.append(int(entry.name))
            except OSError:
                pass  # it has just ended
        return found

    def process_on(self, host, name: str) -> int:
        """The pid of the agent of a host, ciranda-agent, or of its supervisor, ciranda-superv."""
        (found,) = [pid for pid in self.processes(name) if _is_on(pid, host)]
        return found

    def assert_gone(self, since: float) -> None:
        while left := self.processes():
            words = [Path(f"/proc/{pid}/comm") for pid in left]
            names = [path.read_text().strip() for path in words if path.exists()]
            assert time.monotonic() - since < GONE_S, names
            time.sleep(0.02)
        print(f"all gone after {time.monotonic() - since:.2f} s")

    def assert_nothing_left(self, since: float) -> None:
        """Neither processes nor folders, but for the launcher's logs."""
        self.assert_gone(since)
        assert not [folder for folder in self.job_dirs if os.path.exists(folder)]
        (logs,) = self.temporary.iterdir()
        assert (logs / "rank-0.log").exists()


def _is_on(pid: int, host) -> bool:
    return os.readlink(f"/proc/{pid}/ns/net") == os.readlink(f"/proc/{host.pid}/ns/net")


@pytest.fixture
def make_cluster(make_network, tmp_path) -> Iterator[Callable[..., Cluster]]:
    made = []

    def make(count: int = 2, **options) -> Cluster:
        made.append(Cluster(make_network(count, ssh=True, **options), tmp_path))
        return made[-1]

    yield make
    for cluster in made:
        left = cluster.processes()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, "processes of the job were left behind"


def reports(result) -> list[dict]:
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    return [json.loads(line.partition(" ")[2]) for line in lines]


def block_of(errors: str) -> str:
    start = errors.index("╭")
    assert errors.rstrip().splitlines()[-1].startswith("╰")
    return errors[start:]


@IPV4_AND_IPV6
def test_ranks_on_two_hosts_find_their_places_and_each_other(make_cluster, family):
    cluster = make_cluster(addresses=(family,))
    first, *_ = found = reports(cluster.run("-H", "node0:1,node1:2", REPORT))
    address = cluster.hosts[0].address()
    for name, values in {
        "CIRANDA_RANK": ["0", "1", "2"],
        "CIRANDA_SIZE": ["3"] * 3,
        "CIRANDA_LOCAL_RANK": ["0", "0", "1"],
        "CIRANDA_LOCAL_SIZE": ["1", "2", "2"],
        "CIRANDA_CROSS_RANK": ["0", "1", "1"],
        "CIRANDA_CROSS_SIZE": ["2"] * 3,
        "MASTER_ADDR": [address] * 3,
        "cwd": [str(cluster.folder)] * 3,
    }.items():
        assert [each.get(name) for each in found] == values, name
    (endpoint,) = {each["CIRANDA_RENDEZVOUS"] for each in found}
    host, port = first["listens"]
    assert host == address
    assert endpoint == (f"[{host}]:{port}" if family == "ipv6" else f"{host}:{port}")
    assert [("listens" in each) for each in found] == [True, False, False]
    assert len({each["CIRANDA_JOB_ID"] for each in found}) == 1
    assert len({each["CIRANDA_JOB_DIR"] for each in found}) == 2
    (key,) = {tuple(each["key"]) for each in found}
    assert key[0] == 32 and key[1] != hashlib.sha256(bytes(32)).hexdigest()
    assert not list(cluster.temporary.iterdir())
    assert not [each for each in found if Path(each["CIRANDA_JOB_DIR"]).exists()]


def test_the_launchers_host_needs_no_rank(make_cluster):
    cluster = make_cluster(3, addresses=("ipv4",))
    found = reports(cluster.run("-H", "node1,node2", REPORT))
    assert found[0]["listens"][0] == cluster.hosts[1].address()
    (alone,) = reports(cluster.run("-H", "node1", REPORT))
    assert not [name for name in alone if "KEY" in name or "RENDEZVOUS" in name]


def test_the_environment_goes_along_but_for_what_belongs_to_the_host(make_cluster):
    cluster = make_cluster()
    result = cluster.run(
        "-H",
        "node0,node1",
        *("-x", "CHOSEN", "-x", "SPACED=a 'b' $c\nd"),
        REPORT,
        CHOSEN="1",
        HOROVOD_FUSION_THRESHOLD="5",
        NOT_CHOSEN="secret",
        CIRANDA_KEY_FILE="/elsewhere",
    )
    there = reports(result)[1]
    assert (there["CHOSEN"], there["HOROVOD_FUSION_THRESHOLD"]) == ("1", "5")
    assert there["SPACED"] == "a 'b' $c\nd"
    assert not {"NOT_CHOSEN", "CIRANDA_KEY_FILE"} & set(there)


def test_a_network_and_ports_can_be_chosen(make_cluster):
    cluster = make_cluster(nics=2)
    options = ("-H", "node0,node1", "--nic", "eth1", "--port-range", "20000-20009")
    found = reports(cluster.run(*options, REPORT))
    host, port = found[0]["listens"]
    assert host == cluster.hosts[0].address(nic=1) and 20000 <= port <= 20009
    assert {each["CIRANDA_NIC"] for each in found} == {"eth1"}
    assert {each["CIRANDA_PORT_RANGE"] for each in found} == {"20000-20009"}
    result = cluster.run("-H", "node0,node1", "--nic", "eth7", REPORT)
    assert result.returncode == 2
    assert "node0: --nic eth7: no address of this host fits; it has: " in result.stderr


def test_the_output_of_all_ranks_comes_together(make_cluster):
    cluster = make_cluster()
    text = "import sys\nprint('x' * 100_000)\nprint('no end', end='', file=sys.stderr)\n"
    result = cluster.run("-H", "node0,node1", "--log-dir", "logs", cluster.script(text))
    assert (result.returncode, sorted(result.stderr.split("\n"))) == (
        0,
        ["", "[0] no end", "[1] no end"],
    )
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] {'x' * 100_000}" for rank in (0, 1)]
    for rank in (0, 1):
        log = (cluster.folder / "logs" / f"rank-{rank}.log").read_text()
        assert sorted(log.partition("\n")) != [] and "no end" in log


def test_a_rank_that_fails_ends_all_and_is_named(make_cluster):
    cluster = make_cluster()
    text = (
        "import json, os, sys, time\n"
        "if os.environ['RANK'] == '0': time.sleep(300)\n"
        "print('about to fail')\n"
        "content = {'message': {'message': 'ValueError: boom'}, 'ciranda': {'in': 'step 3'}}\n"
        "json.dump(content, open(os.environ['CIRANDA_ERROR_FILE'], 'w'))\n"
        "sys.exit(7)\n"
    )
    result = cluster.run("-H", "node0,node1", cluster.script(text))
    cluster.assert_gone(time.monotonic())
    assert result.returncode == 7
    block = block_of(result.stderr)
    assert re.search(r"culprit +rank 1 on node1, pid \d+\n", block)
    assert re.search(r"cause +ValueError: boom \(exit code 7\)\n", block)
    assert re.search(r"in +step 3\n", block)
    assert re.search(r"last lines +about to fail\n", block)
    assert re.search(r"ended +rank 0: by the launcher\n", block)
    log = re.search(r"log +(\S+)", block)[1]
    assert Path(log).read_text() == "about to fail\n"


# Parameter servers: node0 has one and no rank, node1 one and a rank, node2 a rank alone.
SERVED = ("-H", "node1,node2", "--ps", "2", "--ps-hosts", "node0,node1")


@pytest.mark.parametrize(
    "options",
    [pytest.param([], id="tags", marks=pytest.mark.soak), pytest.param(["--tls"], id="tls")],
)
def test_servers_serve_ranks_of_several_hosts(make_cluster, options):
    cluster = make_cluster(3, addresses=("ipv4",))
    result = cluster.run(*SERVED, *options, str(SERVED_RANK), "sync", "6")
    cluster.assert_gone(time.monotonic())
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    trained = [json.loads(line[4:]) for line in lines if line.startswith(("[0] {", "[1] {"))]
    assert len(trained) == 2 and all(each["off"] < 1e-6 for each in trained)
    for server in range(2):
        (said,) = [line for line in lines if line.startswith(f"[s{server}] ")]
        assert said.startswith(f"[s{server}] server {server} of 2: 12 pushes")


def test_each_host_is_told_of_its_own_servers_and_where_the_others_are(make_cluster):
    """And servers that nobody has called end after the last rank."""
    cluster = make_cluster(3, addresses=("ipv4",))
    text = (
        "import os\nprint(os.environ['CIRANDA_PS_SERVERS'], 'CIRANDA_RENDEZVOUS' in os.environ)\n"
    )
    result = cluster.run(*SERVED, cluster.script(text))
    cluster.assert_gone(time.monotonic())
    assert result.returncode == 0, result.stderr
    said = sorted(line for line in result.stdout.splitlines() if not line.startswith("[s"))
    assert re.fullmatch(r"\[0\] 10\.77\.1\.1:\d+,here False", said[0])
    assert re.fullmatch(r"\[1\] 10\.77\.1\.1:\d+,10\.77\.1\.2:\d+ False", said[1])


def test_an_evaluator_is_where_server_0_is_and_ends_after_the_servers(make_cluster):
    cluster = make_cluster(3, addresses=("ipv4",))
    text = (
        "import os, sys, time\n"
        "if 'CIRANDA_EVALUATED' in os.environ:\n"
        "    sys.stdin.read()\n"
        "    print('over on', os.uname().nodename, os.environ['CIRANDA_EVALUATED'])\n"
        "else:\n    time.sleep(1)\n    print('rank', os.environ['RANK'], 'has ended')\n"
    )
    options = ("--checkpoint-dir", "checkpoints", "--evaluator", "--verbose")
    result = cluster.run(*SERVED, *options, cluster.script(text))
    cluster.assert_gone(time.monotonic())
    assert result.returncode == 0, result.stderr
    over = re.findall(r"^\[e\] over on (\w+) /.*/checkpoints$", result.stdout, re.MULTILINE)
    assert over == ["node0"], result.stdout
    ended = re.findall(r"ciranda: (.*) ended after .* exit code 0", result.stderr)
    assert sorted(ended) == ["evaluator", "rank 0", "rank 1", "server 0", "server 1"]
    assert ended.index("evaluator") > ended.index("server 0")


def test_a_coordinator_is_where_server_0_is_and_comes_back(make_cluster):
    cluster = make_cluster(3, addresses=("ipv4",))
    text = (
        "import os, signal, time, ciranda.torch as cr\n"
        "from ciranda.torch import ps\n"
        "cr.init()\n"
        "@ps.task\n"
        "def where(number):\n"
        "    time.sleep(0.05)\n"
        "    return [number, cr.rank(), os.uname().nodename]\n"
        "def main():\n"
        "    told = [ps.schedule(where, number) for number in range(20)]\n"
        "    ps.join()\n"
        "    if os.environ['CIRANDA_LIFE'] == '1':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    told = [each.result() for each in told]\n"
        "    assert [each[0] for each in told] == list(range(20))\n"
        "    print(os.uname().nodename, sorted({f'{rank} {node}' for _, rank, node in told}))\n"
        "ps.run(main)\n"
    )
    options = ("--coordinator", "--restarts", "1", "--verbose")
    result = cluster.run(*SERVED, *options, cluster.script(text))
    cluster.assert_gone(time.monotonic())
    assert result.returncode == 0, result.stderr
    assert "[c] node0 ['0 node1', '1 node2']" in result.stdout
    assert "coordinator was ended by Killed, SIGKILL (9); it is started again" in result.stderr
    ended = re.findall(r"ciranda: (.*) ended after .* exit code 0", result.stderr)
    assert sorted(ended) == ["coordinator", "rank 0", "rank 1", "server 0", "server 1"]


def test_a_killed_server_of_another_host_ends_all_and_is_named(make_cluster):
    cluster = make_cluster(3, addresses=("ipv4",))
    process = cluster.start(*SERVED, str(SERVED_RANK), "sync", "1000000")
    while "step 2" not in process.stdout.readline():
        assert process.poll() is None
    os.kill(cluster.process_on(cluster.hosts[0], "ciranda-ps"), signal.SIGKILL)
    killed_s = time.monotonic()
    _, errors = process.communicate(timeout=60)
    cluster.assert_gone(killed_s)
    assert process.returncode == 128 + signal.SIGKILL
    block = block_of(errors)
    assert re.search(r"culprit +server 0 on node0, pid \d+\n", block), block
    assert re.search(r"cause +.*SIGKILL", block), block


def test_a_killed_server_of_another_host_comes_back_with_its_state(make_cluster):
    cluster = make_cluster(3, addresses=("ipv4",))
    state = cluster.folder / "state"
    process = cluster.start(
        *SERVED, "--ps-dir", str(state), "--restarts", "1", str(SERVED_RANK), "sync", "40"
    )
    while "step 2" not in process.stdout.readline():
        assert process.poll() is None
    os.kill(cluster.process_on(cluster.hosts[0], "ciranda-ps"), signal.SIGKILL)
    output, errors = process.communicate(timeout=60)
    cluster.assert_gone(time.monotonic())
    assert process.returncode == 0, errors
    lines = output.splitlines()
    trained = [json.loads(line[4:]) for line in lines if line.startswith(("[0] {", "[1] {"))]
    assert len(trained) == 2 and all(each["off"] < 1e-6 for each in trained)
    assert "ciranda: server 0 was ended by Killed" in errors
    assert "[s0] ciranda-ps: server 0 goes on from version" in errors


def test_a_killed_rank_of_another_host_comes_back_to_its_servers(make_cluster):
    cluster = make_cluster(3, addresses=("ipv4",))
    text = (
        "import os, runpy, signal, sys\n"
        "if os.environ['RANK'] == '1' and os.environ['CIRANDA_LIFE'] == '1':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.argv[1:] = ['async', '5']\n"
        f"sys.path.insert(0, {str(SERVED_RANK.parent)!r})\n"
        f"runpy.run_path({str(SERVED_RANK)!r}, run_name='__main__')\n"
    )
    result = cluster.run(*SERVED, "--restarts", "1", cluster.script(text))
    cluster.assert_gone(time.monotonic())
    assert result.returncode == 0, result.stderr
    assert "server 0 of 2: 10 pushes" in result.stdout


def test_a_program_that_a_host_does_not_have_is_named(make_cluster, tmp_path):
    cluster = make_cluster()
    only_here = cluster.program("only_here", "sleep 60")
    cluster.hosts[1].check(["mount", "--bind", "/dev/null", only_here])
    result = cluster.run("-H", "node0,node1", only_here)
    assert result.returncode == 126
    assert result.stderr == (
        f"ciranda run: cannot start '{only_here}' on node1: Permission denied\n"
    )


def test_a_host_without_the_working_folder_is_named(make_cluster):
    cluster = make_cluster()
    folder = cluster.folder / "outer" / "inner"
    folder.mkdir(parents=True)
    cluster.hosts[1].check(["mount", "-t", "tmpfs", "tmpfs", str(folder.parent)])
    result = cluster.run("-H", "node0,node1", "true", cwd=folder)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert f"node1: cannot work in the folder {folder}: No such file" in result.stderr


def test_a_timeout_ends_all_ranks(make_cluster):
    cluster = make_cluster()
    result = cluster.run("-H", "node0,node1", "--timeout", "5", "sleep", "300")
    cluster.assert_gone(time.monotonic())
    assert result.returncode == 124
    assert "ranks 0, 1: by the launcher" in block_of(result.stderr)


def test_ctrl_c_reaches_all_ranks(make_cluster):
    cluster = make_cluster()
    text = (
        "import time\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(300)\n"
        "except KeyboardInterrupt: print('saved', flush=True)\n"
    )
    process = cluster.start("-H", "node0,node1", cluster.script(text))
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert sorted(output.splitlines()) == ["[0] saved", "[1] saved"]
    cluster.assert_gone(time.monotonic())


def test_killing_the_launcher_ends_everything(make_cluster):
    cluster = make_cluster()
    process = cluster.start_tree("node0:2,node1:2", 4)
    assert len(cluster.processes()) > 4 * 3
    began = time.monotonic()
    process.kill()
    cluster.assert_nothing_left(began)
    process.communicate()


@pytest.mark.parametrize("which", [0, 1], ids=["here", "there"])
@pytest.mark.parametrize("name", ["agent", "supervisor"])
def test_killing_who_holds_a_hosts_ranks_ends_everything(make_cluster, which, name):
    cluster = make_cluster()
    process = cluster.start_tree("node0,node1", 2)
    began = time.monotonic()
    os.kill(cluster.process_on(cluster.hosts[which], f"ciranda-{name}"[:14]), signal.SIGKILL)
    _, errors = process.communicate(timeout=GONE_S)
    cluster.assert_nothing_left(began)
    assert process.returncode == 1
    block = block_of(errors)
    whose = {"agent": "its agent", "supervisor": "the launcher's own supervisor (pid "}[name]
    assert f"the host node{which} was lost, and with it rank {which}: {whose}" in block
    assert f"rank {1 - which}: by the launcher" in block


@IPV4_AND_IPV6
def test_unplugging_a_host_ends_everything_and_is_told(make_cluster, family):
    cluster = make_cluster(addresses=(family,))
    process = cluster.start_tree("node0:2,node1:2", 4)
    began = time.monotonic()
    cluster.network.unplug(cluster.hosts[1])
    _, errors = process.communicate(timeout=GONE_S)
    cluster.assert_nothing_left(began)
    assert process.returncode == 1
    block = block_of(errors)
    assert "the host node1 was lost, and with it ranks 2, 3: its agent has sent nothing" in block
    assert "ranks 0, 1: by the launcher" in block


def test_a_host_that_crashes_ends_everything(make_cluster):
    cluster = make_cluster()
    process = cluster.start_tree("node0,node1", 2)
    began = time.monotonic()
    cluster.hosts[1].crash()
    _, errors = process.communicate(timeout=GONE_S)
    cluster.assert_gone(began)
    assert "the host node1 was lost, and with it rank 1" in block_of(errors)


def test_a_launcher_that_is_held_up_keeps_its_hosts(make_cluster):
    cluster = make_cluster()
    text = (
        "import time\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 5\n"
        "while time.monotonic() < end: print('x' * 1000)\n"
    )
    process = cluster.start("-H", "node0,node1", cluster.script(text))
    process.stdout.readline()
    time.sleep(4)  # nobody reads, so the launcher hangs in writing
    stopped = [pid for pid in cluster.processes("python") if _is_launcher(pid)]
    for pid in stopped:  # as by Ctrl-Z
        os.kill(pid, signal.SIGSTOP)
    time.sleep(4)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert stopped


def test_a_slow_reader_gets_everything_that_ranks_left_behind(make_cluster):
    cluster = make_cluster()
    # More than fits into pipes and ssh's window, and less than would make a rank wait.
    sizes = {"0": 700, "1": 2900}
    text = f"import os\nfor _ in range({sizes}[os.environ['RANK']]): print('x' * 999)\n"
    process = cluster.start("-H", "node0,node1", cluster.script(text))
    time.sleep(7)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert len(output.splitlines()) == sum(sizes.values())


def _is_launcher(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"run" in words and Path(f"/proc/{pid}/comm").read_text().startswith("python")


def test_the_key_is_nowhere(make_cluster):
    cluster = make_cluster()
    text = (
        "import os, sys, time\n"
        "with open(int(os.environ['CIRANDA_KEY_FD']), 'rb') as file:\n"
        f"    open({str(cluster.folder)!r} + '/seen', 'wb').write(file.read())\n"
        "os.environ.clear()\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)\n"
    )
    process = cluster.start("-H", "node0,node1", "--verbose", cluster.script(text))
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
    key = (cluster.folder / "seen").read_bytes()
    (cluster.folder / "seen").unlink()
    assert len(key) == 32
    # A run of bytes in base64 is spelled in three ways, by where it begins in a group of three.
    shifted = [base64.b64encode(bytes(shift) + key)[4:40] for shift in range(3)]
    spelled = [key, key.hex().encode(), key.hex().upper().encode(), *shifted]
    looked_at = 0
    for entry in Path("/proc").iterdir():
        for name in ("cmdline", "environ"):
            try:
                content = (entry / name).read_bytes() if entry.name.isdecimal() else b""
            except OSError:
                continue
            looked_at += bool(content)
            assert not any(each in content for each in spelled), (entry, name)
    assert looked_at > 10
    agent = cluster.process_on(cluster.hosts[1], "ciranda-agent")
    os.kill(agent, signal.SIGKILL)  # for the failure block
    output, errors = process.communicate(timeout=20)
    files = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert any(path.name == "rank-0.log" for path in files)
    for content in [output.encode(), errors.encode(), *(path.read_bytes() for path in files)]:
        assert not any(each in content for each in spelled)


def test_two_launchers_without_ssh_make_one_job(make_network, tmp_path):
    hosts = make_network(2, addresses=("ipv6",)).hosts
    environment = {**os.environ, "PYTHONPATH": PACKAGES}
    launcher = [sys.executable, "-m", "ciranda"]
    key = str(tmp_path / "key")
    hosts[0].check([*launcher, "key", key], env=environment)
    place = f"--rendezvous=[{hosts[0].address()}]:29500"
    common = ["--no-ssh", "--nodes=2", place, f"--key-file={key}", "-np=1"]
    processes = [
        host.popen(
            [*launcher, "run", *common, f"--node-rank={index}", REPORT],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, host in enumerate(hosts)
    ]
    outputs = [process.communicate(timeout=30)[0] for process in processes]
    found = [json.loads(output.partition(" ")[2]) for output in outputs]
    assert [each["CIRANDA_RANK"] for each in found] == ["0", "1"]
    assert found[0]["listens"] == [hosts[0].address(), 29500]
    assert found[0]["key"] == found[1]["key"] and found[0]["key"][0] == 32
    wrong = hosts[1].run(
        [*launcher, "run", *common, "--node-rank=0", REPORT], cwd=tmp_path, env=environment
    )
    assert "this host does not have that address, and rank 0 runs here" in wrong.stderr
