"""Figures and tables from results that are made here."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from ciranda.compare import machine, page, system
from ciranda.compare.results import Results
from ciranda.compare.setting import Setting
from ciranda.compare.study import Study, Table
from ciranda.compare.table import csv_text, rows_of, table_markdown

SYSTEMS = {name: system.load(name) for name in ("one", "shm", "horovod", "coordinator")}
FIGURES = [
    "first_images_per_s",
    "images_per_s",
    "scaling",
    "accuracy",
    "compute",
    "waiting",
    "joules",
]
TABLE = Table(
    "t", "Title", ["one", "shm"], FIGURES, {"epochs": 2}, {"ranks": [1, 2]}, plot="scaling"
)


def possible(_: Setting) -> str | None:
    return None


def no_horovod(setting: Setting) -> str | None:
    return "no Horovod here" if setting.system == "horovod" else None


def no_three(setting: Setting) -> str | None:
    return "needs more" if setting.ranks == 3 else None


def run_of(
    rates: list[float],
    *,
    ranks: int = 1,
    waiting_s: float | None = None,
    of: float | None = None,
    **more: Any,
) -> Any:
    epochs = [
        {"images": rate, "of": of or rate, "seconds": 1.0}
        | ({} if waiting_s is None else {"waiting_s": waiting_s, "communicating_s": 0.1})
        for rate in rates
    ]
    rank = {"epochs": epochs, "total_s": 2.0, "curve": [[1.0, 50.0], [2.0, 87.0]], "notes": []}
    facts = {"started_again": [], "command_s": 5.0, "busy_percent": 0.0, "joules": None}
    return {"ranks": [rank] * ranks, "servers": 0, "cores": 2, **facts, **more}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    found = Results(tmp_path / "out")
    for number, (one, two) in enumerate([(100.0, 90.0), (200.0, 150.0), (300.0, 270.0)]):
        found.add(Setting(), number, run_of([50.0, one]))
        both = Setting(system="shm", ranks=2)
        found.add(both, number, run_of([10.0, two], ranks=2, waiting_s=0.2))
    return found


def test_medians_have_their_spread_and_ratios_are_of_one_round(results: Results) -> None:
    text = table_markdown(TABLE, rows_of(TABLE, SYSTEMS, results, possible))
    assert (
        "| 1 | one process | 50 (50-50) | 200 (100-300) | 100 (100-100) | 87.0 (87.0-87.0)" in text
    )
    # 180, 300 and 540 images/s; 90, 75 and 90 % of twice one process in the same round.
    assert "| 2 | ciranda | 20 (20-20) | 300 (180-540) | 90 (75-90) | 87.0 (87.0-87.0) | 70" in text
    assert "not counted here" in text


def test_what_was_not_measured_says_why(results: Results) -> None:
    table = Table(
        "t", "", ["horovod", "shm"], ["images_per_s", "accuracy"], {"epochs": 2, "ranks": 2}
    )
    text = table_markdown(table, rows_of(table, SYSTEMS, results, no_horovod))
    assert "Without Horovod: no Horovod here." in text and "| Horovod" not in text
    some = Table("t", "", ["shm"], ["images_per_s", "accuracy"], {}, {"ranks": [2, 3]})
    text = table_markdown(some, rows_of(some, SYSTEMS, results, no_three))
    assert "| 3 | ciranda | needs more |  |" in text and "Without" not in text
    failing = Setting(system="shm", ranks=3)
    results.add(failing, 0, {"error": "Traceback\nValueError: so", "servers": 0, "cores": 2})
    table = Table("t", "", ["shm"], ["images_per_s", "accuracy"], {"ranks": 3})
    assert "failed: ValueError: so" in table_markdown(
        table, rows_of(table, SYSTEMS, results, possible)
    )


def test_a_large_grid_begins_with_its_one_figure(results: Results) -> None:
    table = Table(
        "t",
        "",
        ["one", "shm"],
        ["images_per_s", "accuracy"],
        {"epochs": 2},
        {"ranks": [1, 2], "batch": [64, 1, 2, 3]},
        plot="images_per_s",
    )
    for batch in (1, 2, 3):
        results.add(Setting(batch=batch), 0, run_of([1.0, float(batch)]))
        failed = {"error": "ValueError: so", "servers": 0, "cores": 2}
        results.add(Setting(system="shm", ranks=2, batch=batch), 0, failed)
    text = table_markdown(table, rows_of(table, SYSTEMS, results, possible))
    overview, _, rest = text.partition("All figures:")
    assert "| ranks | batch | one process | ciranda |" in overview
    assert "| 1 | 64 | 200 (100-300) |  |" in overview and "| 2 | 3 |  | failed |" in overview
    assert "| 2 | 3 | ciranda | failed: ValueError: so |  |" in rest


def test_nonsense_is_said_under_the_table(results: Results) -> None:
    for ranks, more in ((4, {}), (2, {"servers": 1}), (1, {"busy_percent": 40.0})):
        results.add(Setting(system="shm", ranks=ranks, batch=1), 0, run_of([1.0], **more))
    table = Table("t", "", ["shm"], ["images_per_s"], {"batch": 1}, {"ranks": [4, 2]})
    text = table_markdown(table, rows_of(table, SYSTEMS, results, possible))
    assert (
        "| 4 | ciranda [1] |" in text and "[1] 4 threads share 2 cores: this is no scaling." in text
    )
    assert "[2] 2 ranks and 1 server(s) share 2 cores." in text
    busy = "other programs or virtual machines kept its cores busy meanwhile"
    few = "its epochs are cut after a step or two, which is little to measure"
    assert machine.nonsense(Setting(batch=20), run_of([60.0, 40.0], of=100.0)) == [few]
    assert machine.nonsense(Setting(batch=20), run_of([60.0, 100.0], of=100.0)) == []
    crowded = Setting(ranks=9, network="lan")
    assert machine.nonsense(Setting(), run_of([], busy_percent=40.0)) == [busy]
    assert machine.nonsense(Setting(), run_of([])) == []
    assert machine.nonsense(crowded, run_of([], busy_percent=40.0, hosts="a,b")) == [busy]


def test_a_kill_costs_what_the_quiet_run_of_its_round_did_not_take(results: Results) -> None:
    quiet = Setting(system="coordinator", ranks=2)
    results.add(quiet, 0, run_of([1.0]))
    again = run_of([1.0], command_s=9.0, started_again=["rank 1"])
    results.add(quiet.but(killed="worker"), 0, again)
    table = Table(
        "t",
        "",
        ["coordinator"],
        ["lost_s", "started_again"],
        {"ranks": 2},
        {"killed": ["", "worker"]},
    )
    text = table_markdown(table, rows_of(table, SYSTEMS, results, possible))
    assert "| no | parameter servers, coordinator | – | 0 |" in text
    assert "| worker | parameter servers, coordinator | 4.0 | 1 |" in text


def test_a_run_is_found_again_and_a_torn_line_is_none(results: Results) -> None:
    path = results.folder / "runs.jsonl"
    path.write_text(path.read_text()[:-20])
    again = Results(results.folder)
    both = Setting(system="shm", ranks=2)
    assert again.has(Setting(), 2) and again.has(both, 1) and not again.has(both, 2)
    assert not again.has(Setting(seed=2), 0)
    again.add(both, 2, run_of([1.0, 2.0], ranks=2))
    assert Results(results.folder).has(both, 2)


def test_figures_of_another_machine_are_not_added_to(results: Results) -> None:
    here = {"cpu": "a", "cores": 2, "python": "3", "torch": "2", "ciranda": "0", "load_average": 0}
    assert results.on(here) == here
    assert results.on({**here, "load_average": 9}) == here
    with pytest.raises(ValueError, match="torch 2, and here it is 3: give another --out"):
        results.on({**here, "torch": "3"})


def test_csv_has_a_line_for_each_figure_of_each_round(results: Results) -> None:
    text = csv_text([(TABLE, rows_of(TABLE, SYSTEMS, results, possible))])
    lines = list(csv.DictReader(io.StringIO(text)))
    rates = [
        line["value"] for line in lines if line["figure"] == "images_per_s" and line["ranks"] == "2"
    ]
    assert rates == ["180.0", "300.0", "540.0"]


def test_a_page_escapes_what_it_is_told(results: Results) -> None:
    study = Study("x", [], "<b>", "a < b", [TABLE], [("<i>", "1 & 2")], "")
    page.write(study, SYSTEMS, results, possible, {"cpu": "<cpu>"})
    text = (results.folder / "study-x.html").read_text()
    assert "<h1>Study x: &lt;b&gt;</h1>" in text and "1 &amp; 2" in text and "&lt;cpu&gt;" in text
