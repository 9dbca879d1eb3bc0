"""`ciranda sweep` with real trials. What could break: too many at a time, a bad one that goes on, a
finished one that runs again, a process that stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from terminal import run_in_terminal

from ciranda.launch.plan.environment import count_cores
from ciranda.sweep.cli import sweep_command
from ciranda.sweep.settings import COMPLETE, SweepSettings, TrialResult
from ciranda.sweep.space import parse_space
from ciranda.sweep.sweep import run_sweep
from ciranda.sweep.table import best_table

GRID = ("--sampler", "grid", "--maximize", "accuracy")
WAIT_FOR_EVER = "while True:\n    time.sleep(1)\n"


def test_the_best_trial_is_named_with_its_command(sweeps) -> None:
    sweeps.script("report(0, 1); report(1, float(words[1]) * (2 if words[2] == 'b' else 1))")
    ended = sweeps.run(
        *(*GRID, "--param", "x=1..2", "--param", "y=a,b", "-np", "2", "--run", "--timeout 50"),
        *("--", "trial.py", "--x", "{x}", "{y}"),
    )
    assert ended.returncode == 0, ended.stderr
    assert "4 trials: 4 complete" in ended.stdout
    assert "ciranda run -np 2 --timeout 50 -- trial.py --x 2 b\n" in ended.stdout
    assert [list(row.values())[:5] for row in sweeps.results()] == [
        ["0", "1", "a", "1.0", "complete"],
        ["1", "1", "b", "2.0", "complete"],
        ["2", "2", "a", "2.0", "complete"],
        ["3", "2", "b", "4.0", "complete"],
    ]
    assert [row["steps"] for row in sweeps.results()] == ["2"] * 4
    logs = list(sweeps.folder.glob("sweep-results/trial-*/output.log"))
    assert [log.stat().st_mode & 0o111 for log in logs] == [0] * 4, "a log is no program"


def test_trials_side_by_side_are_never_more_than_told(sweeps) -> None:
    sweeps.script(
        "import pathlib\n"
        "here = pathlib.Path(f'running-{words[0]}')\n"
        "here.touch()\n"
        "def count(): return len(list(pathlib.Path().glob('running-*')))\n"
        "while words[0] in '01' and count() < 2 and not os.path.exists('counts'):\n"
        "    time.sleep(0.01)\n"
        "with open('counts', 'a') as file:\n"
        "    print(count(), os.environ['OMP_NUM_THREADS'], file=file)\n"
        "time.sleep(0.2)\n"
        "here.unlink()\n"
        "report(0, 1)\n"
    )
    ended = sweeps.run(*GRID, "--param", "n=0..4", "--parallel", "2", "--", "trial.py", "{n}")
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in sweeps.lines("counts")]
    assert len(lines) == 5
    assert max(int(count) for count, _ in lines) == 2
    assert {threads for _, threads in lines} == {str(max(1, count_cores() // 2))}


def test_trials_side_by_side_have_checkpoints_of_their_own(sweeps) -> None:
    sweeps.script(
        "import glob\n"
        "limit = time.monotonic() + 20\n"
        "while len(glob.glob('made/trial-*/owner')) < 2:\n"
        "    assert time.monotonic() < limit, 'the servers of two trials have no folder each'\n"
        "    time.sleep(0.05)\n"
        "report(0, 1)\n"
    )
    ended = sweeps.run(
        *(*GRID, "--param", "n=0,1", "--parallel", "2", "--run", "--ps 1 --checkpoint-dir made"),
        *("--", "trial.py", "{n}"),
    )
    assert ended.returncode == 0, ended.stderr
    assert "2 complete" in ended.stdout


def test_a_bad_trial_is_ended_early(sweeps) -> None:
    sweeps.script("report(0, float(words[0]))\nif words[0] == '0':\n    " + "time.sleep(600)\n")
    ended = sweeps.run(
        *(*GRID, "--prune", "median", "--parallel", "1", "--param", "x=5,6,7,8,9,0"),
        *("--", "trial.py", "{x}"),
    )
    assert ended.returncode == 0, ended.stderr
    assert "5 complete, 1 pruned" in ended.stdout
    last = sweeps.results()[-1]
    assert (last["x"], last["state"], last["value"]) == ("0", "pruned", "0.0")


def test_a_script_that_only_prints_needs_no_change(sweeps) -> None:
    sweeps.script("print('accuracy 10.5 %'); print('accuracy', words[0], '%')")
    ended = sweeps.run(
        *(*GRID, "--metric-regex", r"accuracy (\d+\.\d+)", "--param", "x=20.5,30.5"),
        *("--", "trial.py", "{x}"),
    )
    assert ended.returncode == 0, ended.stderr
    assert [(row["value"], row["steps"]) for row in sweeps.results()] == [
        ("20.5", "2"),
        ("30.5", "2"),
    ]


def test_a_failed_trial_is_shown_and_the_others_go_on(sweeps) -> None:
    sweeps.script(
        "if words[0] == 'bad':\n    sys.exit('the data is gone')\n"
        "if words[0] == 'good':\n    report(0, 1)\n"
    )
    ended = sweeps.run(*GRID, "--param", "x=bad,silent,good", "--", "trial.py", "{x}")
    assert ended.returncode == 0, ended.stderr
    assert "trial 0 failed" in ended.stdout
    assert "exit code 1 (x=bad)" in ended.stdout
    assert "the data is gone" in ended.stdout
    assert "no value was reported (x=silent)" in ended.stdout
    assert "1 complete, 2 failed" in ended.stdout


def test_a_sweep_of_which_every_trial_fails_has_failed(sweeps) -> None:
    sweeps.script("sys.exit(3)")
    ended = sweeps.run(*GRID, "--param", "x=1,2", "--", "trial.py", "{x}")
    assert ended.returncode == 1
    assert "ciranda sweep: of 2 trials none is complete" in ended.stderr


def test_a_killed_sweep_leaves_nothing_and_goes_on(sweeps) -> None:
    sweeps.script(
        "with open('ran', 'a') as file:\n    print(words[0], file=file)\n"
        "while words[0] == 'c' and not os.path.exists('go'):\n    time.sleep(0.05)\n"
        "report(0, 1)\n"
    )
    command = [*GRID, "--parallel", "1", "--storage", "journal.log", "--param", "x=a,b,c,d"]
    command += ["--", "trial.py", "{x}"]
    sweep = sweeps.start(*command)
    sweeps.wait_until(lambda: sweeps.lines("ran") == ["a", "b", "c"])
    sweep.kill()
    sweep.communicate()
    sweeps.wait_until(lambda: not sweeps.processes())
    (sweeps.folder / "go").touch()
    ended = sweeps.run(*command)
    assert ended.returncode == 0, ended.stderr
    assert sweeps.lines("ran") == ["a", "b", "c", "c", "d"]
    assert [(row["x"], row["state"]) for row in sweeps.results()] == [
        *(("a", "complete"), ("b", "complete"), ("c", "interrupted")),
        *(("c", "complete"), ("d", "complete")),
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_trials(sweeps, number: int) -> None:
    sweeps.script("open(f'started-{words[0]}', 'w').close()\n" + WAIT_FOR_EVER)
    sweep = sweeps.start(*GRID, "--param", "x=0..3", "--parallel", "2", "--", "trial.py", "{x}")
    sweeps.wait_until(lambda: len(list(sweeps.folder.glob("started-*"))) == 2)
    os.kill(sweep.pid, number)
    out, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 128 + number
    assert not sweeps.processes()
    assert "2 trials: 2 interrupted" in out
    kept = "interrupted; 0 of 4 trials have ended and are kept in sweep-results: the same command"
    assert err == f"ciranda sweep: {kept} runs the others\n"


def test_a_terminal_shows_trials_that_run(sweeps) -> None:
    sweeps.script("report(0, 7)\ntime.sleep(0.5)")
    command = [*sweeps.command, *GRID, "--param", "x=1,2", "--parallel", "1"]
    shown, code = run_in_terminal(
        [*command, "--", "trial.py", "{x}"], sweeps.folder, sweeps.environment, columns=100
    )
    assert code == 0
    assert "trial 1  x=2  step 0, accuracy 7" in shown
    assert "1 of 2; best accuracy 7, trial 0" in shown
    assert "\r\x1b[1A\x1b[J" in shown


def test_the_best_trials_fit_a_terminal() -> None:
    parameters = {f"parameter_{n}": 0.123456 for n in range(6)}
    trial = TrialResult(3, parameters, COMPLETE, 0.5, 1.0, 2)
    settings = SweepSettings(
        ["a"], parse_space([f"{n}=0..1" for n in parameters]), "accuracy", maximize=True
    )
    wide, narrow = best_table(settings, [trial]), best_table(settings, [trial], 60)
    head, _, row = wide
    assert len(row) > 100
    assert max(map(len, narrow)) <= 60
    assert set(f"{head} {row}".split()) <= set(" ".join(narrow).split())


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--param", "x=1,2", "--", "no.py", "{x}"], 127, "the script 'no.py' was not found"),
        (["--param", "x=1,2", "--run", "--pss 1", "--", "true", "{x}"], 2, "--run: No such option"),
        (["--param", "x=1,2", "--run", "-np 2", "--", "true", "{x}"], 2, "--run: -np is not for"),
        (["--param", "x=1,2", "--run", "-x A=b", "--", "true", "{x}"], 2, "--run: -x is not for"),
        (["--param", "x=1,2", "--run", "echo", "--", "true", "{x}"], 2, "--run takes options"),
        (["--param", "x=1,2", "-H", "a:1", "--", "true", "{x}"], 2, "-H: the trials of a sweep"),
        (["--param", "x=1,2", "--minimize", "b", "--", "true", "{x}"], 2, "both name the metric"),
        (["--param", "x=1,2", "--parallel", "0", "--", "true", "{x}"], 2, "--parallel must be"),
        (["--param", "x=1,2", "--metric-regex", "a", "--", "true", "{x}"], 2, "needs one group"),
        (["--param", "x=1,2", "--sampler", "tpe", "--", "true", "{x}"], 2, "--trials says how"),
        (["--param", "x=1,2", "--log", "csv:a", "--", "true", "{x}"], 2, "--log 'csv:a' is no"),
        (["--param", "x=1,2"], 2, "no command given"),
    ],
)
def test_a_mistake_is_found_before_any_trial(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(sweep_command, [*GRID, *arguments], prog_name="ciranda sweep")
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert ended.stderr.startswith("ciranda sweep: ")
    assert sentence in ended.stderr
    assert not (tmp_path / "sweep-results").exists()


def test_python_gets_the_trials(sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sweeps.folder)
    sweeps.script("report(0, words[0])")
    settings = SweepSettings(
        ["trial.py", "{x}"], parse_space(["x=3,4"]), "loss", maximize=False, sampler="grid"
    )
    handler = signal.getsignal(signal.SIGINT)
    result = run_sweep(settings)
    assert [(each.parameters, each.value) for each in result.trials] == [
        *(({"x": "3"}, 3.0), ({"x": "4"}, 4.0))
    ]
    assert result.best == result.trials[0]
    assert result.count(COMPLETE) == 2
    assert result.signal is None
    assert signal.getsignal(signal.SIGINT) is handler


def test_without_optuna_a_sentence_says_what_to_install(sweeps, tmp_path: Path) -> None:
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "optuna.py").write_text(
        "raise ModuleNotFoundError('no optuna', name='optuna')"
    )
    path = os.pathsep.join([str(tmp_path / "stub"), sweeps.environment["PYTHONPATH"]])
    ended = sweeps.run(
        *GRID, "--param", "x=1,2", "--", "true", "{x}", environment={"PYTHONPATH": path}
    )
    assert ended.returncode == 2
    assert "pip install optuna" in ended.stderr


def test_the_help_waits_for_no_library() -> None:
    code = (
        "import sys\nfrom ciranda.sweep.cli import sweep_command\n"
        "sweep_command.main(['--help'], standalone_mode=False)\n"
        "print(sorted({'optuna', 'torch', 'numpy'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.endswith("\n[]\n"), ended.stderr
