"""The files of studies and systems, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ciranda.compare import comparison, figures, models, study, system
from ciranda.compare.setting import CHOICES, Setting
from ciranda.compare.study import Request

LINES_MAX = 60
_WITH_SETTING = (
    'number="x"\nwords=[]\ntitle=""\n[[tables]]\nname="t"\ntitle=""\nfigures=[]\n'
    'systems=["one"]\nsetting={%s}'
)


def _possible(_: object) -> str | None:
    return None


@pytest.mark.parametrize("mode", study.MODES)
@pytest.mark.parametrize("number", ["000", "001", "002", "003", "004"])
def test_each_study_is_a_file_that_can_be_planned(number: str, mode: str) -> None:
    found = study.load(study.find(number), Request(mode))
    for table in found.tables:
        systems = {name: system.load(name) for name in table.systems}
        rows = table.settings(systems)
        assert len(rows) >= len(table.systems)
        assert len({row.key() for row in rows}) == len(rows)
        assert set(table.figures) <= set(figures.FIGURES)
        assert not table.plot or table.plot in table.figures


def test_each_word_names_one_study() -> None:
    words = [
        word for path in study.paths().values() for word in study.load(path, Request("quick")).words
    ]
    assert len(set(words)) == len(words)
    assert study.find("vpn") == study.find("000")


@pytest.mark.parametrize("name", system.names())
def test_a_system_is_a_short_file(name: str) -> None:
    lines = (system.FOLDER / f"{name}.py").read_text().splitlines()
    assert len(lines) <= LINES_MAX
    assert system.load(name).title


def test_the_command_line_changes_the_grid() -> None:
    asked = Request("full", {"batch": [16], "ranks": [2]}, systems=["shm"], rounds=1)
    (table,) = study.load(study.find("002"), asked).tables
    rows = table.settings({"shm": system.load("shm")})
    assert {(row.batch, row.ranks, row.times) for row in rows} == {
        (16, 2, 1),
        (16, 2, 4),
        (16, 2, 8),
    }
    assert table.rounds == 1


def test_the_command_line_changes_what_a_mode_sets() -> None:
    asked = Request("quick", {"epoch_s": [0.0]})
    (table,) = study.load(study.find("002"), asked).tables
    rows = table.settings({name: system.load(name) for name in table.systems})
    assert {row.epoch_s for row in rows} == {0.0}


def test_each_model_has_its_name_among_the_settings() -> None:
    assert set(models.MODELS) == set(CHOICES["model"])


def test_a_row_between_hosts_is_compared_with_one_process_of_its_study() -> None:
    found = study.load(study.find("001"), Request("quick"))
    table = next(table for table in found.tables if table.name == "hosts")
    rows = table.settings({name: system.load(name) for name in table.systems})
    asked: list[Setting] = []
    run = {"ranks": [{"epochs": [{"images": 1.0, "seconds": 1.0}]}]}

    def other(setting: Setting) -> None:
        asked.append(setting)

    figures.FIGURES["scaling"].of(run, rows[-1], other)
    assert rows[-1].servers == 2 and asked == [row for row in rows if row.system == "one"]


def test_a_run_that_two_tables_share_is_planned_once() -> None:
    found = study.load(study.find("001"), Request("quick"))
    systems = {name: system.load(name) for table in found.tables for name in table.systems}
    planned = comparison.plan(found, systems, _possible)
    keys = [(each.setting.key(), each.number) for each in planned]
    assert len(set(keys)) == len(keys)


def test_rounds_alternate_between_systems() -> None:
    found = study.load(study.find("003"), Request("full", systems=["one", "shm"]))
    systems = {name: system.load(name) for name in ("one", "shm")}
    order = [each.setting.system for each in comparison.plan(found, systems, _possible)]
    assert order == ["one", "shm"] * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("number = ", "Invalid value"),
        ('number = "x"', "'tables' is missing"),
        (_WITH_SETTING % "colour=1", "there is no setting 'colour'"),
        (_WITH_SETTING % 'batch="many"', "batch must be int, not 'many'"),
        (_WITH_SETTING % "batch=1" + '\nplot="accuracy"', "table t: there is no 'accuracy'"),
        (_WITH_SETTING % "batch=0", "batch must be more than 0, not 0"),
        (_WITH_SETTING % "epoch_s=-1.0", "epoch_s must be 0 or more, not -1.0"),
        (_WITH_SETTING % 'schedule="cosine"', "no schedule 'cosine'; there are 'constant', 'lin"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        found = study.load(study.find(str(path)), Request("quick"))
        found.tables[0].settings({"one": system.load("one")})


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: study.find("flowers"), r"no study 'flowers'; there are 000 \(vpn"),
        (
            lambda: study.load(study.find("003"), Request("quick", tables=["x"])),
            "the study has train",
        ),
        (lambda: system.load("nobody"), "no system 'nobody'; there are averaging"),
    ],
)
def test_what_is_not_there_is_said_beside_what_is(ask: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ask()  # type: ignore[operator]
