"""A program is killed at any moment of its writing: breaks when a torn checkpoint exists, or when
the newest whole one is lost. benchmarks/test_checkpoints.py kills it 1,000 times."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import warm

from ciranda.torch.checkpoints.reader import newest_first, verify

PROGRAM = Path(__file__).parent / "killed_saver.py"


def whole(folder: Path) -> list[str]:
    return newest_first(os.listdir(folder)) if folder.is_dir() else []


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    folder, found = tmp_path / "run", 0
    for seed in range(3):
        arguments = [str(PROGRAM), str(folder), "100000"]
        program = warm.Process(arguments, dict(os.environ), tmp_path)
        deadline = time.monotonic() + 50
        before = whole(folder)
        while whole(folder) == before:
            assert program.poll() is None, program.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(random.Random(seed).uniform(0, 0.05))
        program.kill()
        program.wait()
        assert "torn" not in program.said()
        names = whole(folder)
        for name in names:
            verify(str(folder / name))
        step = int(names[0][5:-3])
        assert step > found and len(names) <= 3
        found = step
