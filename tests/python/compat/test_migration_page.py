"""The page for Horovod's users says what is so: each row is held against the code."""

from __future__ import annotations

import operator
import re
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import ciranda.torch as cr
from ciranda.launch.cli.run import run_command
from ciranda.launch.horovod.horovodrun import ANSWERS, FLAGS, Fate

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import horovod_table  # noqa: E402
import make_migration_page  # noqa: E402

SYMBOLS = [name for rows in horovod_table.SYMBOLS.values() for row in rows for name in row.names]
NAMED_OPTIONS = [(name, flag) for flag in FLAGS for name in flag.names]
OURS_WITH_A_VALUE = {
    "num_proc",
    "hosts",
    "hostfile",
    "min_num_proc",
    "max_num_proc",
    "reset_limit",
    "elastic_timeout",
    "blacklist_cooldown_range",
    "host_discovery_script",
    "slots_per_host",
}
# What a value may be, where any number is not one.
VALUES = {
    "ssh_identity_file": __file__,
    "log_level": "WARNING",
    "host_discovery_script": "./discover",
}


def test_the_page_is_made_of_the_table():
    assert make_migration_page.PAGE.read_text(encoding="utf-8") == make_migration_page.page(), (
        "make it again: python tools/make_migration_page.py"
    )


@pytest.mark.parametrize("name", SYMBOLS)
def test_each_name_of_the_page_is_there(name):
    assert operator.attrgetter(name)(cr) is not None


def test_no_name_is_twice_in_the_table():
    assert len(set(SYMBOLS)) == len(SYMBOLS)


def test_the_optimizer_has_horovods_methods():
    cr.init()
    try:
        model = torch.nn.Linear(1, 1)
        optimizer = cr.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        assert all(callable(getattr(optimizer, name)) for name in horovod_table.OPTIMIZER_METHODS)
    finally:
        cr.shutdown()


@pytest.mark.parametrize(("name", "flag"), NAMED_OPTIONS, ids=[name for name, _ in NAMED_OPTIONS])
def test_an_option_does_what_its_row_says(name, flag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "discover").write_text("#!/bin/sh\necho localhost:2\n")
    (tmp_path / "discover").chmod(0o755)
    if flag.parameter == "config_file":
        pytest.importorskip("yaml")
        (tmp_path / "2").write_text("params: {cache_capacity: 3}")
    takes_value = flag.value is not None or flag.parameter in OURS_WITH_A_VALUE
    if flag.parameter == "hosts":
        value = "localhost:2"
    elif flag.parameter == "hostfile":
        (tmp_path / "hosts").write_text("localhost slots=2")
        value = "hosts"
    else:
        value = VALUES.get(flag.parameter, "2")
    given = [name, value] if takes_value or flag.fate is Fate.REFUSED else [name]
    if flag.parameter == "blacklist_cooldown_range":
        given += [value]
    if flag.parameter in ("reset_limit", "elastic_timeout", "blacklist_cooldown_range"):
        given += ["--min-np", "1"]
    if flag.parameter == "slots_per_host":
        given += ["--host-discovery-script", "./discover"]
    found = CliRunner().invoke(run_command, [*given, "--dry-run", "true"])
    assert (found.exit_code == 2) == (flag.fate is Fate.REFUSED), found.output
    if flag.fate is Fate.REFUSED:
        assert f"{name}: {ANSWERS[name]}" in found.output
        return
    assert found.exit_code == 0
    said = f"{flag.names[-1]}: {flag.meaning}" in found.stderr
    assert said == (flag.fate is Fate.NOTED)


@pytest.mark.parametrize("variable", horovod_table.VARIABLES, ids=lambda each: each.names[0])
def test_a_variable_is_read_exactly_if_the_page_says_so(variable):
    sources = (ROOT / "csrc" / "core" / "settings").glob("*.cc")
    read = set(re.findall(r'"(HOROVOD_\w+)"', "".join(path.read_text() for path in sources)))
    assert all((name in read) == variable.is_read for name in variable.names), read


def test_every_variable_that_is_read_has_a_row():
    listed = {name for variable in horovod_table.VARIABLES for name in variable.names}
    sources = (ROOT / "csrc" / "core" / "settings").glob("*.cc")
    read = set(re.findall(r'"(HOROVOD_\w+)"', "".join(path.read_text() for path in sources)))
    assert read <= listed
