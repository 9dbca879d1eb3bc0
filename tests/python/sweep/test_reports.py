"""What trials report. What could break: a value is lost, is read in halves, or counts twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ciranda.sweep import REPORT_FILE, report
from ciranda.sweep.reports import GrowingFile, Reports, match_lines, parse_report


def test_report_writes_a_line_for_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report"
    monkeypatch.setenv(REPORT_FILE, str(file))
    for rank in ("0", "1"):
        monkeypatch.setenv("CIRANDA_RANK", rank)
        report(3, 0.5)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"step": 3, "value": 0.5}
    ]


def test_report_does_nothing_outside_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPORT_FILE, raising=False)
    report(1, 0.5)


def test_a_line_is_read_when_it_has_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = GrowingFile(path)
    assert file.new_lines(is_over=False) == []
    with open(path, "ab", buffering=0) as writer:
        writer.write(b"one\r\ntw")
        assert file.new_lines(is_over=False) == ["one", ""]
        writer.write(b"o\nthree")
        assert file.new_lines(is_over=False) == ["two"]
    assert file.new_lines(is_over=True) == ["three"]
    assert file.new_lines(is_over=True) == []


@pytest.mark.parametrize(
    "line", ["", "{", "[1]", '{"step": 1}', '{"step": -1, "value": 1}', '{"step": 1, "value": "x"}']
)
def test_a_line_of_somebody_else_is_no_report(line: str) -> None:
    assert parse_report(line) is None


def test_a_step_that_is_told_again_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("".join(json.dumps({"step": s, "value": s / 2}) + "\n" for s in (0, 1, 1, 2)))
    reports = Reports(path, parse_report)
    assert reports.new(is_over=True) == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert reports.last == 1.0


def test_the_matches_of_a_regex_are_steps() -> None:
    parse = match_lines(r"accuracy (\S+) %")
    lines = ["epoch 1: accuracy 81.5 %", "accuracy n/a %", "loss 3", "accuracy 90 %"]
    assert [parse(line) for line in lines] == [(1, 81.5), None, None, (2, 90.0)]


@pytest.mark.parametrize(
    ("line", "why"),
    [("", "no value was reported"), ('{"step": 0, "value": NaN}', "its last value is nan")],
)
def test_a_trial_without_a_value_says_so(tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "report").write_text(line)
    reports = Reports(tmp_path / "report", parse_report)
    reports.new(is_over=True)
    assert reports.what_is_missing() == why
