"""Cases: one collective of one size, dtype and reduction each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ciranda.launch.errors import LaunchError

OPS = ("allreduce", "allgather", "broadcast", "reducescatter", "alltoall")
REDUCING = ("allreduce", "reducescatter")
# The larger buffer of a rank has one piece for each rank.
IN_PIECES = ("allgather", "reducescatter", "alltoall")
REDOPS = ("sum", "prod", "min", "max", "avg")
DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
NO_REDOP = "none"  # nccl-tests' word
MAX_BYTES = 1 << 34  # 16 GiB for each buffer
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Case:
    op: str
    count: int  # elements; of one piece if the buffer is in pieces
    dtype: str
    redop: str

    def elements(self, ranks: int) -> int:
        """Returns the elements of the larger of a rank's two buffers."""
        return self.count * (ranks if self.op in IN_PIECES else 1)

    def size(self, ranks: int) -> int:
        """Returns the bytes of that buffer, which nccl-tests calls "size"."""
        return self.elements(ranks) * DTYPE_BYTES[self.dtype]

    def as_command(self) -> dict[str, Any]:
        return asdict(self)

    def as_copy(self, ranks: int) -> Case:
        """Returns a case for one process, which copies as many bytes; verified like a broadcast."""
        return Case("broadcast", self.elements(ranks), self.dtype, NO_REDOP)

    @staticmethod
    def of_command(command: Mapping[str, Any]) -> Case:
        return Case(
            op=str(command["op"]),
            count=int(command["count"]),
            dtype=str(command["dtype"]),
            redop=str(command["redop"]),
        )


def parse_bytes(text: str, option: str) -> int:
    """Parses `4`, `64K`, `64M`, `1G`, also `64MiB`; the units are powers of 1024."""
    match = re.fullmatch(r"([0-9]{1,11})\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    value = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not 1 <= value <= MAX_BYTES:
        raise LaunchError(
            f"{option} must be a number of bytes, such as 4, 64K or 64M, not {text!r}"
        )
    return value


def parse_names(text: str, option: str, known: Sequence[str]) -> list[str]:
    """Parses a comma-separated list, each name once; `all` stands for all known names."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if names == ["all"]:
        return list(known)
    if not names:
        raise LaunchError(f"{option} is empty; choose from {', '.join(known)}")
    for name in names:
        if name not in known:
            raise LaunchError(f"{option}: there is no {name!r}; there are {', '.join(known)}")
    return names


def sizes(min_bytes: int, max_bytes: int, factor: int) -> Iterator[int]:
    size = min_bytes
    while size <= max_bytes:
        yield size
        size *= factor


def make_cases(
    ops: Sequence[str],
    dtypes: Sequence[str],
    redops: Sequence[str],
    byte_counts: Sequence[int],
    ranks: int,
) -> list[Case]:
    """Returns the cases, from small to large within a collective.

    A size that is too small for one element in each piece is rounded up. Duplicates are left out.
    """
    cases = []
    for op in ops:
        for dtype in dtypes:
            for redop in redops if op in REDUCING else [NO_REDOP]:
                for wanted in byte_counts:
                    pieces = ranks if op in IN_PIECES else 1
                    count = max(1, wanted // (DTYPE_BYTES[dtype] * pieces))
                    cases.append(Case(op, count, dtype, redop))
    return list(dict.fromkeys(cases))
