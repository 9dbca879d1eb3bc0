"""On a rank: plays its part of each program that the test sends, and compares with the model."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ciranda.torch as hvd

sys.path.insert(0, str(Path(__file__).resolve().parent))
from expected import Op, Refused, Result, as_called, expected, inputs, splits_of

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6}  # of Adasum, all else is exact
SLOW_S = 0.003  # how much later than the others a rank begins


class Difference(Exception):
    """From the model; the text says what."""


def tensor_of(result: Result) -> torch.Tensor:
    dtype, values = result
    return torch.from_numpy(np.array(values)).to(getattr(torch, dtype))


def short(tensor: torch.Tensor) -> str:
    values = str(tensor.flatten()[:8].tolist())
    return f"{tensor.dtype}{list(tensor.shape)} {values}{' ...' if tensor.numel() > 8 else ''}"


def require_same(what: str, found: torch.Tensor, model: torch.Tensor, adasum: bool) -> None:
    same = (found.dtype, found.shape) == (model.dtype, model.shape)
    if same and adasum:
        tolerance = TOLERANCES.get(found.dtype, torch.finfo(found.dtype).eps)
        same = torch.allclose(found.double(), model.double(), rtol=tolerance, atol=tolerance)
    elif same:
        widest = torch.complex128  # torch compares no float8
        same = torch.equal(found.to(widest), model.to(widest))
    if not same:
        raise Difference(f"{what}: expected {short(model)}, got {short(found)}")


def require_refused(what: str, refused: Refused, run: Callable[[], Any]) -> None:
    try:
        got = run()
    except Exception as error:
        names = {kind.__name__ for kind in type(error).__mro__}
        if refused.error in names and refused.text in str(error):
            return
        raise Difference(
            f"{what}: expected {refused}, got {type(error).__name__}: {error}"
        ) from error
    raise Difference(f"{what}: expected {refused}, got {got}")


class Call:
    """One operation on this rank."""

    def __init__(self, what: str, op: Op, rank: int, members: Any, absent: list[int]) -> None:
        self.what = f"{what} {op['kind']}"
        self._op, self._rank, self._members, self._absent = op, rank, members, absent
        self._called = as_called(op, rank)
        barrier = op["kind"] == "barrier"
        self._given = [] if barrier else [tensor_of(own) for own in inputs(self._called, rank)]
        self._before = [tensor.clone() for tensor in self._given]
        self._handle: Any = None

    def _run(self, form: str) -> Any:
        op, kind = self._called, self._called["kind"]
        if kind == "barrier":
            return hvd.barrier(process_set=self._members)
        if kind == "message":
            sender, receiver = op["members"]
            (tensor,) = self._given
            if self._rank == sender:
                return getattr(hvd, f"send{form}")(tensor, receiver, op["name"])
            return getattr(hvd, f"recv{form}")(tensor, sender, op["name"])
        given: dict[str, Any] = {"name": op["name"], "process_set": self._members}
        if "op" in op:
            given |= {"op": getattr(hvd, op["op"])}
            given |= {f"{when}_factor": op[when] for when in ("prescale", "postscale")}
        if kind in ("broadcast", "gather", "scatter", "reduce"):
            given["root_rank"] = op["root"]
        if kind in ("alltoall", "scatter"):
            given["splits"] = splits_of(op, self._rank)
        name = f"{'grouped_' * op['grouped']}{kind}{form}{'_' * op['in place']}"
        return getattr(hvd, name)(self._given if op["grouped"] else self._given[0], **given)

    def run(self) -> None:
        """Blocking."""
        self._judge(lambda: self._run(""), False)

    def submit(self) -> None:
        self._handle = self._run("_async")

    def finish(self) -> None:
        hvd.poll(self._handle)
        self._judge(lambda: hvd.synchronize(self._handle), True)

    def _judge(self, run: Callable[[], Any], with_splits: bool) -> None:
        try:
            model = expected(self._op, self._rank, self._absent)
        except Refused as refused:
            require_refused(self.what, refused, run)
            return
        outputs = run()
        if self._op["kind"] == "alltoall" and self._op["splits"] is None and not with_splits:
            model = model[:1]  # the output alone
        if isinstance(outputs, torch.Tensor):
            outputs = [outputs]
        outputs = [] if outputs is None else list(outputs)
        if len(outputs) != len(model):
            raise Difference(f"{self.what}: expected {len(model)} outputs, got {len(outputs)}")
        for found, wanted in zip(outputs, model, strict=True):
            adasum = self._op.get("op") == "Adasum"
            require_same(self.what, found, tensor_of(wanted), adasum)
        self._look_at_the_inputs(outputs)

    def _look_at_the_inputs(self, outputs: list[torch.Tensor]) -> None:
        """Written where the operation is in place, and nowhere else."""
        received = self._op["kind"] == "message" and self._rank == self._op["members"][1]
        if self._op.get("in place") or received:
            for given, found in zip(self._given, outputs, strict=True):
                if found is not given:
                    raise Difference(f"{self.what}: in place, but gives another tensor")
            return
        for given, before in zip(self._given, self._before, strict=True):
            require_same(f"{self.what}: its input", given, before, False)


class Player:
    """Plays programs one after the other; keeps the sets of the one that it plays."""

    def __init__(self) -> None:
        self.rank, self.size = hvd.rank(), hvd.size()
        self._sets: dict[int, Any] = {}
        self._joined: list[int] = []

    def play(self, program: list[dict[str, Any]]) -> list[int]:
        """What its joins gave."""
        self._sets, self._joined = {0: hvd.global_process_set}, []
        for number, action in enumerate(program):
            if action.get("slow") == self.rank:
                time.sleep(SLOW_S)
            getattr(self, "_" + action["do"].replace(" ", "_"))(f"action {number},", action)
        return self._joined

    def _of(self, what: str, op: Op, absent: list[int]) -> list[Call]:
        """None or one: this rank's part."""
        if self.rank not in op["members"]:
            return []
        return [Call(what, op, self.rank, self._sets[op["key"]], absent)]

    def _call(self, what: str, action: dict[str, Any]) -> None:
        for call in self._of(what, action["op"], []):
            call.run()

    def _batch(self, what: str, action: dict[str, Any]) -> None:
        calls = [self._of(f"{what} op {i},", op, []) for i, op in enumerate(action["ops"])]
        between = action["between"]
        others = self._of(f"{what} between,", between, []) if between else []
        if self.rank == action["late"]:
            for call in others:
                call.run()
        for index in action["submit"][self.rank]:
            for call in calls[index]:
                call.submit()
        if self.rank != action["late"]:
            for call in others:
                call.run()
        for index in action["finish"][self.rank]:
            for call in calls[index]:
                call.finish()

    def _join(self, what: str, action: dict[str, Any]) -> None:
        batches = action["batches"]
        for index, op in enumerate(action["ops"][: batches[self.rank]]):
            absent = [rank for rank in op["members"] if batches[rank] <= index]
            for call in self._of(f"{what} op {index},", op, absent):
                call.run()
        handle = self._ones_of("pending", self._sets[0]) if action["pending"] else None
        self._joined.append(hvd.join())
        if handle is not None:  # who joined had given its part
            self._require_ones(what, handle, self._sets[0])

    def _add(self, what: str, action: dict[str, Any]) -> None:
        if action["refused"]:
            refused = Refused("ValueError", "unique")
            require_refused(what, refused, lambda: hvd.add_process_set(action["ranks"]))
        else:
            self._sets[action["key"]] = hvd.add_process_set(action["ranks"])

    def _add_differently(self, what: str, action: dict[str, Any]) -> None:
        refused = Refused("Exception", "rank 0 ")
        require_refused(what, refused, lambda: hvd.add_process_set([self.rank]))

    def _remove(self, what: str, action: dict[str, Any]) -> None:
        removed = hvd.remove_process_set(self._sets[action["key"]])
        if removed != (action["key"] != 0):
            raise Difference(f"{what}: remove_process_set() gave {removed}")

    def _ones_of(self, name: str, members: Any) -> Any:
        return hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum, process_set=members)

    def _require_ones(self, what: str, handle: Any, members: Any) -> None:
        model = torch.full((2,), float(members.size()))
        require_same(what, hvd.synchronize(handle), model, False)

    def _remove_pending(self, what: str, action: dict[str, Any]) -> None:
        members = self._sets[action["key"]]
        handle = self._ones_of("late", members) if self.rank == action["first"] else None
        refused = Refused("Exception", "late")
        require_refused(what, refused, lambda: hvd.remove_process_set(members))
        if members.included():
            handle = self._ones_of("late", members) if handle is None else handle
            self._require_ones(what, handle, members)

    def _duplicate(self, what: str, action: dict[str, Any]) -> None:
        everyone, handle = self._sets[0], None
        if self.rank == action["first"]:
            handle = self._ones_of("twice", everyone)
            refused = Refused("DuplicateNameError", "twice")
            require_refused(what, refused, lambda: self._ones_of("twice", everyone))
        hvd.barrier()
        handle = self._ones_of("twice", everyone) if handle is None else handle
        self._require_ones(what, handle, everyone)

    def _refused(self, what: str, action: dict[str, Any]) -> None:
        """This rank alone is refused, before anything is sent."""
        members, ones = self._sets[action["key"]], torch.ones(4)
        runs: dict[str, Callable[[], Any]] = {
            "rows of 0-dim": lambda: hvd.allgather(torch.tensor(1.0), process_set=members),
            "root above": lambda: hvd.broadcast(ones, self.size, process_set=members),
            "splits": lambda: hvd.alltoall(ones, [5] * members.size(), process_set=members),
            "not contiguous": lambda: hvd.allreduce(torch.ones(3, 2).t(), process_set=members),
            "dtype": lambda: hvd.allreduce(ones.to(torch.uint64), process_set=members),
            "reducescatter's op": lambda: hvd.reducescatter(ones, op=hvd.Max, process_set=members),
            "bool's average": lambda: hvd.allreduce(ones.bool(), process_set=members),
            "complex maximum": lambda: hvd.reduce(
                ones.cfloat(), members.ranks[0], op=hvd.Max, process_set=members
            ),
            "itself": lambda: hvd.send(ones, self.rank),
            "no set": lambda: hvd.allreduce(ones, process_set=hvd.ProcessSet([0])),
            "outside": lambda: hvd.allreduce(ones, process_set=members),
        }
        inside = self.rank in action["members"]
        if self.rank == action["rank"] and not (inside and action["what"] == "outside"):
            refused = Refused("ValueError", "")
            require_refused(f"{what} {action['what']}", refused, runs[action["what"]])


def serve(path: str) -> None:
    """Until the test closes the connection, or something differs."""
    hvd.init()
    player = Player()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rw") as stream:
            stream.write(json.dumps(player.rank) + "\n")
            stream.flush()
            for line in stream:
                reply: dict[str, Any] = {"difference": "", "joined": []}
                try:
                    reply["joined"] = player.play(json.loads(line))
                except Exception as error:
                    kind = "" if isinstance(error, Difference) else f"{type(error).__name__}: "
                    reply["difference"] = f"rank {player.rank}, {kind}{error}"
                stream.write(json.dumps(reply) + "\n")
                stream.flush()
