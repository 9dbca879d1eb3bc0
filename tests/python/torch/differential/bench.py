"""What a random program works on: models, optimizers and what it keeps; and what ciranda promises.

The promises are those of docs/optimizer.md. A gradient is a rank's own, and not compared, from
where it may be until where it is the average again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from world import World, parameters_of

# Shapes, and how they lie in memory. From 512 float64 on a gradient is born in the arena.
KINDS: dict[str, Callable[..., torch.Tensor]] = {
    "scalar": lambda **how: torch.randn((), **how),
    "empty": lambda **how: torch.randn(0, 3, **how),
    "small": lambda **how: torch.randn(5, **how),
    "matrix": lambda **how: torch.randn(3, 4, **how),
    "transposed": lambda **how: torch.randn(6, 4, **how).t(),
    "large": lambda **how: torch.randn(700, **how),
    "large matrix": lambda **how: torch.randn(24, 40, **how),
    "large transposed": lambda **how: torch.randn(40, 24, **how).t(),
    "image": lambda **how: torch.randn(2, 3, 3, 3, **how),
    "channels last": lambda **how: torch.randn(8, 5, 4, 4, **how).to(
        memory_format=torch.channels_last
    ),
}


class Model(nn.Module):
    """A few parameters; forward() is Bench.loss()."""

    def __init__(self, name: str, kinds: list[str], tied: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.name = name
        generator = torch.Generator().manual_seed(len(kinds))
        for number, kind in enumerate(kinds):
            value = KINDS[kind](generator=generator, dtype=dtype)
            self.register_parameter(f"p{number}", nn.Parameter(value))
        if tied:
            self.register_parameter("tied", self.p0)


@dataclass
class Kept:
    """Something that the program holds on to."""

    label: str
    value: Any
    common: bool = True  # held on every rank


@dataclass
class KeptGradient:
    """A gradient as it was; while it is still p.grad, it follows it."""

    label: str
    gradient: torch.Tensor
    parameter: nn.Parameter
    attached: bool = True
    promised: bool = True


class Bench:
    def __init__(self, world: World, seed: int) -> None:
        rng = random.Random(f"bench {seed}")
        self.world = world
        self.dtype = torch.float32 if rng.random() < 0.15 else torch.float64
        self.passes = rng.choice([1, 1, 1, 2, 3])  # declared, of every optimizer
        self.looks_at_the_end_only = rng.random() < 0.2
        self.models: list[Model] = []
        self.optimizers: list[Any] = []
        self.schedulers: list[tuple[Any, Any]] = []
        self.kept: list[Kept | KeptGradient] = []
        self.saved: dict[str, Any] = {}  # by what it is of
        self.graph: tuple[torch.Tensor, list[nn.Parameter]] | None = None  # a loss for later
        self.own: set[nn.Parameter] = set()  # whose p.grad is not (yet) the average
        self.lines: list[str] = []
        self._count = 0

    def say(self, line: str) -> None:
        """What is done now, as a line of Python."""
        self.lines.append(line)

    def number(self) -> int:
        """A new one, for a name."""
        self._count += 1
        return self._count

    # --- names, for the printed script ---

    def name(self, parameter: nn.Parameter) -> str:
        for model in self.models:
            for name, each in model.named_parameters():
                if each is parameter:
                    return f"{model.name}.{name}"
        return "gone"

    def names(self, parameters: Iterable[nn.Parameter]) -> str:
        return ", ".join(self.name(parameter) for parameter in parameters)

    # --- parameters and who trains them ---

    def parameters(self) -> list[nn.Parameter]:
        return [p for model in self.models for p in model.parameters()]

    def trainable(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p.requires_grad]

    def with_gradient(self) -> list[nn.Parameter]:
        """On some rank; what is a rank's own may be None here."""
        return [p for p in self.parameters() if p in self.own or p.grad is not None]

    def owned(self) -> set[nn.Parameter]:
        return {p for optimizer in self.optimizers for p in parameters_of(optimizer)}

    # --- gradients ---

    def loss(
        self,
        rng: random.Random,
        parameters: list[nn.Parameter],
        everywhere: bool = False,
        overflows_on: int | None = None,
    ) -> torch.Tensor | None:
        """Of some or all of them, perhaps of others on each rank; None if there is none."""
        trainable = [p for p in parameters if p.requires_grad]
        if not trainable:
            return None
        used = [trainable] * self.world.size
        if rng.random() < 0.3 and not everywhere:
            used = [rng.sample(trainable, rng.randint(1, len(trainable))) for _ in used]
        # A pass reaches an optimizer on every rank, or on none.
        for optimizer in self.optimizers:
            reached = [not set(own).isdisjoint(parameters_of(optimizer)) for own in used]
            if any(reached) and not all(reached):
                used = [trainable] * self.world.size
        for rank, own in enumerate(used):
            names = self.names(own)
            if rank == 0 or names != self.names(used[0]):
                self.say(f"loss of {names}" + (f" on rank {rank}" if rank else ""))
        if overflows_on is not None:
            self.say(f"loss *= inf on rank {overflows_on}")
        salt = rng.randrange(2**31)

        def of_rank(rank: int) -> torch.Tensor:
            loss = _sum_of_terms(used[rank], salt, rank)
            return loss * float("inf") if rank == overflows_on else loss

        return self.world.loss(of_rank)

    def backward(self, loss: torch.Tensor, parameters: Iterable[nn.Parameter], **how: Any) -> None:
        self.say(f"loss.backward({', '.join(f'{name}={value}' for name, value in how.items())})")
        # Also if it raises in the middle.
        averaged = self.world.backward_averages and self.passes == 1
        owned = self.owned()
        self.own |= {p for p in parameters if not averaged or p not in owned}
        loss.backward(**how)

    def set_by_hand(self, parameter: nn.Parameter, gradient: torch.Tensor | None) -> None:
        """To this rank's own gradient."""
        parameter.grad = gradient
        self.own.add(parameter)

    def average_now(self) -> None:
        """p.grad is about to be looked at: with "host", and if it was set by hand, it takes a
        synchronize()."""
        if self.own.isdisjoint(self.owned()):
            return
        for optimizer in self.optimizers:
            self.say(f"{self.of(optimizer)}.synchronize()")
            self.world.synchronize(optimizer)
        self.own -= self.owned()

    def averaged(self) -> list[nn.Parameter]:
        """Those whose gradient has the same bits on all ranks."""
        return [p for p in self.parameters() if p not in self.own and p.grad is not None]

    def zeroed(self, parameters: Iterable[nn.Parameter], to_none: bool = True) -> None:
        """What was this rank's own is 0 where this rank had used the parameter, else None."""
        if to_none:
            self.own -= set(parameters)

    # --- optimizers ---

    def of(self, optimizer: Any) -> str:
        position = next(i for i, each in enumerate(self.optimizers) if each is optimizer)
        return f"optimizers[{position}]"

    def distribute(self, optimizer: Any, named: Any, **options: Any) -> None:
        if self.passes > 1:
            options["backward_passes_per_step"] = self.passes
        said = "".join(f", {name}={value}" for name, value in options.items())
        self.say(
            f"optimizers += [DistributedOptimizer({_call(optimizer, self)}"
            f"{', named' if named else ''}{said})]"
        )
        optimizer.takes_closures = "max_grad_norm" not in options
        self.optimizers.append(self.world.distribute(optimizer, named, **options))

    def drop_all(self) -> None:
        while self.optimizers:
            self.drop(self.optimizers[0])

    def drop(self, optimizer: Any) -> None:
        self.say(f"del {self.of(optimizer)}")
        self.schedulers = [pair for pair in self.schedulers if pair[0] is not optimizer]
        self.optimizers = [each for each in self.optimizers if each is not optimizer]

    def step(self, optimizer: Any, rng: random.Random, closure: bool = False) -> None:
        held = parameters_of(optimizer)
        if isinstance(optimizer, torch.optim.LBFGS) or closure:
            salt = rng.random()

            def compute() -> torch.Tensor:
                optimizer.zero_grad()
                loss = self.loss(random.Random(salt), held)
                assert loss is not None
                loss.backward()
                return loss

            if any(p.requires_grad for p in held):
                self.say(f"{self.of(optimizer)}.step(closure) with")
                self.own |= set(held)
                lines = len(self.lines) + 1
                optimizer.step(compute)
                del self.lines[lines:]  # LBFGS calls it often
        else:
            self.say(f"{self.of(optimizer)}.step()")
            optimizer.step()
        if self.world.backward_averages:
            self.own -= set(held)

    # --- looking ---

    def keep(
        self,
        what: str,
        line: str,
        make: Callable[[], Any],
        rank: int | None = None,
        common: bool = True,
    ) -> None:
        """`make()`, on one rank or on all."""
        label = f"{what}{self.number()}"
        self.say(f"{label} = {line}" + ("" if rank is None else f" on rank {rank}"))
        if rank is None or rank == self.world.rank:
            self.kept.append(Kept(label, make(), common=common and rank is None))

    def keep_gradient(self, parameter: nn.Parameter) -> None:
        label = f"g{self.number()}"
        self.say(f"{label} = {self.name(parameter)}.grad")
        self.kept.append(
            KeptGradient(label, parameter.grad, parameter, promised=parameter not in self.own)
        )

    def notice(self) -> None:
        """After each action: which kept gradients are p.grad no more, or a rank's own now."""
        for kept in self.kept:
            if isinstance(kept, KeptGradient) and kept.attached:
                kept.attached = kept.parameter.grad is kept.gradient
                if kept.attached and kept.parameter in self.own:
                    kept.promised = False

    def look(self) -> None:
        for model in self.models:
            for name, p in model.named_parameters():
                label = f"{model.name}.{name}"
                self.world.look(label, p)
                averaged = p not in self.own
                self.world.look(f"{label}.grad", p.grad, averaged, averaged)
        for kept in self.kept:
            if isinstance(kept, KeptGradient):
                self.world.look(kept.label, kept.gradient, kept.promised, kept.promised)
            else:
                self.world.look(kept.label, kept.value, common=kept.common)

    def look_at_state(self) -> None:
        for number, optimizer in enumerate(self.optimizers):
            if isinstance(optimizer, torch.optim.LBFGS):
                continue  # it holds what is left of differences, which are near 0
            self.world.look(f"optimizers[{number}].state_dict()", optimizer.state_dict())


