"""A progress bar for all ranks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import Any

from ciranda import _C

__all__ = ["tqdm"]

_LOGGED_EVERY_S = 10.0  # if stderr is not a terminal


def tqdm(iterable: Iterable[Any] | None = None, batch_size: int = 1, **options: Any) -> Any:
    """Returns tqdm's bar over `iterable`, drawn on rank 0 alone, with the samples of all ranks.

    Each item counts as `batch_size` samples on each of the size() ranks: the bar shows rank 0's
    number of items times both, also in samples a second. It sends nothing, so it cannot wait for a
    rank. The number is exact if ranks step together with whole batches; otherwise it is an estimate
    from rank 0. `options` are tqdm's, such as desc, unit=" images", total. If stderr is not a
    terminal, rank 0 writes at most every 10 seconds. Raises ImportError if tqdm is not installed,
    and ValueError if `batch_size` is below 1.
    """
    try:
        from tqdm import tqdm as bar  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise ImportError(
            "progress.tqdm: tqdm is not installed; `pip install tqdm`, or iterate without a bar"
        ) from None
    if batch_size < 1:
        raise ValueError(f"progress.tqdm: batch_size must be at least 1, not {batch_size!r}")
    of_all_ranks = {"unit_scale": batch_size * _C.size(), "disable": _C.rank() != 0}
    return bar(iterable, **{**_for_the_console(), **of_all_ranks, **options})


def _for_the_console() -> dict[str, Any]:
    # Under `ciranda run` stderr is a pipe; COLUMNS means that a terminal is at its other end.
    if "COLUMNS" in os.environ:
        return {"ncols": shutil.get_terminal_size().columns - 1}
    return {} if sys.stderr.isatty() else {"mininterval": _LOGGED_EVERY_S}
