"""Writes the chart of README.md, docs/first-chart.svg, from benchmarks/results/training.json.

SVG by hand, so that the same figures give the same bytes with every version of every library.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "docs" / "first-chart.svg"
FIGURES = ROOT / "benchmarks" / "results" / "training.json"

_MODELS = {
    "mlp": ("MLP, 0.67 M parameters", "batch 64"),
    "deep": ("404 small layers", "batch 32"),
    "small": ("small CNN", "batch 128"),
    "wide": ("MLP, 36.8 M parameters", "batch 4"),
}
_SIDES = {
    "one": ("one process", "#9aa5b1"),
    "ddp": ("torch DDP", "#e07a5f"),
    "ciranda": ("ciranda", "#2a6f97"),
}
_WIDTH, _HEIGHT = 760, 300
_LEFT, _TOP, _FLOOR = 20, 62, 244  # pixels
_HIGHEST = 3.0  # times one process
_BAR = 44


def chart() -> str:
    """Bars for each model: images/s of two ranks ÷ those of one process, medians of all rounds."""
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 24, "Images per second of two ranks on two cores, ÷ one process", "bold"),
    ]
    for index, (name, colour) in enumerate(_SIDES.values()):
        x = _LEFT + 130 * index
        parts.append(_box(x, 36, 12, 12, colour))
        parts.append(_text(x + 18, 47, name))
    for index, (model, lines) in enumerate(_MODELS.items()):
        parts += _bars(_LEFT + 185 * index, found[model], lines)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(x: float, found: dict[str, Any], lines: tuple[str, str]) -> list[str]:
    parts = []
    one = median(found["images_per_s"]["one"])
    for index, (side, (_, colour)) in enumerate(_SIDES.items()):
        ratio = median(found["images_per_s"][side]) / one
        height = (_FLOOR - _TOP) * ratio / _HIGHEST
        left = x + (_BAR + 6) * index
        parts.append(_box(left, _FLOOR - height, _BAR, height, colour))
        parts.append(_text(left + _BAR / 2, _FLOOR - height - 5, f"{ratio:.2f}", "middle"))
    return [*parts, _text(x, _FLOOR + 20, lines[0]), _text(x, _FLOOR + 38, lines[1])]


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def _text(x: float, y: float, text: str, style: str = "") -> str:
    looks = {"bold": ' font-weight="bold"', "middle": ' text-anchor="middle"'}.get(style, "")
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#222222"{looks}>{text}</text>'


if __name__ == "__main__":
    CHART.write_text(chart(), encoding="utf-8")
