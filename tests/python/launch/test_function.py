"""ciranda.run() and horovod.run(): what travels, what comes back, and what is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

import ciranda
from ciranda.errors import InvalidArgumentError, UnsupportedError
from ciranda.launch.horovod.horovodrun import ANSWERS, ELASTIC_CALL

MODULE = """
import os
import sys
import time


def add(a, b=0):
    return a + b + int(os.environ["RANK"])


def fail(which):
    import torch
    import ciranda.torch as cr

    cr.init()
    if cr.rank() in which:
        raise ValueError(f"broken on {cr.rank()}")
    cr.allreduce(torch.ones(1))


def die(how):
    if int(os.environ["RANK"]) == 1:
        os.kill(os.getpid(), 9) if how == "killed" else sys.exit(3)


def folder_of_call():
    folder = os.environ["CIRANDA_FUNCTION_DIR"]
    return oct(os.stat(folder).st_mode), oct(os.stat(folder + "/call").st_mode)


def path():
    return sys.path


def lock():
    import threading

    return threading.Lock()


def describe(text):
    return os.environ["HOROVOD_HOSTNAME"], int(os.environ["RANK"]), text


def linger():
    open("lingering", "w").close()
    time.sleep(60)
"""


@pytest.fixture
def call(launcher):
    """Runs lines of a program that has the functions above in a module `work`."""
    (launcher.folder / "work.py").write_text(MODULE)

    def call(text, *, hide=""):
        environment = dict(launcher.environment)
        if hide:
            (launcher.folder / "hiding").mkdir()
            (launcher.folder / "hiding" / f"{hide}.py").write_text("raise ImportError")
            environment["PYTHONPATH"] = f"{launcher.folder}/hiding:{environment['PYTHONPATH']}"
        (launcher.folder / "program.py").write_text(f"import ciranda, work\n{text}")
        return subprocess.run(
            [sys.executable, "program.py"],
            cwd=launcher.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return call


def test_results_come_back_by_rank(call):
    result = call("print(ciranda.run(work.add, (10,), {'b': 5}, np=3))", hide="cloudpickle")
    assert (result.stdout, result.stderr) == ("[15, 16, 17]\n", "")


def test_functions_of_the_program_travel_by_value(call):
    pytest.importorskip("cloudpickle")
    text = """
class Point:
    def __init__(self, x): self.x = x

scale = 3
def scaled(point): return Point(point.x * scale + work.add(0))
if __name__ == "__main__":
    print([point.x for point in ciranda.run(scaled, [Point(2)], np=2)])
    print(ciranda.run(lambda: scale, np=1))
"""
    result = call(text)
    assert (result.stdout, result.stderr) == ("[6, 7]\n[3]\n", "")


SPAWNED = """
import multiprocessing

def scaled(x): return x * int(__import__("os").environ["RANK"])
def call(x): return ciranda.run(scaled, [x], np=2)
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(call, [3]))
"""


def test_functions_of_a_spawned_program_travel_too(call):
    pytest.importorskip("cloudpickle")
    result = call(SPAWNED)
    assert (result.stdout, result.stderr) == ("[[0, 3]]\n", "")


def test_without_cloudpickle_a_spawned_program_is_told(call):
    result = call(SPAWNED, hide="cloudpickle")
    assert "run(): 'scaled' is not in a module that ranks can import; " in result.stderr


def test_without_cloudpickle_they_are_refused_with_a_way_out(call):
    result = call("def own(): pass\nciranda.run(own, np=2)", hide="cloudpickle")
    assert result.stderr.splitlines()[-1] == (
        "ciranda.errors.InvalidArgumentError: run(): 'own' is not in a module that ranks can "
        "import; pip install cloudpickle, or move it into a module"
    )


def test_ranks_look_for_modules_where_the_caller_does(call):
    result = call(
        "import os, sys; sys.path.append('more')\n"
        "ours = [os.path.abspath(part) for part in sys.path]\n"
        "print(ciranda.run(work.path, np=1)[0][:len(ours)] == ours)"
    )
    assert result.stdout == "True\n", result.stderr


def test_only_this_user_can_read_what_travels(call, launcher):
    result = call("print(ciranda.run(work.folder_of_call, np=1))")
    assert result.stdout == "[('0o40700', '0o100600')]\n", result.stderr


def test_a_ranks_exception_is_raised_with_its_traceback(call):
    text = """
try:
    ciranda.run(work.fail, ([1],), np=2)
except ciranda.errors.RankFailedError as error:
    print(error.rank, error)
    print(error.__cause__)
