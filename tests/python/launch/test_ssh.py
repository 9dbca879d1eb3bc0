"""The way to another host fails in many ways; each must be told apart and say what to do."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ciranda
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import parse_hosts
from ciranda.launch.remote.ssh import Answer, agent_command, quote_command, ssh_argv, start_problem

PACKAGES = str(Path(ciranda.__file__).resolve().parents[1])
PRINT_ARGUMENTS = "import json, sys; print(json.dumps(sys.argv[1:]))"


def program(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory):
    """This Python with the ciranda that is tested, at a path that has to be quoted."""
    path = tmp_path_factory.mktemp("there") / "it's $HOME" / "python"
    run = shlex.join(["env", f"PYTHONPATH={PACKAGES}", sys.executable])
    return program(path, f'exec {run} "$@"')


def check(host, hosts, interpreter):
    """The launcher's sentences about hosts that cannot take part."""
    environment = {**os.environ, "PYTHONPATH": PACKAGES}
    launcher = [sys.executable, "-m", "ciranda", "run", f"--python={interpreter}"]
    done = host.run([*launcher, "-H", hosts, "true"], env=environment)
    assert done.returncode == (2 if done.stderr else 0)
    return [line.removeprefix("ciranda run: ") for line in done.stderr.splitlines()]


def test_the_users_configuration_stays_in_force():
    (host,) = parse_hosts("me@[fd00::1]")
    *options, dashes, destination, command = ssh_argv(host, ["a b", "$c"])
    assert options == ["ssh", "-T", "-oBatchMode=yes", "-oConnectTimeout=5"]
    assert (dashes, destination, command) == ("--", "me@fd00::1", "'a b' '$c'")


WORDS = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=3)


@pytest.mark.parametrize("shell", ["sh", "bash"])
@settings(max_examples=20, deadline=None)
@given(words=WORDS)
def test_a_program_behind_a_shell_gets_its_words_unchanged(shell, words):
    command = quote_command([sys.executable, "-c", PRINT_ARGUMENTS, *words])
    done = subprocess.run([shell, "-c", command], capture_output=True, check=True)
    assert json.loads(done.stdout) == words


def test_modules_in_the_home_folder_do_not_shadow_pythons_own(tmp_path):
    for name in ("json", "ciranda", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    done = subprocess.run(
        agent_command(sys.executable),
        cwd=tmp_path,
        input="",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PACKAGES},
    )
    assert "shadowed" not in done.stderr
    assert ciranda.__version__ in done.stdout


def test_a_zero_byte_is_refused():
    with pytest.raises(LaunchError, match="zero byte"):
        quote_command(["a\0b"])


def test_hosts_with_the_same_ciranda_have_no_problem(make_network, interpreter):
    a, b = make_network(2, ssh=True).hosts
    hosts = f"node0,node1,root@{b.address('ipv4')},[{b.address('ipv6')}]"
    assert check(a, hosts, interpreter) == []


def test_each_failure_of_ssh_is_told_apart(make_network, interpreter):
    # In one Ethernet the kernel would notice that nobody has the address of an unplugged host.
    network = make_network(3, addresses=("ipv4",), router=True, ssh=True)
    a, b, c = network.hosts
    b.check(["sh", "-c", "kill $(cat /proc/[0-9]*/stat | sed -n 's/ (sshd) .*//p')"])
    network.unplug(c)
    began = time.monotonic()
    said = check(a, "nobody,node1,node2,stranger@node0,10.99.0.1", interpreter)
    assert time.monotonic() - began < 10  # all at once, and ssh gives up after 5 s
    assert [sentence.partition(";")[0] for sentence in said] == [
        "nobody: there is no host of this name",
        "node1: it is up but refuses ssh",
        "node2: no answer within 5 s",
        "stranger@node0: the login is refused, and nobody is there to type a password",
        "10.99.0.1: no network leads there",
    ]
    assert said[3].endswith("bring your key there with: ssh-copy-id stranger@node0")


def test_host_keys_are_checked(make_network, interpreter):
    network = make_network(3, ssh=True)
    known = network.folder / "ssh" / "known_hosts"
    node0, _, node2 = known.read_text().splitlines()
    key_of_node0 = node0.partition(" ")[2]
    known.write_text(f"node1 {key_of_node0}\n{node2.replace('node2,', '')}\n")
    changed, unknown = check(network.hosts[0], "node1,node2", interpreter)
    assert changed.startswith("node1: its host key is not the known one")
    assert changed.endswith("ssh-keygen -R node1")
    assert unknown.startswith("node2: its host key is not known here yet")
    assert unknown.endswith("ssh node2 true")


def test_a_key_that_others_may_read_is_named(make_network, interpreter):
    network = make_network(2, ssh=True)
    key = network.folder / "ssh" / "user_key"
    key.chmod(stat.S_IMODE(key.stat().st_mode) | stat.S_IRGRP | stat.S_IROTH)
    (said,) = check(network.hosts[0], "node1", interpreter)
    assert said.startswith("node1: ssh ignores a private key that others may read")


def test_what_is_wrong_on_the_other_side_is_told_apart(make_network, interpreter, tmp_path):
    a, _ = make_network(2, ssh=True).hosts
    no_module = program(tmp_path / "bare", f'exec {sys.executable} -I -S "$@"')
    broken = program(tmp_path / "broken", "echo oops >&2; exit 3")
    file = tmp_path / "file"
    file.write_text("")
    other = program(tmp_path / "other", "echo Welcome!; echo ciranda 9.9; sleep 60")
    here = ciranda.__version__
    for there, words in [
        ("/nowhere/python", "node1: there is no Python at /nowhere/python; install it"),
        (str(file), f"node1: there is no Python at {file}"),
        (no_module, f"node1: {no_module} has no ciranda {here}; install it there too"),
        (other, f"node1: ciranda is 9.9 there and {here} here; install the same"),
        (broken, f"node1: ciranda's agent in {broken} ends with exit code 3 and says: oops"),
    ]:
        (said,) = check(a, "node1", there)
        assert said.startswith(words)


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ("Welcome!\nConnection timed out during banner exchange\n", "no answer within 5 s"),
        ("kex_exchange_identification: Connection closed\n", "ssh failed: kex_exchange_identi"),
        ("", "ssh failed: ssh said nothing"),
        ("x\x1b[2J" * 100, "ssh failed: x[2Jx[2J"),
    ],
)
def test_other_words_of_ssh_are_passed_on_in_one_line(errors, words):
    (host,) = parse_hosts("node1")
    problem = start_problem(Answer(host, 255, "", errors), agent_command("python"), "1")
    assert problem.startswith(f"node1: {words}")
    assert problem.isprintable() and len(problem) < 300


def test_a_host_may_greet_before_it_answers():
    (host,) = parse_hosts("node1")
    answer = Answer(host, 0, "Welcome!\nciranda 1.2\n", "")
    assert start_problem(answer, agent_command("python"), "1.2") is None


def test_without_ssh_there_is_a_sentence(launcher):
    command = ("-H", "node1,node2", sys.executable)
    result = launcher.run(*command, environment={"PATH": str(launcher.folder)})
    assert result.returncode == 127
    assert "need the program ssh" in result.stderr and not launcher.log_dirs()
