"""Writes one checkpoint in the background: this rank's bytes, and on rank 0 what makes it whole."""

from __future__ import annotations

import ctypes
import json
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from ciranda.torch.checkpoints.content import Content, copy_bytes, small_records
from ciranda.torch.checkpoints.folder import Bytes, Folder, name_of, to_delete
from ciranda.torch.checkpoints.layout import Layout, Piece
from ciranda.torch.checkpoints.reader import load
from ciranda.torch.checkpoints.state import FORMAT

_BLOCK = 1 << 20  # its CRC is taken while it is in the cache
_LOOK_S = (0.002, 0.1)  # between two looks for what other ranks have written


class HostBuffer:
    """Memory of the host for a rank's share, which is kept from one checkpoint to the next."""

    def __init__(self) -> None:
        self._tensor = torch.empty(0, dtype=torch.uint8)

    def fill(self, content: Content, layout: Layout, share: tuple[int, int]) -> memoryview:
        """Copies the share's bytes of the state; returns when they are there."""
        size = share[1] - share[0]
        devices = {each.tensor.device for each in content.entries if each.tensor.is_cuda}
        if self._tensor.numel() != size:
            self._tensor = torch.empty(0, dtype=torch.uint8)  # frees the old one first
            self._tensor = torch.empty(size, dtype=torch.uint8, pin_memory=bool(devices))
        at = 0
        for piece in layout.pieces(*share):
            target = self._tensor[at : at + piece.size]
            copy_bytes(content.entries[piece.record], piece.skip, target)
            at += piece.size
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        memory = (ctypes.c_char * size).from_address(self._tensor.data_ptr())
        return memoryview(memory).cast("B")


@dataclass
class Plan:
    """One checkpoint in the making, as a rank sees it."""

    step: int
    temporary: str  # the file's name until it is whole
    layout: Layout
    share: tuple[int, int]  # of this rank, as positions
    rank: int
    writers: list[int]  # ranks that write a part
    pickled: bytes  # of rank 0
    keep: int


@dataclass
class Save:
    """Runs a Plan in a thread of its own. Thread-safe."""

    plan: Plan
    folder: Folder
    bytes: memoryview
    part_done = property(lambda self: self._part_done.is_set())
    done = property(lambda self: self._done.is_set())
    problem: str = ""  # valid once it is done
    part_problem: str = ""  # valid once its part is done
    given_up: str = field(default="", init=False)  # why others' parts are not waited for

    def __post_init__(self) -> None:
        self._part_done, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ciranda-checkpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_for_part(self, seconds: float | None = None) -> bool:
        return self._part_done.wait(seconds)

    def wait(self, seconds: float | None = None) -> bool:
        return self._done.wait(seconds)

    def give_up(self, why: str) -> None:
        """A part will never come: rank 0 removes the file, unless it is whole by now."""
        self.given_up = why

    def _run(self) -> None:
        try:
            mine = self._write_part()
            self._part_done.set()
            if self.plan.rank == 0:
                self._make_whole(mine)
        except BaseException as error:  # the caller raises it
            self.problem = str(error) or type(error).__name__
            if not self._part_done.is_set():
                self.part_problem = self.problem
            if self.plan.rank == 0:
                self._clean()
        finally:
            self._part_done.set()
            self._done.set()

    def _write_part(self) -> list[tuple[Piece, int]]:
        crcs: list[tuple[Piece, int]] = []
        parts = self._parts(crcs)
        if self.folder.each_rank_writes:
            self.folder.write(self.plan.temporary, parts)
        else:
            for _ in parts:  # only its CRCs
                pass
        if self.plan.rank != 0 and self.plan.rank in self.plan.writers:
            content = [[piece.record, piece.skip, piece.size, crc] for piece, crc in crcs]
            self.folder.report(f"{self.plan.temporary}.part-{self.plan.rank}", content)
        return crcs

    def _parts(self, crcs: list[tuple[Piece, int]]) -> Iterator[tuple[int, Bytes]]:
        """Yields this rank's bytes and where they go. Notes the CRC-32 of each piece."""
        at = 0
        for piece in self.plan.layout.pieces(*self.plan.share):
            place = self.plan.layout.records[piece.record].data_at + piece.skip
            crc = 0
            for begin in range(0, piece.size, _BLOCK):
                block = self.bytes[at + begin : at + min(begin + _BLOCK, piece.size)]
                crc = zlib.crc32(block, crc)
                yield place + begin, block
            crcs.append((piece, crc))
            at += piece.size

    def _make_whole(self, written: list[tuple[Piece, int]]) -> None:
        plan = self.plan
        written = written + self._parts_of_others()
        crcs = plan.layout.crcs(written)
        described = {"format": FORMAT, "step": plan.step, "ranks": len(plan.writers)}
        known = [
            (name, content, zlib.crc32(content))
            for name, content in small_records(plan.pickled, json.dumps(described))
        ]
        rest: list[tuple[int, Bytes]] = [*plan.layout.headers(crcs)]
        if not self.folder.each_rank_writes:
            rest = sorted([*rest, *self._parts([])], key=lambda part: part[0])
        rest.append((plan.layout.end, plan.layout.tail(crcs, known)))
        self.folder.write(plan.temporary, rest)
        self._check(plan.temporary)
        final = name_of(plan.step)
        self.folder.complete(plan.temporary, final)
        for name in to_delete(self.folder.names(), final, plan.keep):
            self.folder.remove(name)
        self._clean()

    def _parts_of_others(self) -> list[tuple[Piece, int]]:
        prefix = f"{self.plan.temporary}.part-"
        wanted = {f"{prefix}{rank}" for rank in self.plan.writers if rank != 0}
        pause = _LOOK_S[0]
        while wanted:
            reports = self.folder.reports(prefix)
            if wanted <= set(reports):
                rows = [row for name in wanted for row in reports[name]]
                return [(Piece(*place), crc) for *place, crc in rows]
            if self.given_up:
                raise RuntimeError(self.given_up)
            time.sleep(pause)
            pause = min(pause * 1.5, _LOOK_S[1])
        return []

    def _check(self, name: str) -> None:
        """Raises unless torch reads the file's values. It maps the tensors, and reads none."""
        if self.folder.each_rank_writes:
            load(self.folder.local(name)[0])

    def _clean(self) -> None:
        """Removes what is not the checkpoint itself."""
        try:
            for name in self.folder.names():
                if name.startswith(self.plan.temporary):
                    self.folder.remove(name)
        except Exception as error:
            self.problem = self.problem or str(error)