"""
    result = call("import ciranda.errors" + text)
    first, *rest = result.stdout.splitlines()
    assert first == "1 rank 1 raised ValueError: broken on 1"
    assert "Traceback (most recent call last):" in rest
    assert rest[-1] == "ValueError: broken on 1"
    assert any("work.py" in line and "in fail" in line for line in rest)
    assert "culprit     rank 1" in result.stderr  # rank 0's error is not the cause
    assert "run again" not in result.stderr  # there is no such command


@pytest.mark.parametrize(("how", "code"), [("killed", 137), ("exits", 3)])
def test_a_rank_that_ends_without_a_word_is_named(call, how, code):
    result = call(f"ciranda.run(work.die, ({how!r},), np=2)")
    assert result.stderr.splitlines()[-1] == (
        f"ciranda.errors.RankFailedError: the job ended with exit code {code} before rank 1 "
        "returned; the launcher has said why on stderr"
    )


def test_a_result_that_cannot_travel_is_named(call):
    result = call("ciranda.run(work.lock, np=1)")
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "ciranda.errors.RankFailedError: rank 0 raised ciranda.errors.InvalidArgumentError: "
        "the result, a lock, cannot be pickled: "
    )


@pytest.fixture
def other_hosts(launcher):
    """A stand-in for ssh, which runs the agents of all hosts here."""
    (launcher.folder / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (launcher.folder / "ssh").chmod(0o755)
    launcher.environment["PATH"] = f"{launcher.folder}:{launcher.environment['PATH']}"


def test_ranks_of_other_hosts_get_the_call_and_send_results(call, other_hosts):
    text = """
results = ciranda.run(work.describe, ("x" * 3_000_000,), np=2, hosts="node7:2")
print([(*result[:2], len(result[2])) for result in results])
"""
    result = call(text)
    expected = [("node7", rank, 3_000_000) for rank in range(2)]
    assert (result.stdout, result.stderr) == (f"{expected}\n", "")


def test_an_exception_on_another_host_is_raised_here(call, other_hosts):
    result = call("ciranda.run(work.lock, np=2, hosts='node7:2')")
    last = result.stderr.splitlines()[-1]
    assert "RankFailedError: rank 0 raised ciranda.errors.InvalidArgumentError: the result" in last


def test_options_are_the_launchers(call, launcher):
    result = call("ciranda.run(work.linger, np=2, options=['--timeout', '1'])")
    assert "the job took too long" in result.stderr
    assert "exit code 124 before rank 0 returned" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_caller_that_is_ended_takes_its_ranks_along(launcher, gone, number):
    (launcher.folder / "work.py").write_text(MODULE)
    # Whoever started the tests may have left SIGINT ignored.
    (launcher.folder / "program.py").write_text(
        "import signal, ciranda, work\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "ciranda.run(work.linger, np=2)"
    )
    caller = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=launcher.folder,
        env=launcher.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    launcher.wait_for_files("lingering")
    os.kill(caller.pid, number)
    caller.wait(20)
    gone(launcher)
    if number == signal.SIGKILL:  # nobody was left to remove what had travelled
        (folder,) = launcher.job_dirs()
        assert [path.name for path in folder.iterdir()] == ["call"]
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"np": 0}, InvalidArgumentError, "must be "),
        ({"np": 3, "hosts": "localhost:2"}, InvalidArgumentError, "more ranks than the 2 slots"),
        ({"hosts": "a", "hostfile": "b"}, InvalidArgumentError, "both name the hosts"),
        ({"hostfile": "/no/such"}, InvalidArgumentError, "/no/such: No such file"),
    ],
)
def test_wrong_use_is_a_sentence_and_starts_nothing(arguments, kind, words):
    with pytest.raises(kind, match=words):
        ciranda.run(print, **arguments)


def test_arguments_that_cannot_travel_are_named():
    with pytest.raises(InvalidArgumentError, match="'print' and its arguments cannot be pickled"):
        ciranda.run(print, (sys.stdout,))


def test_horovods_run_takes_its_arguments(call, launcher):
    text = """
import ciranda.compat.horovod
ciranda.compat.horovod.install()
import horovod
from horovod.runner import run
assert run is horovod.run
print(horovod.run(work.add, (1,), num_proc=2, start_timeout=60, use_gloo=True, ssh_port=22,
                  disable_cache=True, network_interfaces=["lo"], output_filename="logs"))
print(run(work.add, (2,), np=1, hosts="localhost:1"))
"""
    result = call(text)
    assert (result.stdout, result.stderr) == ("[1, 2]\n[2]\n", "")
    assert (launcher.folder / "logs" / "rank.1" / "stdout").exists()


@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ({"min_num_proc": 1}, ELASTIC_CALL),
        ({"host_discovery_script": "x"}, ELASTIC_CALL),
        ({"use_mpi": True}, ANSWERS["--mpi"]),
    ],
)
def test_horovods_run_refuses_what_is_absent(argument, answer):
    from ciranda.compat.run import run

    (name,) = argument
    with pytest.raises(UnsupportedError) as caught:
        run(print, **argument)
    assert str(caught.value) == f"horovod.run(): {name}: {answer}"
