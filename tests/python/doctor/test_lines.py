"""How lines are shown, and that the page of the doctor has every check and no other."""

from __future__ import annotations

import re
from pathlib import Path

from ciranda.doctor.host_checks import HOST_CHECKS
from ciranda.doctor.lines import CHECKS, PAGE, line, ok, summary, table, warn

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_has_every_check_and_no_other():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert re.findall(r'^\| <a id="(\w+)"></a>`\1`', page, re.M) == [each.name for each in CHECKS]


def test_every_check_of_a_host_is_in_the_list():
    names = [each.name for each in CHECKS]
    assert [name for name, _, _ in HOST_CHECKS] == [
        each for each in names if each in {name for name, _, _ in HOST_CHECKS}
    ]


def test_hosts_of_which_the_same_is_said_share_a_line():
    lines = [line("cores", f"node{index}", ok("8 of 8")) for index in range(3)]
    assert table(lines, 3) == ["", "machine", f"  ok    {'cores':<14} 8 of 8"]
    assert table(lines, 4)[2].endswith("node0, node1, node2: 8 of 8")


def test_what_mends_stands_under_its_line_once():
    lines = [line("load", f"node{index}", warn(f"load {index}", "Wait.")) for index in range(2)]
    text = table(lines, 2)
    assert text[2:] == [
        f"  warn  {'load':<14} node0: load 0",
        f"  {'':<20} node1: load 1",
        f"  {'':<20} -> Wait. (docs/doctor.md#load)",
    ]


def test_many_hosts_that_are_well_are_counted():
    lines = [line("cores", f"node{index}", ok(f"{index} cores")) for index in range(20)]
    assert table(lines, 20)[-1].strip() == "and 17 more that are well"


def test_the_summary_counts():
    lines = [line("cores", "", ok("2")), line("load", "", warn("9", "Wait."))]
    assert summary(lines) == "0 failed, 1 warned, 1 ok: a job can run, though not at its best"
