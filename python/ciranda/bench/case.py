"""What is measured: one collective of one size, dtype and reduction; and a list of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ciranda.launch.errors import LaunchError

OPS = ("allreduce", "allgather", "broadcast", "reducescatter", "alltoall")
REDUCING = ("allreduce", "reducescatter")
# A rank's larger buffer has a piece for each rank.
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
MAX_BYTES = 1 << 34  # 16 GiB a buffer
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Case:
    op: str
    count: int  # elements; where the buffer is in pieces, of one piece
    dtype: str
    redop: str

    def elements(self, ranks: int) -> int:
        """Of the larger of a rank's two buffers."""
        return self.count * (ranks if self.op in IN_PIECES else 1)

    def size(self, ranks: int) -> int:
        """Bytes of that buffer: nccl-tests' "size"."""
        return self.elements(ranks) * DTYPE_BYTES[self.dtype]

    def as_command(self) -> dict[str, Any]:
        return asdict(self)

    def as_copy(self, ranks: int) -> Case:
        """As many bytes for one process to copy, which verifies them like a broadcast's."""
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
    """`4`, `64K`, `64M`, `1G`, also `64MiB`: powers of 1024."""
    match = re.fullmatch(r"([0-9]{1,11})\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    value = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not 1 <= value <= MAX_BYTES:
        raise LaunchError(
            f"{option} must be a number of bytes, such as 4, 64K or 64M, not {text!r}"
        )
    return value


def parse_names(text: str, option: str, known: Sequence[str]) -> list[str]:
    """A list with commas between, each name once; `all` is all there are."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if names == ["all"]:
        return list(known)
    if not names:
        raise LaunchError(f"{option} names nothing; there are {', '.join(known)}")
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
    """From small to large within a collective; a size that has no room for an element a rank is
    made larger, and what then comes twice is left out."""
    cases = []
    for op in ops:
        for dtype in dtypes:
            for redop in redops if op in REDUCING else [NO_REDOP]:
                for wanted in byte_counts:
                    pieces = ranks if op in IN_PIECES else 1
                    count = max(1, wanted // (DTYPE_BYTES[dtype] * pieces))
                    cases.append(Case(op, count, dtype, redop))
    return list(dict.fromkeys(cases))
