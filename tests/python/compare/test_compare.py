"""The command: a made-up study with a made-up system, and every system of the package once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tagged import tagged_processes

from ciranda.compare import system
from ciranda.launch.cli import commands

# Systems, and what of the setting is changed for each; others are in the tests below.
BASE = {"model": "small-mlp", "ranks": 2, "epoch_s": 0.3, "test_images": 200}
QUICK: dict[str, dict[str, Any]] = {
    "ddp": {"batch": 512, "lr": 1e-2, "epoch_s": 1e-3},  # a step an epoch
    **{"shm": {}, "sandblaster": {}, "ring": {"network": "lan"}},
    "ps_async": {"network": "vpn", "servers": 2},
    "sweep": {"ranks": 1, "trials": 2, "parallel": 2, "epochs": 1},
}
REST: dict[str, dict[str, Any]] = {
    **{"averaging": {}, "mpi": {}, "ps_sync": {}, "gloo": {}, "downpour": {}},
    "ring16": {"network": "vpn"},
}
SPLIT = ("shm", "ring", "gloo", "ps_async", "ps_sync", "ring16", "downpour")
BROWSER = "chromium-headless-shell"
_OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]

# What a page shows, told to whoever reads its document.
_LOOK = """<script>onload = () => {
  const seen = [...document.querySelectorAll("figure svg")].map(svg => {
    const box = svg.getBoundingClientRect();
    return [box.width, box.height, svg.querySelectorAll("path").length];
  });
  document.body.dataset.seen = JSON.stringify(seen);
};</script></body>"""


def test_a_study_and_a_system_of_a_user_make_a_table(made_up: Path, compare: Any) -> None:
    arguments = ["--study", "study.toml", "--quick", "--out", "out"]
    first = compare(*arguments)
    assert first.returncode == 0, first.stderr + first.stdout
    assert "[6/6]" in first.stdout and " left" in first.stdout
    # One that fails has a row, and the others go on.
    assert "| 2 | fails | failed: OSError: so be it |" in first.stdout, first.stdout
    out = made_up / "out" / "study-made-up-quick"
    told = json.loads((out / "study-made-up.json").read_text())
    rows = {row["system"]: row["figures"] for row in told["tables"][0]["rows"]}
    measured = [rows["one process"], rows["sums"]]
    assert rows["sums"]["communication"] == [0.0, 0.0]
    assert all(rate > 0 for figures in measured for rate in figures["images_per_s"])
    assert all(10 < a <= 100 for figures in measured for a in figures["accuracy"])
    assert len(rows["sums"]["scaling"]) == 2
    names = {path.name for path in out.iterdir()}
    assert names >= {f"study-made-up{end}" for end in (".md", ".html", ".csv", "-only.png")}

    assert "[1/" not in compare(*arguments, "--show", "--rounds", "3").stdout
    second = compare(*arguments)
    assert second.returncode == 0 and "6 of 6 runs are there already" in second.stdout
    assert (out / "study-made-up.md").read_text() in second.stdout
    _look_at(out / "study-made-up.html", plots=2)


def _look_at(page: Path, plots: int) -> None:
    """All plots are drawn, and the browser has nothing to complain of."""
    browser = shutil.which(BROWSER) or shutil.which("chromium")
    if browser is None:
        pytest.skip(f"{BROWSER} is not installed (tools/setup.sh starters)")
    looked = page.with_name("looked.html")
    looked.write_text(page.read_text().replace("</body>", _LOOK))
    done = subprocess.run(
        [browser, *_OPTIONS, looked.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    _, found, rest = done.stdout.partition('data-seen="')
    assert found, done.stdout[-500:] + done.stderr
    boxes = json.loads(rest.partition('"')[0])
    assert len(boxes) == plots
    assert all(width > 300 and height > 100 and paths > 10 for width, height, paths in boxes)
    assert "CONSOLE" not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "rows", [QUICK, pytest.param(REST, marks=pytest.mark.soak)], ids=["most", "the rest"]
)
def test_every_system_trains(tmp_path: Path, compare: Any, rows: dict[str, Any]) -> None:
    text = 'number = "all"\nwords = []\ntitle = ""\n'
    for number, (name, changed) in enumerate(rows.items()):
        told = ", ".join(f"{key} = {json.dumps(each)}" for key, each in {**BASE, **changed}.items())
        text += f"""
