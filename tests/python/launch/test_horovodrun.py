"""An old command line of horovodrun goes on, or is told in one sentence why not."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

import ciranda
from ciranda.launch.cli.run import run_command
from ciranda.launch.horovod.horovodrun import ANSWERS, FLAGS, Fate

AS_HOROVODRUN = [
    sys.executable,
    "-c",
    "from ciranda.launch.cli.commands import as_horovodrun; as_horovodrun()",
]


def horovodrun(launcher, *arguments):
    return subprocess.run(
        [*AS_HOROVODRUN, *arguments],
        env=launcher.environment,
        cwd=launcher.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def variables(result):
    """What rank 0 has found, of ciranda's."""
    pairs = re.findall(r"^\[0\] (CIRANDA_\w+)=(.*)$", result.stdout, re.MULTILINE)
    return dict(pairs)


@pytest.mark.parametrize("option", sorted(ANSWERS))
def test_what_is_absent_is_answered(option):
    found = CliRunner().invoke(run_command, ["-np", "2", option, "1", "train.py"])
    assert found.exit_code == 2
    assert found.output.splitlines()[-1] == f"Error: {option}: {ANSWERS[option]}"


def test_what_means_nothing_here_is_said_and_passed_over(launcher):
    noted = [flag for flag in FLAGS if flag.fate is Fate.NOTED]
    given = [
        word
        for flag in noted
        for word in ([flag.names[-1]] if flag.value is None else [flag.names[-1], "2"])
    ]
    result = launcher.run("-np", "1", *given, "echo", "done")
    assert (result.returncode, result.stdout) == (0, "[0] done\n")
    expected = [f"ciranda run: {flag.names[-1]}: {flag.meaning}" for flag in noted]
    assert result.stderr.splitlines() == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--start-timeout", "77"], {"CIRANDA_START_TIMEOUT_SECONDS": "77"}),
        (["--gloo-timeout-seconds", "78"], {"CIRANDA_START_TIMEOUT_SECONDS": "78"}),
        (
            ["--gloo-timeout-seconds", "78", "--start-timeout", "77"],
            {"CIRANDA_START_TIMEOUT_SECONDS": "77"},
        ),
        (["--network-interfaces", "lo,eth0"], {"CIRANDA_NIC": "lo,eth0"}),
        (
            ["--network-interface", "lo", "--network-interface", "eth0", "--nic", "!docker0"],
            {"CIRANDA_NIC": "!docker0,lo,eth0"},
        ),
        (["--fusion-threshold-mb", "32"], {"CIRANDA_FUSION_THRESHOLD": str(32 << 20)}),
        (["--cache-capacity", "0"], {"CIRANDA_CACHE_CAPACITY": "0"}),
        (["--timeline-filename", "a b.json"], {"CIRANDA_TIMELINE": "a b.json"}),
        (
            ["--autotune", "--autotune-log-file", "a.log", "--autotune-warmup-samples", "4"],
            {
                "CIRANDA_AUTOTUNE": "1",
                "CIRANDA_AUTOTUNE_LOG": "a.log",
                "CIRANDA_AUTOTUNE_WARMUP_SAMPLES": "4",
            },
        ),
        (
            ["--timeline", "t.json", "--timeline-mark-cycles"],
            {"CIRANDA_TIMELINE": "t.json", "CIRANDA_TIMELINE_MARK_CYCLES": "1"},
        ),
        (["--no-stall-check"], {"CIRANDA_STALL_WARNING_SECONDS": "0"}),
        (
            [
                "--stall-check-warning-time-seconds",
                "5",
                "--stall-check-shutdown-time-seconds",
                "9",
            ],
            {"CIRANDA_STALL_WARNING_SECONDS": "5", "CIRANDA_STALL_SHUTDOWN_SECONDS": "9"},
        ),
    ],
)
def test_knobs_reach_the_ranks(launcher, options, told):
    launcher.environment["HOROVOD_FUSION_THRESHOLD"] = "1"  # the command line wins
    result = launcher.run("-np", "1", *options, "env")
    assert (result.returncode, result.stderr) == (0, "")
    plain = variables(launcher.run("-np", "1", "env"))
    assert {name: text for name, text in variables(result).items() if name not in plain} == told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cache-capacity", "-1"], "'--cache-capacity': -1 is not in the range 0<=x<=1048576"),
        (["--start-timeout", "soon"], "'soon' is not a valid integer range"),
        (["--ssh-identity-file", "no-key"], "--ssh-identity-file no-key: there is no such file"),
        (["--output-filename", "file/x"], "cannot write 'file/x/rank.0/stdout': Not a directory"),
        (["--log-level", "LOUD"], "'LOUD' is not one of"),
    ],
)
def test_a_bad_value_is_named(launcher, options, words):
    (launcher.folder / "file").touch()
    result = launcher.run("-np", "1", *options, "true")
    assert result.returncode == 2
    assert words in result.stderr.splitlines()[-1]


def test_ssh_is_told_of_port_and_key(launcher):
    """A stand-in for ssh writes down what it is called with."""
    programs = launcher.folder / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {launcher.folder}/called\nexit 1\n'
    )
    (programs / "ssh").chmod(0o755)
    (launcher.folder / "key").touch()
    launcher.environment["PATH"] = f"{programs}:{launcher.environment['PATH']}"
    launcher.run("-np", "1", "-H", "node7", "-p", "2222", "-i", "key", "true")
    called = (launcher.folder / "called").read_text().splitlines()
    assert called[3:9] == ["-p", "2222", "-i", "key", "--", "node7"]


