"""Draws bus bandwidth over size for --png, one panel for each collective.

Imports matplotlib only to draw.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from ciranda.bench.row import Row
from ciranda.launch.errors import LaunchError


def check_matplotlib() -> None:
    """Raises LaunchError without matplotlib; called before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LaunchError("--png needs matplotlib: pip install matplotlib")


def draw(path: str, rows: Sequence[Row], title: str) -> None:
    """Draws one line for each side, or several if it has several dtypes or reductions."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    ops = list(dict.fromkeys(row.op for row in rows))
    figure, all_axes = plt.subplots(
        1, len(ops), figsize=(1 + 5 * len(ops), 4.5), layout="constrained", squeeze=False
    )
    for axes, op in zip(all_axes[0], ops, strict=True):
        of_op = [row for row in rows if row.op == op]
        several = len({(row.dtype, row.redop) for row in of_op}) > 1
        for key in dict.fromkeys((row.side, row.dtype, row.redop) for row in of_op):
            line = [row for row in of_op if (row.side, row.dtype, row.redop) == key]
            sizes = [row.size for row in line]
            # The range from the fastest round to the slowest.
            low = [row.busbw_gbs * row.time_us / row.rounds_us.high for row in line]
            high = [row.busbw_gbs * row.time_us / row.rounds_us.low for row in line]
            label = " ".join(key) if several else key[0]
            style = "-" if line[0].own else "--"
            busbw = [row.busbw_gbs for row in line]
            (drawn,) = axes.plot(sizes, busbw, style, marker="o", markersize=3, label=label)
            axes.fill_between(sizes, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)
        axes.set(title=op, xlabel="size (B)", xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend()
    all_axes[0][0].set_ylabel("busbw (GB/s)")
    figure.suptitle(title, fontsize="small")
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise LaunchError(f"--png {path}: {error.strerror}") from error
    finally:
        plt.close(figure)