def _sum_of_terms(parameters: list[nn.Parameter], salt: int, rank: int) -> torch.Tensor:
    return torch.stack(
        [_term(p, salt + 1009 * rank + number) for number, p in enumerate(parameters)]
    ).sum()


def _term(p: torch.Tensor, salt: int) -> torch.Tensor:
    """Its gradient depends on the parameter, the rank and the moment, and is not near 0."""
    generator = torch.Generator().manual_seed(salt)
    slope = 1 + torch.rand(p.shape, generator=generator, dtype=p.dtype)
    if p.dim() == 2 and p.numel() > 0:
        rows = torch.randn(4, p.shape[0], generator=generator, dtype=p.dtype)
        return (rows @ p - 1).square().mean() + (slope * p).sum()
    return (slope * p).sum() + 0.1 * (p + 5).square().sum()


def _call(optimizer: Any, bench: Bench) -> str:
    """As it was made."""
    name = type(optimizer).__name__
    groups = [f"[{bench.names(group['params'])}]" for group in optimizer.param_groups]
    options = "".join(
        f", {key}={value}"
        for key, value in optimizer.defaults.items()
        if key in ("lr", "momentum", "nesterov", "amsgrad", "centered", "weight_decay") and value
    )
    return f"{name}({', '.join(groups)}{options})"
