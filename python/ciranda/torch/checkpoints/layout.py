"""Where the bytes of a checkpoint lie: in one file that stock torch reads and many ranks write.

The file is a ZIP archive of stored (not compressed) records, as torch.save() makes it. The tensors
come first, at places that follow from their sizes alone, so that each rank knows where its bytes go
without a word from the others. What only rank 0 knows comes behind them. This module is pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

ROOT = "checkpoint"  # the folder in the archive
ALIGNMENT = 64  # of each record in the file, as torch.save() has it, so that it can be mapped

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END_64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR_64 = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")
_VERSION = 45  # of the ZIP format: with sizes of 64 bits, which each record has
_DATE = (1 << 5) | 1  # 1980-01-01: the same state gives the same bytes
_IN_64 = 0xFFFFFFFF
_PADDING_ID = 0x4246  # "FB", as in torch's own files


@dataclass(frozen=True)
class Record:
    """A file of the archive."""

    name: str  # within ROOT
    header_at: int
    data_at: int
    size: int

    @property
    def end(self) -> int:
        return self.data_at + self.size


@dataclass(frozen=True)
class Piece:
    """A part of a record that one rank writes."""

    record: int
    skip: int  # bytes of the record before the piece
    size: int


class Layout:
    """The places of tensors of `sizes` bytes. The first `own` of them are written by rank 0.

    A position counts the bytes of all tensors, one behind the other, without headers.
    """

    def __init__(self, sizes: Sequence[int], own: int = 0) -> None:
        self.records: list[Record] = []
        self.starts: list[int] = []  # positions
        self.total = 0
        at = 0
        for number, size in enumerate(sizes):
            record = _placed(f"data/{number}", at, size)
            self.records.append(record)
            self.starts.append(self.total)
            self.total += size
            at = record.end
        self.end = at  # what rank 0 knows begins here
        self._own = sum(sizes[:own])

    def shares(self, ranks: int) -> list[tuple[int, int]]:
        """Returns each rank's positions, from and to: equal shares, if rank 0's own part allows."""
        first = max(self._own, self.total // ranks) if ranks > 1 else self.total
        rest = self.total - first
        cuts = [first + rest * number // max(ranks - 1, 1) for number in range(ranks)]
        return list(zip([0, *cuts[:-1]], cuts, strict=True))

    def pieces(self, begin: int, end: int) -> list[Piece]:
        """Returns the parts of records between two positions."""
        found = []
        for number, (start, record) in enumerate(zip(self.starts, self.records, strict=True)):
            low, high = max(begin, start), min(end, start + record.size)
            if low < high:
                found.append(Piece(number, low - start, high - low))
        return found

    def crcs(self, written: Iterable[tuple[Piece, int]]) -> list[int]:
        """Returns the CRC-32 of each record from those of its pieces.

        Raises ValueError if pieces are missing or overlap.
        """
        crcs, known = [0] * len(self.records), [0] * len(self.records)
        for piece, crc in sorted(written, key=lambda each: (each[0].record, each[0].skip)):
            if piece.skip != known[piece.record]:
                raise ValueError(f"record {piece.record} has no byte {known[piece.record]}")
            crcs[piece.record] = crc32_of_both(crcs[piece.record], crc, piece.size)
            known[piece.record] += piece.size
        for number, record in enumerate(self.records):
            if known[number] != record.size:
                raise ValueError(f"record {number} has no byte {known[number]}")
        return crcs

    def headers(self, crcs: Sequence[int]) -> list[tuple[int, bytes]]:
        """Returns what precedes each record, and where it goes in the file."""
        return [
            (record.header_at, _header(record, crc))
            for record, crc in zip(self.records, crcs, strict=True)
        ]

    def tail(self, crcs: Sequence[int], known: Sequence[tuple[str, bytes, int]]) -> bytes:
        """Returns the rest of the file, from `end` on: records (name, bytes, CRC-32), directory."""
        tail, records, at = b"", list(self.records), self.end
        for name, content, crc in known:
            record = _placed(name, at, len(content))
            records.append(record)
            tail += _header(record, crc) + content
            at = record.end
        all_crcs = [*crcs, *(crc for _, _, crc in known)]
        entries = [_entry(each, crc) for each, crc in zip(records, all_crcs, strict=True)]
        return tail + b"".join(entries) + _ending(len(entries), sum(map(len, entries)), at)


def _placed(name: str, at: int, size: int) -> Record:
    shortest = at + _LOCAL.size + len(f"{ROOT}/{name}") + 20 + 4
    return Record(name, at, -(-shortest // ALIGNMENT) * ALIGNMENT, size)


def _header(record: Record, crc: int) -> bytes:
    name = f"{ROOT}/{record.name}".encode()
    length = record.data_at - record.header_at
    padding = length - _LOCAL.size - len(name) - 20 - 4
    extra = struct.pack("<HHQQ", 1, 16, record.size, record.size)
    extra += struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)
    fields = (0x04034B50, _VERSION, 0, 0, 0, _DATE, crc, _IN_64, _IN_64, len(name), len(extra))
    return _LOCAL.pack(*fields) + name + extra


def _entry(record: Record, crc: int) -> bytes:
    name = f"{ROOT}/{record.name}".encode()
    extra = struct.pack("<HHQQQ", 1, 24, record.size, record.size, record.header_at)
    version = (_VERSION, _VERSION)
    sizes = (_IN_64, _IN_64, len(name), len(extra), 0)
    fields = (0x02014B50, *version, 0, 0, 0, _DATE, crc, *sizes, 0, 0, 0, _IN_64)
    return _CENTRAL.pack(*fields) + name + extra


def _ending(count: int, size: int, at: int) -> bytes:
    end_64 = (0x06064B50, _END_64.size - 12, _VERSION, _VERSION, 0, 0, count, count, size, at)
    return (
        _END_64.pack(*end_64)
        + _LOCATOR_64.pack(0x07064B50, 0, at + size, 1)
        + _END.pack(0x06054B50, 0, 0, 0xFFFF, 0xFFFF, _IN_64, _IN_64, 0)
    )


# --- CRC-32 of two pieces ------------------------------------------------------------------------
# Polynomials over two values, as bits: the highest bit is the coefficient of x to the 0.


def crc32_of_both(first: int, second: int, second_size: int) -> int:
    """Returns the CRC-32 of two pieces, one behind the other, from that of each."""
    return _product(_power(8 * second_size), first) ^ second


def _product(a: int, b: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (0xEDB88320 if b & 1 else 0)
    return product


@cache
def _square(number: int) -> int:
    """Returns x to the power of 2 to the power of `number`."""
    return 1 << 30 if number == 0 else _product(_square(number - 1), _square(number - 1))


def _power(exponent: int) -> int:
    power, number = 1 << 31, 0
    while exponent:
        if exponent & 1:
            power = _product(_square(number), power)
        exponent, number = exponent >> 1, number + 1
    return power
