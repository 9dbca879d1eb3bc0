"""python tests/python/torch/differential --seed 123 --mode auto --ranks 3 --shrink

Runs random programs (--seed 123, or --seed 0:100) or scripts (--script NAME, or all) on ranks, and
prints those that differ from plain torch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parents[1])]

import served_programs  # noqa: E402
from jury import Case, start_on_this_host, start_with_servers, verdicts  # noqa: E402
from programs import VERBS, Program, draw, shrink  # noqa: E402
from scripts import SCRIPTS  # noqa: E402

import ciranda  # noqa: E402

MODES: dict[str, Any] = {"auto": "auto", "host": "host", "False": False}
MODES |= {mode: mode for mode in served_programs.MODES}  # with parameter servers


def _judge(cases: list[Case], mode: Any, size: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        start = start_with_servers if mode in served_programs.MODES else start_on_this_host
        return verdicts(cases, mode, start(size), Path(folder))


def _case(program: Any) -> Case:
    kind = "served" if isinstance(program, served_programs.ServedProgram) else "program"
    return {kind: program.to_json()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", help="123, or 0:100")
    parser.add_argument("--script", nargs="*", help="of scripts.py; without a name all")
    parser.add_argument("--mode", default="auto", choices=list(MODES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--without", default="", help="verbs, with commas")
    options = parser.parse_args()
    mode, size = MODES[options.mode], options.ranks
    without = frozenset(options.without.split(",")) - {""}
    if without - VERBS.keys() - served_programs.VERBS.keys():
        parser.error(f"--without: no verbs {sorted(without - VERBS.keys())}")

    print(f"ciranda of {Path(ciranda.__file__).parent}")
    failed = 0
    if options.script is not None:
        names = options.script or [
            name for name, known in SCRIPTS.items() if mode in known.modes and size in known.sizes
        ]
        found = _judge([{"script": name} for name in names], mode, size)
        for name, verdict in zip(names, found, strict=True):
            failed += bool(verdict)
            print(f"{'FAIL' if verdict else 'ok':5}{name}  {verdict}")
    if options.seed is not None:
        first, _, last = options.seed.partition(":")
        seeds = range(int(first), int(last) if last else int(first) + 1)
        make: Any = served_programs.draw if mode in served_programs.MODES else draw
        programs = [make(seed, without) for seed in seeds]
        found = _judge([_case(program) for program in programs], mode, size)
        differing = [pair for pair in zip(programs, found, strict=True) if pair[1]]
        failed += len(differing)
        for pair in differing:
            program, verdict = _shrunk(*pair, mode, size) if options.shrink else pair
            print(f"{program.text(size, mode)}\n  => {verdict}\n", flush=True)
    print(f"{failed} differ")
    return 1 if failed else 0


def _shrunk(program: Program, verdict: str, mode: Any, size: int) -> tuple[Program, str]:
    last = verdict

    def fails(candidate: Program) -> bool:
        nonlocal last
        (verdict,) = _judge([_case(candidate)], mode, size)
        last = verdict or last
        return bool(verdict)

    return shrink(program, fails), last


if __name__ == "__main__":
    sys.exit(main())
