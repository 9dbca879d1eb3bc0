"""Test functions whose body runs on every rank, many of them in one start of the ranks.

    @on_ranks(2)
    def test_average():
        assert hvd.allreduce(torch.tensor([float(hvd.rank())])).item() == 0.5

Starting ranks costs seconds (torch's import), a check milliseconds. All functions of a module for
the same number of ranks share one start, after init(), in the order of the file; the first that
fails on any rank ends it. Functions must not depend on each other.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import traceback
from collections.abc import Callable
from typing import Any

import ranks
from backends import OURS
from ranks import report, run_ranks

_SCRIPT = "import rank_checks; rank_checks.run_module({path!r}, {size})"
_TIMEOUT_S = 100

_checks: dict[tuple[str, int], list[Callable[[], Any]]] = {}  # by file and number of ranks


def on_ranks(
    *sizes: int, one_elsewhere: bool = False
) -> Callable[[Callable[[], Any]], Callable[[], None]]:
    """Makes a test that passes when the function does on every rank of each size.

    one_elsewhere: a backend that is not ours runs on one of the sizes, its own.
    """

    def decorate(check: Callable[[], Any]) -> Callable[[], None]:
        path = check.__code__.co_filename
        for size in sizes:
            _checks.setdefault((path, size), []).append(check)

        def test() -> None:
            elsewhere = one_elsewhere and ranks.chosen is not OURS
            for size in (ranks.chosen.size,) if elsewhere else sizes:
                _require(path, size, check.__name__)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


@functools.cache
def _outcome(path: str, size: int, backend: str) -> list[dict[str, str]] | str:
    """For each rank what became of each check, "" for passed; a text if the ranks hung."""
    try:
        results = run_ranks(_SCRIPT.format(path=path, size=size), size, timeout=_TIMEOUT_S)
    except AssertionError as hung:
        return str(hung)
    outcomes = []
    for result in results:
        outcomes.append(result.value or {})
        if result.exit_code != 0:
            outcomes[-1]["?"] = f"exit code {result.exit_code}\n{result.stdout}{result.stderr}"
    return outcomes


def _require(path: str, size: int, name: str) -> None:
    outcomes = _outcome(path, size, ranks.chosen.name)
    assert not isinstance(outcomes, str), outcomes
    for rank, outcome in enumerate(outcomes):
        assert name in outcome, f"rank {rank} of {size} did not come so far: {outcome.get('?')}"
        assert not outcome[name], f"on rank {rank} of {size}:\n{outcome[name]}"


def run_module(path: str, size: int) -> None:
    """On a rank: every check of the file."""
    import torch

    import ciranda.torch as hvd

    spec = importlib.util.spec_from_file_location("checks_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    hvd.init()
    outcome: dict[str, str] = {}
    for check in _checks[path, size]:
        torch.manual_seed(0)
        try:
            hvd.barrier()
            check()
        except BaseException:
            outcome[check.__name__] = traceback.format_exc()
            raise
        else:
            outcome[check.__name__] = ""
        finally:
            report(outcome)
    hvd.barrier()
