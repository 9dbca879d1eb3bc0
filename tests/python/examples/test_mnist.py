"""The short example, as its first line says to start it, on a small data set."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import warm
from idx_files import write_small_data_set


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_the_short_example_learns(example_file: Path, tmp_path: Path, ranks: int) -> None:
    data = write_small_data_set(tmp_path, train=1600, test=203)
    launcher = ["-m", "ciranda", "run", "-np", str(ranks)] if ranks > 1 else []
    example = example_file.with_name("mnist.py")
    program = [*launcher, str(example), str(data)]
    result = warm.run(program, env=os.environ, cwd=tmp_path, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    said = re.findall(r"epoch (\d): (\d+\.\d\d) % of the test images are right", result.stdout)
    assert [epoch for epoch, _ in said] == ["1", "2", "3"]
    assert float(said[-1][1]) > 90


def test_the_short_example_stays_short(example_file: Path) -> None:
    assert len(example_file.with_name("mnist.py").read_text().splitlines()) <= 42