[[tables]]
name = "{number}"
title = ""
systems = ["{name}"]
figures = ["images_per_s", "accuracy", "compute", "communication", "waiting"]
setting = {{ {told} }}
rounds = 1
"""
    (tmp_path / "all.toml").write_text(text)
    done = compare("--study", "all.toml", "--full")
    assert done.returncode == 0, done.stderr + done.stdout
    told = (tmp_path / "ciranda-compare/study-all-full/study-all.json").read_text()
    tables = json.loads(told)["tables"]
    found = {name: table["rows"][0] for name, table in zip(rows, tables, strict=True)}
    for name, row in found.items():
        assert not row["failed"], f"{name}: {row['failed']}\n{done.stdout}"
        assert row["figures"]["accuracy"][0] > 15, row
        if name in SPLIT:
            parts = [row["figures"][part][0] for part in ("compute", "communication", "waiting")]
            assert sum(parts) == pytest.approx(100)
        if name in ("ddp", "averaging", "mpi"):
            assert row["figures"]["communication"][0] > 0


def _study(number: str, systems: list[str], figures: list[str], setting: str) -> str:
    """Of one table and one round."""
    return f"""
number = "{number}"
words = []
title = ""
[[tables]]
name = "t"
title = ""
systems = {json.dumps(systems)}
figures = {json.dumps(figures)}
setting = {{ {setting} }}
rounds = 1
"""


@pytest.mark.slow
def test_a_worker_that_is_killed_comes_back_and_the_row_says_so(
    tmp_path: Path, compare: Any
) -> None:
    (tmp_path / "killed.toml").write_text(
        _study(
            "killed",
            ["coordinator"],
            ["command_s", "lost_s", "started_again", "accuracy"],
            # It is killed 1 s after the first epoch, which takes about as long.
            'model = "small-mlp", epochs = 6, ranks = 2, killed = "worker"',
        )
    )
    done = compare("--study", "killed.toml", "--full")
    told = json.loads(
        (tmp_path / "ciranda-compare/study-killed-full/study-killed.json").read_text()
    )
    (row,) = told["tables"][0]["rows"]
    assert row["figures"]["started_again"] == [1.0], done.stdout + str(row)
    assert row["figures"]["accuracy"][0] > 60


@pytest.mark.slow
def test_given_hosts_are_those_between_which_it_runs(tmp_path: Path, make_network: Any) -> None:
    first, _ = make_network(2, ssh=True).hosts
    (tmp_path / "study.toml").write_text(
        _study(
            "given",
            ["shm", "ddp"],
            ["images_per_s", "accuracy"],
            'model = "small-mlp", ranks = 2, network = "lan", epoch_s = 0.3, test_images = 200',
        )
    )
    command = [sys.executable, "-m", "ciranda", "compare", "--study", "study.toml"]
    done = first.run([*command, "--hosts", "node0,node1"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = tmp_path.glob("ciranda-compare/study-given-*-hosts/study-given.json")
    rows = json.loads(found.read_text())["tables"][0]["rows"]
    assert [row["failed"] for row in rows] == ["", ""], done.stdout
    assert all(row["figures"]["accuracy"][0] > 15 for row in rows)
    # Nobody has said that these are namespaces.
    assert not [note for row in rows for note in row["notes"] if "namespaces" in note]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_leaves_nothing_and_says_what_is_kept(
    made_up: Path, number: int
) -> None:
    tag = f"CIRANDA_TEST_TAG={made_up}"
    name, value = tag.split("=")
    study = made_up / "study.toml"
    study.write_text(study.read_text().replace("epoch_s = 0.2", "epoch_s = 60.0"))
    process = subprocess.Popen(
        [sys.executable, "-m", "ciranda", "compare", "--study", "study.toml", "--quick"],
        cwd=made_up,
        env={**os.environ, name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_as_on_a_terminal,  # noqa: PLW1509 - pytest has one thread
    )
    _wait_until(lambda: any(map(_trains, tagged_processes(tag))))
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    folder = Path("ciranda-compare/study-made-up-quick")
    assert said == (
        f"ciranda compare: interrupted; 0 of 6 runs are kept in {folder}: the same command "
        "measures the others, and with --show it writes the tables of these\n"
    )
    _wait_until(lambda: not tagged_processes(tag))


def test_an_interrupt_before_the_first_run_is_one_sentence(
    made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(system, "load", interrupted)
    monkeypatch.chdir(made_up)
    done = CliRunner().invoke(commands.ciranda, ["compare", "--study", "study.toml"])
    assert (done.exit_code, done.stderr) == (130, "ciranda: interrupted\n")


def _as_on_a_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell's & starts ignores Ctrl-C


def _trains(pid: int) -> bool:
    try:
        return "ciranda.compare.worker" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has just ended
        return False


def _wait_until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_wrong_options_are_one_sentence(tmp_path: Path, compare: Any) -> None:
    for arguments, said in (
        (["--study", "005"], "there is no study '005'"),
        (["--study", "003", "--systems", "x"], "there is no system 'x'"),
        (["--study", "003", "--batch", "x"], "is not a list like 64,128"),
    ):
        done = compare(*arguments)
        assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr


def test_a_system_that_is_added_is_trained_by_a_test() -> None:
    assert set(system.names()) - {*QUICK, *REST, "one", "coordinator"} == {
        *("horovod", "dataparallel", "nccl")
    }
