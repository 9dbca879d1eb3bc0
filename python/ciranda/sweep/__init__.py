"""`ciranda sweep`: trainings side by side that search over their parameters.

A training script needs one function, which does nothing outside of a sweep:

    ciranda.sweep.report(epoch, accuracy)
"""

from __future__ import annotations

import json
import os
from typing import SupportsFloat

__all__ = ["REPORT_FILE", "report"]

REPORT_FILE = "CIRANDA_SWEEP_REPORT"  # variable with the path of a trial's reports


def report(step: int, value: SupportsFloat) -> None:
    """Tells the sweep the value of the trial after `step` steps or epochs.

    Any rank may call it; only rank 0 writes. `value`: a number, or a tensor of one element. The
    last value counts as the trial's value, earlier values serve early stopping.
    """
    path = os.environ.get(REPORT_FILE, "")
    if not path or os.environ.get("CIRANDA_RANK", "0") != "0":
        return
    line = json.dumps({"step": int(step), "value": float(value)}) + "\n"
    with open(path, "a", encoding="utf-8") as file:
        file.write(line)
