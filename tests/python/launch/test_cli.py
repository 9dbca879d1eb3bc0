"""What a user types first: a wrong option must cost a sentence, not a traceback or a hang."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner

import ciranda
from ciranda.launch.cli.run import run_command

MODULES = (
    "import sys; import ciranda.launch.cli.commands\n"
    "print('torch' in sys.modules, 'rich' in sys.modules)"
)


def median_seconds(command, environment):
    times = []
    for _ in range(5):
        started = time.monotonic()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        times.append(time.monotonic() - started)
    return statistics.median(times)


@pytest.mark.timing
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_is_quick(launcher, arguments, record_property):
    command = [sys.executable, "-m", "ciranda", *arguments]
    seconds = median_seconds(command, launcher.environment)
    record_property(" ".join(arguments), f"{seconds:.3f} s")
    assert seconds < 1.5  # 0.3 s is promised; this machine may be busy


@pytest.mark.timing
def test_two_ranks_of_true_are_quick(launcher, record_property):
    command = [sys.executable, "-m", "ciranda", "run", "-np", "2", "true"]
    seconds = median_seconds(command, launcher.environment)
    record_property("run -np 2 true", f"{seconds:.3f} s")
    assert seconds < 2.0  # 0.4 s is promised; this machine may be busy


def test_help_lists_every_option_once_in_its_group():
    text = CliRunner().invoke(run_command, ["--help"]).output
    groups = re.findall(r"(?m)^(\S[^:\n]*):\n", text)
    assert groups[0] == "Ranks and hosts"
    assert groups[-3:] == ["Parameter servers", "Options of horovodrun", "Help"]
    listed = re.findall(r"(?m)^  (-\S+?)(?:,|\s|$)", text)
    owner = {
        name: option
        for option in run_command.params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
    }
    found = [owner.get(name) for name in listed if name != "-h"]
    assert None not in found
    assert len(found) == len(set(found)) == len(set(owner.values()))


def test_the_launcher_imports_nothing_heavy(launcher):
    found = subprocess.run(
        [sys.executable, "-c", MODULES], env=launcher.environment, capture_output=True, text=True
    )
    assert found.stdout.split() == ["False", "False"]


def complete(launcher, words):
    """What a shell is offered for the last word."""
    name = words.split()[0]
    entry = {"ciranda": "main", "horovodrun": "as_horovodrun"}[name]
    code = (
        "import sys; from ciranda.launch.cli import commands\n"
        f"try:\n    commands.{entry}()\n"
        "finally:\n    assert 'torch' not in sys.modules"
    )
    variables = {
        f"_{name.upper()}_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=launcher.environment | variables,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("ciranda ru", ["plain,run"]),
        ("ciranda run --hostf", ["plain,--hostfile"]),
        ("ciranda run --cpu-operations sh", ["plain,shm"]),
        ("ciranda run --log-dir lo", ["dir,lo"]),
        ("ciranda run -np 2 tra", ["file,tra"]),
        ("ciranda compare --stu", ["plain,--study"]),
        ("horovodrun --hostfile ho", ["file,ho"]),
    ],
)
def test_a_shell_completes_words(launcher, words, offered):
    assert complete(launcher, words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(launcher, shell):
    found = subprocess.run(
        [sys.executable, "-m", "ciranda"],
        env=launcher.environment | {"_CIRANDA_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
    )
    assert "_CIRANDA_COMPLETE=" + shell + "_complete" in found.stdout


def test_cirandarun_is_the_same_command(launcher):
    code = "from ciranda.launch.cli.commands import cirandarun; cirandarun()"
    command = [sys.executable, "-c", code, "-np", "1", "echo", "hello"]
    found = subprocess.run(command, env=launcher.environment, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "[0] hello\n")


def test_the_version_is_one_line(launcher):
    command = [sys.executable, "-m", "ciranda", "--version"]
    found = subprocess.run(command, env=launcher.environment, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, f"ciranda {ciranda.__version__}\n")


def test_a_script_gets_this_python_and_its_arguments(launcher):
    script = launcher.script("print(sys.executable, sys.argv[1:])")
    result = launcher.run("-np", "1", script, "--np", "3", "-x", "a b")
    assert result.stdout == f"[0] {sys.executable} ['--np', '3', '-x', 'a b']\n"


def test_a_module_gets_its_arguments(launcher):
    launcher.script("print(sys.argv[1:])", "a_module.py")
    for options in (["-np", "1"], ["-np", "1", "--"], ["--np=1", "-x", "A=1", "--no-color"]):
        result = launcher.run(*options, "-m", "a_module", "--verbose", "--np", "9")
        assert result.stdout == "[0] ['--verbose', '--np', '9']\n", result.stderr


def test_any_program_is_found_on_path_and_gets_its_arguments_unchanged(launcher):
    result = launcher.run("-np", "1", "--", "printf", "%s|", "$HOME", "a b", "*")
    assert result.stdout == "[0] $HOME|a b|*|\n"


@pytest.mark.parametrize("option", ["--check", "--check-build", "-cb"])
def test_the_backends_are_a_table_of_four(launcher, option):
    launcher.is_warm = option != "--check"  # one new interpreter finds the libraries by itself
    result = launcher.run(option)
    assert (result.returncode, result.stderr) == (0, "")
    head, *rows = result.stdout.splitlines()
    assert head.split()[:4] == ["backend", "built", "available", "version"]
    assert [row.split()[0] for row in rows] == ["shm", "ring", "gloo", "nccl"]
    for name, built, available, version, *last in (row.split() for row in rows):
        if name in ("shm", "ring"):
            assert (built, available, version) == ("yes", "yes", ciranda.__version__)
            assert os.path.exists(last[0])
        elif available == "yes":
            assert re.fullmatch(r"\d+(\.\d+)+", version) and os.path.exists(last[0]), name
        else:
            assert len(last) > 3, f"{name}: no sentence says what is missing"


def test_a_backend_can_be_chosen_exactly_if_the_build_knows_it():
    import torch  # noqa: F401 - its libraries, before ours

    from ciranda import _C

    known = {row["name"] for row in _C.backends()} - {"native"}
    choices = {
        word
        for option in run_command.params
        if option.name in ("cpu_operations", "gpu_operations")
        for word in option.type.choices
    }
    assert choices - {"auto", "shm", "ring"} == known


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], {}),
        (["--cpu-operations", "shm"], {"CIRANDA_CPU_OPERATIONS": "shm"}),
        (["--gloo"], {"CIRANDA_CPU_OPERATIONS": "gloo"}),
        (["--gpu-operations", "nccl"], {"CIRANDA_GPU_OPERATIONS": "nccl"}),
        (["--trusted-network"], {"CIRANDA_TRUSTED_NETWORK": "1"}),
    ],
)
def test_ranks_are_told_of_backends(launcher, options, told):
    result = launcher.run("-np", "1", *options, "--", "env")
    pairs = (line.removeprefix("[0] ").partition("=") for line in result.stdout.splitlines())
    found = {name: text for name, _, text in pairs if "_OPERATIONS" in name or "_TRUSTED_" in name}
    assert found == told


def test_default_is_one_rank_a_core(launcher):
    result = launcher.run("echo")
    cores = len(os.sched_getaffinity(0))
    assert 1 <= len(result.stdout.splitlines()) <= cores


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-np", "0", "true"], 2, "must be between 1 and 256, not 0"),
        (["-np", "-3", "true"], 2, "must be between 1 and 256, not -3"),
        (["-np", "100000", "true"], 2, "must be between 1 and 256, not 100000"),
        (["-np", "2"], 2, "no command given"),
        (["-m"], 2, "-m needs the name of a module"),
        (["no-such-program"], 127, "'no-such-program' was not found on PATH"),
        (["./no-such-program"], 127, "'./no-such-program' does not exist"),
        (["no_such_script.py"], 127, "the script 'no_such_script.py' was not found in "),
        (["./plain.txt"], 126, "not executable; try: chmod +x ./plain.txt"),
        (["plain.txt"], 127, "the file here is meant with ./plain.txt"),
        (["./folder"], 126, "is a folder, not a program"),
        (["./no_interpreter"], 126, "cannot start './no_interpreter': Exec format error"),
        (["--timeout", "0", "true"], 2, "--timeout must be more than 0 seconds, not 0"),
        (["--timeout", "nan", "true"], 2, "--timeout must be more than 0 seconds, not nan"),
        (["-np", "2", "--show-ranks", "0,2", "true"], 2, "there is no rank 2, only 0 to 1"),
        (["--show-ranks", "0-99999999999", "true"], 2, "there is no rank 99999999999"),
        (["--show-ranks", "all", "true"], 2, "expected ranks such as 0,3 or 0-3"),
        (["-H", "localhost:x", "true"], 2, "must be a number"),
        (["-np", "3", "-H", "localhost:2", "true"], 2, "more ranks than the 2 slots of -H"),
        (["-H", "localhost", "--hostfile", "plain.txt", "true"], 2, "give one of them"),
        (["--hostfile", "none", "true"], 2, "--hostfile none: No such file"),
        (["--hostfile", "bad.env", "true"], 2, "bad.env, line 1: 'A=1' is not the name of a host"),
        (["-np", "3", "-hostfile", "hosts", "true"], 2, "more ranks than the 2 slots of hosts"),
        (["-x", "1A=2", "true"], 2, "not a name of a variable"),
        (["-x", "RANK=2", "true"], 2, "RANK is set by the launcher"),
        (["--env-file", "none.env", "true"], 2, "--env-file none.env: No such file"),
        (["--env-file", "bad.env", "true"], 2, "bad.env, line 2: expected KEY=VALUE"),
        (["--log-dir", "plain.txt/x", "true"], 2, "cannot use the folder"),
        (["--gloo", "--cpu-operations", "shm", "true"], 2, "name two backends; give one of them"),
    ],
)
def test_wrong_use_costs_one_sentence(launcher, arguments, code, words):
    (launcher.folder / "plain.txt").write_text("text")
    (launcher.folder / "folder").mkdir()
    (launcher.folder / "bad.env").write_text("A=1\nsecret\n")
    (launcher.folder / "hosts").write_text("localhost slots=2\n")
    (launcher.folder / "no_interpreter").write_bytes(b"\x7fnot a program")
    (launcher.folder / "no_interpreter").chmod(0o755)
    result = launcher.run(*arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert not launcher.log_dirs()


def test_horovods_localhost_form_is_accepted(launcher):
    result = launcher.run("-H", "localhost:3", "echo")
    assert len(result.stdout.splitlines()) == 3


def test_dry_run_shows_the_plan_and_starts_nothing(launcher):
    script = launcher.script("open('started', 'w')")
    result = launcher.run("-np", "2", "--dry-run", "-x", "TOKEN=hunter2", script, "--lr", "0.1")
    assert result.returncode == 0
    assert "2 ranks on" in result.stdout and "nothing was started" in result.stdout
    assert f"{sys.executable} {script} --lr 0.1" in result.stdout
    assert "CIRANDA_RANK=1" in result.stdout and "WORLD_SIZE=2" in result.stdout
    assert "TOKEN" in result.stdout and "hunter2" not in result.stdout
    assert not (launcher.folder / "started").exists()
    assert not launcher.log_dirs()


def test_dry_run_shows_the_places_on_several_hosts(launcher):
    hosts = "# ours\nlocalhost slots=1\nme@node[1-2] slots=2\n"
    result = launcher.run("--hostfile", "-", "-np", "4", "--dry-run", "true", stdin=hosts)
    assert (result.returncode, result.stderr) == (0, "")
    head, _, names, *rows = result.stdout.splitlines()
    assert head == "4 ranks on 3 hosts; nothing was started"
    assert names.split()[:2] == ["rank", "host"]
    here = os.uname().nodename
    expected = [(here, "0 of 1"), ("me@node1", "0 of 2"), ("me@node1", "1 of 2")]
    for row, (host, place) in zip(rows, [*expected, ("me@node2", "0 of 1")], strict=False):
        assert f" {host} " in row and f" {place} " in row
    of_rank_2 = result.stdout.partition("set for rank 2:")[2].partition("set for rank 3:")[0]
    for text in (
        "LOCAL_RANK=1",
        "LOCAL_WORLD_SIZE=2",
        "NODE_RANK=1",
        "CIRANDA_CROSS_RANK=1",
        "HOROVOD_CROSS_SIZE=1",
    ):
        assert f"  {text}\n" in of_rank_2
    assert f"MASTER_ADDR={here}" in result.stdout
    assert "CIRANDA_RENDEZVOUS=<chosen by the first agent>" in result.stdout


def test_tls_is_wanted_by_every_rank(launcher):
    assert launcher.run("-np", "2", "--tls", "env").stdout.count("] CIRANDA_TLS=1\n") == 2
    assert "CIRANDA_TLS" not in launcher.run("-np", "2", "env").stdout


def test_several_names_of_this_host_are_one_host(launcher):
    result = launcher.run("-H", f"localhost:1,127.0.0.1,{os.uname().nodename}", "env")
    assert result.stdout.count("] LOCAL_WORLD_SIZE=3\n") == 3


def test_rank_0_reads_our_stdin_and_the_others_nothing(launcher):
    script = launcher.script("print(rank, repr(sys.stdin.read()))")
    result = launcher.run("-np", "2", script, stdin="words")
    assert sorted(result.stdout.splitlines()) == ["[0] 0 'words'", "[1] 1 ''"]


def test_logs_are_kept_with_log_dir_and_replace_older_ones(launcher):
    logs = launcher.folder / "logs"
    logs.mkdir()
    (logs / "rank-0.log").write_text("old\n" * 100)
    (logs / "rank-0.error.json").write_text("{}")
    script = launcher.script("print('out', rank)\nprint('err', rank, file=sys.stderr)")
    assert launcher.run("-np", "2", "--log-dir", "logs", script).returncode == 0
    assert sorted(path.name for path in logs.iterdir()) == ["rank-0.log", "rank-1.log"]
    assert sorted((logs / "rank-1.log").read_text().split("\n")) == ["", "err 1", "out 1"]
    assert not launcher.log_dirs()


def test_logs_are_removed_on_success_and_kept_on_failure(launcher):
    assert launcher.run("-np", "2", "true").returncode == 0
    assert not launcher.log_dirs()
    result = launcher.run("-np", "2", "false")
    (folder,) = launcher.log_dirs()
    assert str(folder / "rank-") in result.stderr


def test_verbose_says_pids_and_ends(launcher):
    result = launcher.run("-np", "1", "--verbose", "true")
    assert "ciranda: rank 0 is pid " in result.stderr
    assert "ciranda: rank 0 ended after " in result.stderr


def test_timeout_ends_the_job_with_a_block_and_124(launcher):
    started = time.monotonic()
    result = launcher.run("-np", "2", "--timeout", "0.5", "sleep", "60")
    assert time.monotonic() - started < 10
    assert result.returncode == 124
    assert "the job took too long" in result.stderr
    assert "not finished after 0.5 s (--timeout)" in result.stderr
    assert "ranks 0, 1: by the launcher" in result.stderr


def test_a_job_that_is_quicker_than_its_timeout_is_not_touched(launcher):
    for seconds in ("60", "1e15", "inf"):
        result = launcher.run("-np", "2", "--timeout", seconds, "true")
        assert (result.returncode, result.stderr) == (0, "")


def test_children_of_the_shell_that_became_the_launcher_are_left_alone(launcher):
    script = (
        f"sleep 30 & echo $! > neighbour; exec {sys.executable} -m ciranda run -np 1 -- sh -c "
        "'sleep 40 & echo'"
    )
    found = subprocess.run(
        ["sh", "-c", script],
        env={**launcher.environment, launcher.tag.partition("=")[0]: ""},
        cwd=launcher.folder,
        stdout=subprocess.DEVNULL,
    )
    assert found.returncode == 0
    neighbour = int((launcher.folder / "neighbour").read_text())
    os.kill(neighbour, 15)  # raises if it is gone


def test_an_option_of_nobody_is_called_so():
    found = CliRunner().invoke(run_command, ["--no-such-thing", "train.py"])
    assert found.exit_code == 2
    assert "No such option" in found.output
