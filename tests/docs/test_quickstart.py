"""docs/quickstart.md from top to bottom: its script, its commands, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from given import QUICKSTART
from pages import BLOCKS, Block

pytestmark = pytest.mark.slow
LIMIT_S = 100


def _pattern(shown: str) -> str:
    """Output as the page shows it: `…` stands for anything, on a line of its own for any lines."""
    lines = [
        r"(?s:.*?)" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\s*?\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)


def _run(command: str, folder: Path) -> str:
    """Both streams; a terminal shows them together as well."""
    environment = {
        name: text
        for name, text in os.environ.items()
        if not re.match("CIRANDA_|HOROVOD_|SLURM_|OMPI_|RANK|WORLD_SIZE|MASTER_", name)
    }
    environment |= {
        "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        "TMPDIR": str(folder),
    }
    return subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    ).stdout


def _blocks(language: str) -> list[Block]:
    return [each for each in BLOCKS if each.page == QUICKSTART and each.language == language]


@pytest.mark.parametrize("shown", _blocks("console"), ids=str)
def test_the_commands_print_what_the_page_shows(shown: Block, tmp_path: Path) -> None:
    (script,) = _blocks("python")
    (tmp_path / "train.py").write_text(script.text, encoding="utf-8")
    prompt, _, output = shown.text.partition("\n")
    printed = _run(prompt.removeprefix("$ "), tmp_path)
    assert re.search(_pattern(output), printed), f"{prompt}\n{printed}"