def test_output_filename_writes_what_horovodrun_wrote(launcher):
    text = "print('out', rank)\nprint('err', rank, file=sys.stderr)"
    result = launcher.run("-np", "11", "--output-filename", "logs", launcher.script(text))
    assert result.returncode == 0
    logs = launcher.folder / "logs"
    assert [path.name for path in sorted(logs.iterdir())] == [f"rank.{n:02}" for n in range(11)]
    assert (logs / "rank.03" / "stdout").read_text() == "out 3\n"
    assert (logs / "rank.03" / "stderr").read_text() == "err 3\n"


def test_lines_have_a_time_where_that_is_asked(launcher):
    for option in ("--prefix-output-with-timestamp", "-prefix-timestamp"):
        result = launcher.run("-np", "1", option, "echo", "hello")
        assert re.fullmatch(r"\d{4}(-\d\d){2} \d\d:\d\d:\d\d \[0\] hello\n", result.stdout)


def test_a_low_log_level_is_verbose(launcher):
    assert "rank 0 is pid " in launcher.run("-np", "1", "--log-level", "DEBUG", "true").stderr
    assert launcher.run("-np", "1", "--log-level", "ERROR", "true").stderr == ""


def test_the_failed_command_line_is_repeated(launcher):
    options = ["-np", "1", "-x", "A=secret", "--tcp", "--cache-capacity", "5"]
    result = launcher.run(*options, "false")
    again = "run again  ciranda run -np 1 -x A=... --cache-capacity 5 --tcp false"
    assert again in result.stderr


KNOBS = """
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 3.5
  cache_capacity: 7
  hierarchical_allreduce: false
  colour: red
autotune:
  enabled: true
  warmup_samples: 4
timeline:
  filename: trace.json
stall_check:
  enabled: false
logging:
  with_timestamp:
other: 1
"""


def test_a_file_of_knobs_stands_behind_the_command_line(launcher):
    pytest.importorskip("yaml")
    (launcher.folder / "knobs.yaml").write_text(KNOBS)
    result = launcher.run("-np", "1", "--config-file", "knobs.yaml", "--cache-capacity", "8", "env")
    assert result.stderr.splitlines() == [
        "ciranda run: knobs.yaml: params.colour is not a knob of horovodrun and is ignored",
        "ciranda run: knobs.yaml: 'other' is not a section of knobs and is ignored",
        "ciranda run: --cycle-time-ms: there are no cycles, an operation starts at once",
    ]
    found = variables(result)
    assert found["CIRANDA_FUSION_THRESHOLD"] == str(32 << 20)
    assert found["CIRANDA_CACHE_CAPACITY"] == "8"
    assert found["CIRANDA_TIMELINE"] == "trace.json"
    assert found["CIRANDA_AUTOTUNE"] == "1"
    assert found["CIRANDA_AUTOTUNE_WARMUP_SAMPLES"] == "4"
    assert found["CIRANDA_STALL_WARNING_SECONDS"] == "0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params: {fusion_threshold_mb: many}", "k.yaml: params.fusion_threshold_mb: 'many' is"),
        ("params: {cache_capacity: -1}", "k.yaml: params.cache_capacity: -1 is not in the range"),
        ("params: {torus_allreduce: 3}", "params.torus_allreduce: expected true or false, not 3"),
        ("controller: mpi", f"k.yaml: controller: {ANSWERS['--mpi']}"),
        ("library_options: {thread_affinity: 0}", "k.yaml: library_options.thread_affinity: start"),
        ("- a\n- b", "k.yaml: expected sections of knobs"),
        ("params: {cache_capacity: [8]}", "params.cache_capacity: expected one value, not a list"),
        ("[" * 5000, "k.yaml: it is nested too deep for a file of knobs"),
        ("params:\n  a: b: c", "k.yaml, line 2: this is not YAML"),
    ],
)
def test_a_bad_file_of_knobs_costs_one_sentence(launcher, text, words):
    pytest.importorskip("yaml")
    (launcher.folder / "k.yaml").write_text(text)
    result = launcher.run("-np", "1", "--config-file", "k.yaml", "true")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: --config-file ") and words in last


def test_without_pyyaml_a_file_of_knobs_costs_one_sentence(launcher):
    (launcher.folder / "yaml.py").write_text("raise ImportError")
    launcher.environment["PYTHONPATH"] = f"{launcher.folder}:{launcher.environment['PYTHONPATH']}"
    result = launcher.run("-np", "1", "--config-file", "k.yaml", "true")
    assert result.stderr.splitlines()[-1] == (
        "Error: --config-file k.yaml: reading it needs PyYAML, which is not installed; pip "
        "install PyYAML, or give the options on the command line"
    )


def test_the_version_is_the_one_whose_api_this_is(launcher):
    result = horovodrun(launcher, "-v")
    assert result.stdout == f"0.28.1 (ciranda {ciranda.__version__})\n"
    assert launcher.run("--version").stdout == f"ciranda {ciranda.__version__}\n"


def test_gloo_of_horovodrun_is_its_controller(launcher):
    result = horovodrun(launcher, "--gloo", "-np", "1", "env")
    assert "CIRANDA_CPU_OPERATIONS" not in result.stdout
    assert result.stderr.startswith("horovodrun: --gloo: ciranda's own ways need nothing; ")
