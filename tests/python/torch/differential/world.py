"""Where a script runs, what it looked at, and whether two runs of it saw the same.

A script is a function of a World. It runs twice: in a Reference, which is plain torch in one
process that sees the joined batch, and in Ranks, where ciranda joins the batches. All that differs
between the two goes through the World; all that the script looks at is kept, and compared.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sharing import any_size

import ciranda.torch as hvd

Mode = Literal["auto", "host", False] | str  # or one of served_programs.MODES
OfRank = Callable[[int], torch.Tensor]
Script = Callable[["World"], None]


@dataclass(frozen=True)
class Refusal:
    """What ciranda refuses though torch does it, as documented."""

    doing: str  # pattern of the action, or the name of the script
    says: str  # pattern of the text
    documented: str  # where


# An error that torch does not raise is a failure unless a row says that it is documented.
REFUSALS = [
    Refusal(
        "",
        "shared_step='host' is not possible: .* shares its memory with another tensor",
        "docs/optimizer.md, The shared step: what is in the way",
    ),
    Refusal(
        "broadcast",
        "rank 0 has no state to send",
        "broadcast_optimizer_state(): every rank raises where the root's state_dict() does",
    ),
]


@dataclass(frozen=True)
class Look:
    """One thing at one moment."""

    label: str
    value: Any  # of its own: later changes of the thing do not show
    promised: bool  # to be what plain torch has
    common: bool  # to have the same bits on every rank


class World:
    """What a script may ask and do; see Reference and Ranks."""

    is_reference: bool

    def __init__(self, rank: int, size: int, hosts: int, mode: Mode) -> None:
        self.rank, self.size, self.hosts, self.mode = rank, size, hosts, mode
        self.looks: list[Look] = []
        self.doing = ""  # for errors: the script's name, or the action
        self.tolerance = 1e-7  # of what is compared with the reference, relative to its largest
        self.choices: list[bool] = []  # that ciranda may make, in order; see docs/optimizer.md

    @property
    def backward_averages(self) -> bool:
        """Whether p.grad is the average after backward(): see docs/optimizer.md."""
        return self.mode != "host" or self.hosts > 1

    def look(self, label: str, value: Any, promised: bool = True, common: bool = True) -> None:
        self.looks.append(Look(label, frozen(value), promised, common))

    def look_at_grad(self, label: str, parameter: torch.Tensor) -> None:
        """After backward(); with "host" there is no promise before synchronize()."""
        self.look(label, parameter.grad, self.backward_averages, self.backward_averages)

    def loss(self, of_rank: OfRank, *, total: bool = False) -> torch.Tensor:
        """What to call backward() on: `of_rank` of this rank, or of all together."""
        raise NotImplementedError

    def average(self, of_rank: OfRank) -> torch.Tensor:
        """A metric, averaged over the ranks."""
        raise NotImplementedError

    def distribute(self, optimizer: Any, named: Any = None, **options: Any) -> Any:
        """DistributedOptimizer(optimizer, named, **options)"""
        raise NotImplementedError

    def synchronize(self, optimizer: Any) -> None:
        raise NotImplementedError

    def broadcast_parameters(self, state: Any) -> None:
        raise NotImplementedError

    def broadcast_optimizer_state(self, optimizer: Any) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        """shutdown() and init()"""
        raise NotImplementedError

    def shared_bytes(self) -> int:
        """Shared memory that this process has mapped for ciranda."""
        raise NotImplementedError

    def state_dict_of(self, optimizer: Any) -> dict[str, Any]:
        """optimizer.state_dict() to be kept: documented to be a copy where a step is shared."""
        raise NotImplementedError


def parameters_of(optimizer: Any) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class Reference(World):
    """Plain torch in one process; where ciranda may choose, it follows what Ranks chose."""

    is_reference = True

    def __init__(
        self, rank: int, size: int, hosts: int, mode: Mode, choices: Iterable[bool] = ()
    ) -> None:
        super().__init__(rank, size, hosts, mode)
        self._choices = iter(choices)

    def _chosen(self) -> bool:
        return next(self._choices, False) and self.mode is not False

    def loss(self, of_rank: OfRank, *, total: bool = False) -> torch.Tensor:
        joined = torch.stack([of_rank(rank) for rank in range(self.size)]).sum()
        return joined if total else joined / self.size

    def average(self, of_rank: OfRank) -> torch.Tensor:
        return torch.stack([of_rank(rank) for rank in range(self.size)]).mean(0)

    def distribute(
        self,
        optimizer: Any,
        named: Any = None,
        max_grad_norm: float | None = None,
        **options: Any,
    ) -> Any:
        if max_grad_norm is None:
            return optimizer
        before: list[tuple[torch.Tensor, torch.Tensor]] = []

        def clip(optimizer: Any, args: Any, kwargs: Any) -> None:
            held = parameters_of(optimizer)
            before[:] = [(p.grad, p.grad.clone()) for p in held if p.grad is not None]
            torch.nn.utils.clip_grad_norm_(held, max_grad_norm)

        def restore(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._chosen():  # a shared step leaves p.grad unclipped
                for grad, value in before:
                    grad.copy_(value)

        optimizer.register_step_pre_hook(clip)
        optimizer.register_step_post_hook(restore)
        return optimizer

    def synchronize(self, optimizer: Any) -> None:
        pass

    def broadcast_parameters(self, state: Any) -> None:
        pass

    def broadcast_optimizer_state(self, optimizer: Any) -> None:
        """As documented: who has no state has gradients of zeros afterwards."""
        optimizer.load_state_dict(optimizer.state_dict())
        if not optimizer.state_dict()["state"]:
            for parameter in parameters_of(optimizer):
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)

    def restart(self) -> None:
        pass

    def shared_bytes(self) -> int:
        return 0

    def state_dict_of(self, optimizer: Any) -> dict[str, Any]:
        state = optimizer.state_dict()
        return _copied(state) if self._chosen() else state  # with a shared step they are copies


class Ranks(World):
    """ciranda, on this rank."""

    is_reference = False

    def loss(self, of_rank: OfRank, *, total: bool = False) -> torch.Tensor:
        return of_rank(self.rank)

    def average(self, of_rank: OfRank) -> torch.Tensor:
        return hvd.allreduce(of_rank(self.rank))

    def distribute(self, optimizer: Any, named: Any = None, **options: Any) -> Any:
        with any_size():
            made = hvd.DistributedOptimizer(optimizer, named, shared_step=self.mode, **options)
        if "max_grad_norm" in options:
            # Its argument: with `made` in it the hook would keep a deleted optimizer alive.
            made.register_step_post_hook(lambda own, *_: self.choices.append(_is_shared(own)))
        return made

    def synchronize(self, optimizer: Any) -> None:
        optimizer.synchronize()

    def broadcast_parameters(self, state: Any) -> None:
        hvd.broadcast_parameters(state, root_rank=0)

    def broadcast_optimizer_state(self, optimizer: Any) -> None:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    def restart(self) -> None:
        hvd.barrier()  # nobody still needs this rank
        hvd.shutdown()
        hvd.init()

    def shared_bytes(self) -> int:
        total = 0
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "memfd:ciranda" in line:
                start, end = (int(text, 16) for text in line.split()[0].split("-"))
                total += end - start
        return total

    def state_dict_of(self, optimizer: Any) -> dict[str, Any]:
        state, again = optimizer.state_dict(), optimizer.state_dict()
        self.choices.append(
            any(
                isinstance(value, torch.Tensor) and value is not again["state"][number][name]
                for number, held in state["state"].items()
                for name, value in held.items()
            )
        )
        return state


def _is_shared(optimizer: Any) -> bool:
    return not optimizer.why_not_shared()


# --- one run ----------------------------------------------------------------------------------


@dataclass
class Run:
    """How a script went."""

    looks: list[Look]
    error: type[Exception] | None
    said: str  # by the error
    doing: str
    tolerance: float


def run(script: Script, world: World, name: str = "") -> Run:
    torch.manual_seed(0)
    world.doing = name
    error, said = None, ""
    try:
        script(world)
    except Exception as raised:  # not kept: its frames hold the script's tensors
        error, said = type(raised), f"{type(raised).__name__}: {raised}"
    return Run(world.looks, error, said, world.doing, world.tolerance)


def judge(reference: Run, ours: Run) -> str:
    """The first difference as a sentence; "" if there is none, or a documented one."""
    tolerance = max(reference.tolerance, ours.tolerance)
    for theirs, own in zip(reference.looks, ours.looks, strict=False):
        if theirs.label != own.label:
            return f"the script took another way: {own.label}, in plain torch {theirs.label}"
        difference = _difference(theirs.value, own.value, tolerance) if theirs.promised else ""
        if difference:
            return f"{own.label}{difference}"
    same_way = len(reference.looks) == len(ours.looks)
    if ours.error is None:
        if reference.error is None:
            return "" if same_way else "the script took another way"
        return f"{ours.doing}: plain torch raises {reference.said}; ciranda does not"
    for refusal in REFUSALS:
        if re.search(refusal.doing, ours.doing) and re.search(refusal.says, ours.said):
            return ""
    if reference.error is None:
        return f"{ours.doing}: plain torch does not raise; ciranda does: {ours.said}"
    if not same_way or not issubclass(ours.error, reference.error):
        return f"{ours.doing}: plain torch raises {reference.said}; ciranda {ours.said}"
    return ""


def digests(reference: Run, ours: Run) -> list[tuple[str, int]]:
    """Of what must have the same bits on every rank, in order."""
    return [
        (own.label, zlib.crc32(repr(_bits(own.value)).encode()))
        for theirs, own in zip(reference.looks, ours.looks, strict=False)
        if theirs.promised and theirs.common and own.common
    ]


# --- values -----------------------------------------------------------------------------------


def frozen(value: Any) -> Any:
    """A copy that holds no tensor of the script: tensors become arrays."""
    if isinstance(value, torch.Tensor):
        return value.detach().numpy().copy()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {str(key): frozen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [frozen(item) for item in value]
    return value


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value


def _bits(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, zlib.crc32(value.tobytes())
    if isinstance(value, dict):
        return {key: _bits(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bits(item) for item in value]
    return value


def _difference(theirs: Any, ours: Any, tolerance: float) -> str:
    """Where and how, as the rest of a sentence."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if theirs.keys() != ours.keys():
            return f" has {list(ours)}, in plain torch {list(theirs)}"
        pairs = [(f"[{key}]", theirs[key], ours[key]) for key in theirs]
    elif isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            return f" has {len(ours)} items, in plain torch {len(theirs)}"
        both = enumerate(zip(theirs, ours, strict=True))
        pairs = [(f"[{index}]", left, right) for index, (left, right) in both]
    elif isinstance(theirs, np.ndarray) and isinstance(ours, np.ndarray):
        return _difference_of_arrays(theirs, ours, tolerance)
    else:
        if isinstance(theirs, float) and isinstance(ours, float):
            same = abs(theirs - ours) <= tolerance * abs(theirs)
        else:
            same = type(theirs) is type(ours) and theirs == ours
        return "" if same else f" is {_short(ours)}, in plain torch {_short(theirs)}"
    for where, left, right in pairs:
        if difference := _difference(left, right, tolerance):
            return where + difference
    return ""


def _difference_of_arrays(
    theirs: np.ndarray[Any, Any], ours: np.ndarray[Any, Any], tolerance: float
) -> str:
    if (theirs.shape, theirs.dtype) != (ours.shape, ours.dtype):
        return f" is {ours.dtype}{ours.shape}, in plain torch {theirs.dtype}{theirs.shape}"
    finite = np.isfinite(theirs)
    # Values are of the order of 1: what is far below is what a difference has left.
    largest = float(np.abs(theirs[finite]).max(initial=1e-3))
    if theirs.dtype == np.float32:
        tolerance = max(tolerance, 1e-4)
    with np.errstate(invalid="ignore"):
        near = np.abs(theirs - ours) <= tolerance * largest
    off = ~np.where(finite, near, (theirs == ours) | (np.isnan(theirs) & np.isnan(ours)))
    if not off.any():
        return ""
    first = np.unravel_index(int(np.argmax(off)), off.shape)
    where = f"[{','.join(map(str, first))}]" if off.ndim else ""
    return f"{where} is {ours[first]!s}, in plain torch {theirs[first]!s} ({off.sum()} differ)"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
