"""Every host with a launcher of its own: together they must make one job, and keep its key."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.nodes import parse_node
from ciranda.launch.remote.meeting import (
    Ports,
    addresses_of,
    job_id_of,
    make_key_file,
    open_listener,
    parse_endpoint,
    parse_ports,
    read_key_file,
)

REPORT = str(Path(__file__).resolve().parents[2] / "net" / "report_rank.py")


@pytest.fixture
def port():
    """Stays bound, so that the kernel gives it to nobody else; who names it may listen there."""
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        owner.bind(("127.0.0.1", 0))
        yield owner.getsockname()[1]


@pytest.fixture
def key_file(tmp_path):
    make_key_file(str(tmp_path / "key"))
    return tmp_path / "key"


def options(key_file, port, node, *, nodes=2, host="127.0.0.1"):
    return [
        "--no-ssh",
        f"--nodes={nodes}",
        f"--node-rank={node}",
        f"--rendezvous={host}:{port}",
        f"--key-file={key_file}",
    ]


def run_nodes(launcher, commands):
    """The output of one launcher for each command, all at the same time."""
    processes = [launcher.start(*command) for command in commands]
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), results
    return [output for output, _ in results]


def reports(outputs):
    lines = [line.partition(" ")[2] for output in outputs for line in output.splitlines()]
    found = [json.loads(line) for line in lines]
    return sorted(found, key=lambda each: int(each["CIRANDA_RANK"]))


def test_two_launchers_make_one_job(launcher, key_file, port):
    outputs = run_nodes(
        launcher, [[*options(key_file, port, node), "-np", "2", REPORT] for node in (0, 1)]
    )
    shown = [sorted(line[:3] for line in output.splitlines()) for output in outputs]
    assert shown == [["[0]", "[1]"], ["[2]", "[3]"]]
    found = reports(outputs)
    for name, values in {
        "CIRANDA_RANK": ["0", "1", "2", "3"],
        "CIRANDA_SIZE": ["4"] * 4,
        "CIRANDA_LOCAL_RANK": ["0", "1", "0", "1"],
        "CIRANDA_LOCAL_SIZE": ["2"] * 4,
        "CIRANDA_CROSS_RANK": ["0", "0", "1", "1"],
        "CIRANDA_CROSS_SIZE": ["2"] * 4,
        "CIRANDA_RENDEZVOUS": [f"127.0.0.1:{port}"] * 4,
        "listens": [["127.0.0.1", port], None, None, None],
    }.items():
        assert [each.get(name) for each in found] == values, name
    assert len({each["CIRANDA_JOB_ID"] for each in found}) == 1
    assert len({each["CIRANDA_JOB_DIR"] for each in found}) == 2
    (key,) = {tuple(each["key"]) for each in found}
    assert key[0] == 32
    # The streams, the folder that was listed, and nothing that was meant for somebody else.
    assert {each["descriptors"] for each in found} == {4}


def test_hosts_may_have_different_numbers_of_ranks(launcher, key_file, port):
    common = ["-H", "one:1,two:2", REPORT]
    outputs = run_nodes(launcher, [[*options(key_file, port, node), *common] for node in (0, 1)])
    found = reports(outputs)
    assert [each["CIRANDA_LOCAL_SIZE"] for each in found] == ["1", "2", "2"]
    assert [each["CIRANDA_CROSS_RANK"] for each in found] == ["0", "1", "1"]
    assert {each["CIRANDA_CROSS_SIZE"] for each in found} == {"2"}


def test_a_job_on_one_host_has_no_key_and_no_rendezvous(launcher):
    alone = [["-np", "1", REPORT], ["--no-ssh", "--nodes=1", "--node-rank=0", "-np", "1", REPORT]]
    inherited = {"CIRANDA_RENDEZVOUS": "elsewhere:1", "CIRANDA_KEY_FILE": "/elsewhere"}
    for command in alone:
        result = launcher.run(*command, environment=inherited)
        (found,) = reports([result.stdout])
        assert not [name for name in found if "KEY" in name or "RENDEZVOUS" in name]


def test_srun_tells_what_the_options_leave_out(launcher, key_file, port):
    place = [f"--rendezvous=127.0.0.1:{port}", f"--key-file={key_file}"]
    slurm = {"SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
    result = launcher.run("--no-ssh", *place, "-np", "1", REPORT, environment=slurm)
    (found,) = reports([result.stdout])
    assert (found["CIRANDA_RANK"], found["CIRANDA_SIZE"]) == ("1", "2")


def test_a_culprit_on_another_host_is_named(launcher, key_file, port):
    script = launcher.script(
        "import json\n"
        "content = {'message': 'rank 0 was lost', 'ciranda': {'victim_of': 0}}\n"
        "json.dump(content, open(os.environ['CIRANDA_ERROR_FILE'], 'w'))\n"
        "sys.exit(1)\n"
    )
    result = launcher.run(*options(key_file, port, 1), "-np", "1", script)
    assert result.returncode == 1
    assert "culprit    rank 0\n" in result.stderr
    assert "it runs on another host, whose launcher tells why it failed" in result.stderr
    assert "rank 1: failed only because rank 0 was lost" in result.stderr


def test_the_key_is_nowhere_but_in_its_file(launcher, key_file, port):
    script = launcher.script("print(os.environ['CIRANDA_KEY_FD'], flush=True)\ntime.sleep(60)")
    process = launcher.start(*options(key_file, port, 0), "-np", "2", "--verbose", script)
    lines = [process.stdout.readline() for _ in range(2)]
    assert all(line.strip() for line in lines)
    key = key_file.read_bytes()
    spelled = [key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key)]
    for pid in launcher.processes():
        for name in ("cmdline", "environ"):
            content = Path(f"/proc/{pid}/{name}").read_bytes()
            assert not any(each in content for each in spelled), (pid, name)
    process.terminate()
    output, errors = process.communicate(timeout=20)
    written = [path.read_bytes() for path in launcher.folder.rglob("*") if path.is_file()]
    assert written.count(key) == 1
    for content in [output.encode(), errors.encode(), *(each for each in written if each != key)]:
        assert not any(each in content for each in spelled)


@pytest.mark.parametrize("which", ["launcher", "supervisor"])
def test_what_holds_the_key_dumps_no_core(launcher, key_file, port, gone, which):
    script = launcher.script("print(flush=True)\ntime.sleep(60)")
    launcher_words = [*options(key_file, port, 0), "-np", "1", script]
    process = launcher.start(*launcher_words, limits="ulimit -c unlimited")
    process.stdout.readline()
    pid = process.pid if which == "launcher" else launcher.supervisor_of(process)
    os.kill(pid, signal.SIGABRT)
    process.wait(20)
    gone(launcher)
    cores = [path for path in launcher.folder.rglob("*core*") if path.is_file()]
    assert not [path for path in cores if key_file.read_bytes() in path.read_bytes()]


def test_ciranda_key_makes_a_private_file_once(launcher, tmp_path):
    path = tmp_path / "new key"
    command = [sys.executable, "-m", "ciranda", "key", str(path)]
    done = subprocess.run(command, env=launcher.environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = read_key_file(str(path))
    again = subprocess.run(command, env=launcher.environment, capture_output=True, text=True)
    assert again.returncode == 2 and "is there already" in again.stderr
    assert read_key_file(str(path)) == first


def test_a_key_file_must_be_private_and_whole(tmp_path, key_file):
    loose = tmp_path / "loose"
    loose.write_bytes(bytes(32))
    loose.chmod(0o640)
    short = tmp_path / "short"
    short.write_bytes(bytes(31))
    long = tmp_path / "long"
    long.write_bytes(bytes(33))
    os.mkfifo(tmp_path / "pipe")
    for path in (short, long, tmp_path / "pipe"):
        path.chmod(0o600)
    for path, words in [
        (loose, "can be read or written by other users"),
        (short, "does not hold exactly 32 bytes"),
        (long, "does not hold exactly 32 bytes"),
        (tmp_path / "pipe", "is not a regular file"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "none", "No such file"),
    ]:
        with pytest.raises(LaunchError, match=words):
            read_key_file(str(path))
    link = tmp_path / "link"
    link.symlink_to(key_file)
    assert len(read_key_file(str(link))) == 32


def test_a_key_file_of_somebody_else_is_refused(tmp_path, key_file):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(key_file, 12345, 12345)
    with pytest.raises(LaunchError, match="belongs to user 12345"):
        read_key_file(str(key_file))


def test_the_job_id_is_the_keys_but_does_not_tell_it():
    one, other = bytes(32), bytes([1, *bytes(31)])
    assert job_id_of(one) == job_id_of(one) != job_id_of(other)
    assert len(job_id_of(one)) == 32 and job_id_of(one) not in one.hex()


def test_rank_0_listens_on_the_named_address_only():
    with open_listener(["127.0.0.1"], Ports(), "--x") as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1" and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        with pytest.raises(LaunchError, match="another program listens there"):
            open_listener(["127.0.0.1"], Ports(port, port), "--x")
        with open_listener(["127.0.0.1"], Ports(port, min(port + 9, 65535)), "--x") as next_one:
            assert port < next_one.getsockname()[1] <= port + 9
    with pytest.raises(LaunchError, match="this host does not have that address"):
        open_listener(["192.0.2.1"], Ports(), "--x")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("::", "means every address"),
        ("no-such-name.invalid", "leads to no address"),
        ("a" * 70 + ".b", "leads to no address"),
    ],
)
def test_an_address_that_no_other_host_can_use_is_refused(host, words):
    with pytest.raises(LaunchError, match=words):
        addresses_of(host, "--rendezvous")


def test_a_name_that_means_this_host_only_here_is_refused(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(LaunchError, match="where others cannot reach it"):
        addresses_of("myself", "--rendezvous")
    assert addresses_of("127.0.1.1", "--rendezvous") == ["127.0.1.1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1:29500", ("node1", 29500)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[fd00::1]:65535", ("fd00::1", 65535)),
    ],
)
def test_endpoints_are_understood(text, expected):
    assert parse_endpoint(text, "--rendezvous") == expected


@pytest.mark.parametrize(
    "text", ["node1", "node1:0", "node1:65536", "fd00::1:5", ":5", "a:b", "[]:1"]
)
def test_other_endpoints_cost_a_sentence(text):
    with pytest.raises(LaunchError, match="expected HOST:PORT"):
        parse_endpoint(text, "--rendezvous")


def test_port_ranges_are_understood_or_refused():
    assert parse_ports("20000-20099", "--port-range") == Ports(20000, 20099)
    for text in ("20000", "2-1", "0-5", "1-65536", "-", "a-b"):
        with pytest.raises(LaunchError, match="expected two ports"):
            parse_ports(text, "--port-range")


@pytest.mark.parametrize(
    ("index", "count", "words"),
    [
        (None, 2, "needs --node-rank, or SLURM_NODEID"),
        (0, None, "needs --nodes, or SLURM_STEP_NUM_NODES"),
        (2, 2, "--node-rank must be between 0 and 1, not 2"),
        (-1, 2, "--node-rank must be between 0 and 1, not -1"),
        (0, 0, "--nodes must be between 1 and 4096, not 0"),
    ],
)
def test_wrong_numbers_of_nodes_cost_a_sentence(index, count, words):
    with pytest.raises(LaunchError, match=words):
        parse_node(index, count, "a:1", "key", {})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes=2"], "--nodes goes with --no-ssh"),
        (["--no-ssh", "--nodes=2", "--node-rank=0"], "needs --rendezvous HOST:PORT"),
        (["--no-ssh", "--nodes=2", "--node-rank=0", "--rendezvous=a:1"], "needs --key-file"),
        (["--no-ssh", "--nodes=1", "--node-rank=0"], "needs -np"),
        (["-x", "CIRANDA_RENDEZVOUS=a:1"], "is set by the launcher"),
        (["--port-range=5"], "expected two ports"),
    ],
)
def test_wrong_options_cost_a_sentence(launcher, arguments, words):
    result = launcher.run(*arguments, "true")
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert words in result.stderr


def test_the_hosts_must_be_as_many_as_the_nodes(launcher, key_file):
    result = launcher.run(*options(key_file, 1, 0, nodes=3), "-H", "a,b", "true")
    assert "--nodes 3: the ranks fill 2 hosts of -H" in result.stderr


def test_dry_run_shows_this_nodes_part(launcher, key_file):
    result = launcher.run(*options(key_file, 29500, 1), "-np", "1", "--dry-run", "true")
    assert result.stdout.startswith("2 ranks on 2 hosts; nothing was started")
    assert "CIRANDA_RENDEZVOUS=127.0.0.1:29500" in result.stdout
    assert "CIRANDA_RANK=1" in result.stdout and "CIRANDA_RANK=0" not in result.stdout
