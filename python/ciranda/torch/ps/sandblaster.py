"""Sandblaster L-BFGS (Dean et al., "Large Scale Distributed Deep Networks", 2012, 4.2).

Workers compute gradients of portions of the data, and the coordinator moves the parameters. The
parameters and all vectors of their length stay on the servers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch.ps import tasks
from ciranda.torch.ps.stand_in import StandIn
from ciranda.torch.ps.tasks import Future

# Numbers of the servers' vectors: parameters, gradient, parameters before the step, gradient before
# the step, direction; from _FIRST_OF_HISTORY on, the pairs s, y of the history.
_X, _G, _X_BEFORE, _G_BEFORE, _D, _FIRST_OF_HISTORY = range(6)
_HISTORY_MAX = 100
# The strong Wolfe conditions (Nocedal and Wright, "Numerical Optimization", 2006, 3.1).
_C1, _C2 = 1e-4, 0.9
_SEARCH_MAX = 25  # evaluations
_CURVATURE_MIN = 1e-10  # of the product s y, relative to the lengths of s and y

Sum = tuple[int, list[tuple[int, float]]]  # the target vector; (vector, factor) of each term
Work = Callable[[list[Sum], list[tuple[int, int]]], Sequence[float]]


@dataclass(frozen=True)
class LbfgsResult:
    """The result of lbfgs(). The servers hold the parameters that belong to `loss`."""

    loss: float
    gradient_norm: float  # Euclidean
    iterations: int
    evaluations: int  # of the loss and its gradient


class Sandblaster:
    """The parameters of a worker's model, for a coordinator that calls lbfgs().

    Make it in a function with @ps.per_worker, with the parameters' names, the same in all workers.
    Parameters are float32 or float64. Raises InvalidArgumentError in a task, and for the parameters
    of a ps.Embedding or ps.Layer.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        tasks.refuse_in_task("Sandblaster")
        named = list(named_parameters)
        for name, parameter in named:
            if isinstance(parameter, StandIn):
                raise InvalidArgumentError(
                    f"Sandblaster: '{name}' stands for a ps.Embedding or ps.Layer, which no vector "
                    "of the servers holds; use torch's own module"
                )
        self._gradients = _C.PsGradients()
        self._gradients.add_parameters(named)

    def push(self) -> None:
        """Adds the parameters' gradients to those of the other portions. Blocks for the servers.

        Call it once in a portion's task, after backward(); set the gradients to None before
        backward().
        """
        self._gradients.push(_G)


@tasks.task
def _all_are_ready() -> None:
    """Does nothing: a worker that runs a task has declared its parameters."""


def lbfgs(
    portions: Callable[[], Sequence[Future[float]]],
    *,
    max_iter: int = 100,
    history: int = 10,
    tolerance_grad: float = 1e-7,
    tolerance_change: float = 1e-9,
) -> LbfgsResult:
    """Minimizes a loss over all data by L-BFGS with a strong Wolfe line search.

    The coordinator calls it, within main() of run(). Blocks.

    portions: schedules a task for each portion of the data, and returns their futures. A task
    computes its part of the loss at the current parameters, calls backward() and
    Sandblaster.push(), and returns that part. The sum of the parts is the loss. With
    @ps.task(copies=2) a second worker also gets the last portions, so that no slow worker delays
    the step.

    history: number of steps to remember, 1 to 100; each takes two vectors on the servers. lbfgs()
    ends after max_iter steps, or if the gradient's Euclidean norm is at most tolerance_grad, or if
    a step has changed the loss by less than tolerance_change.

    A coordinator that is started again resumes, as with tasks. Servers that may be killed need
    --durability log or disk. Raises TaskFailedError if a portion's task raises.
    """
    if not isinstance(history, int) or not 1 <= history <= _HISTORY_MAX:
        raise InvalidArgumentError(f"lbfgs: history must be 1 to {_HISTORY_MAX}, not {history!r}")

    def evaluate() -> float:
        return math.fsum(each.result() for each in portions())

    tasks.schedule(_all_are_ready).result()
    return minimize(
        _C.work_with_vectors,
        evaluate,
        max_iter=max_iter,
        history=history,
        tolerance_grad=tolerance_grad,
        tolerance_change=tolerance_change,
    )


class _History:
    """The latest steps: differences of parameters (s) and of gradients (y).

    It knows only the dot products of these vectors. The direction is a sum of the vectors and the
    gradient. Its factors follow from the products (Chen, Wang and Zhou, "Large-scale L-BFGS using
    MapReduce", 2014).
    """

    def __init__(self, most: int) -> None:
        self._free = [_FIRST_OF_HISTORY + 2 * i for i in reversed(range(most))]
        self._steps: list[int] = []  # vectors of s, the oldest first; y is the next vector
        self._products: dict[tuple[int, int], float] = {}

    def next_step(self) -> int:
        """Returns the vector for the next s; the vector after it is for y."""
        return self._free[-1] if self._free else self._steps[0]

    def dots(self, step: int) -> list[tuple[int, int]]:
        """Returns the pairs of vectors that the servers multiply; `step` is the newest step."""
        kept = [each for each in self._steps if each != step]
        all_vectors = [_G, step, step + 1, *kept, *(each + 1 for each in kept)]
        return [(new, each) for new in (_G, step, step + 1) for each in all_vectors]

    def add(self, step: int, dots: list[tuple[int, int]], values: Sequence[float]) -> None:
        """Stores the products of a new gradient. Keeps the step if the loss is convex along it."""
        for (one, other), value in zip(dots, values, strict=True):
            self._products[one, other] = self._products[other, one] = value
        length = math.sqrt(self.product(step, step) * self.product(step + 1, step + 1))
        if step in self._steps:
            self._steps.remove(step)
            self._free.append(step)
        if self.product(step, step + 1) > _CURVATURE_MIN * length:
            self._free.remove(step)
            self._steps.append(step)

    def forget(self) -> None:
        self._free += self._steps
        self._steps = []

    def set_gradient(self, square: float) -> None:
        self._products[_G, _G] = square

    def product(self, one: int, other: int) -> float:
        return self._products[one, other]

    def direction(self) -> dict[int, float]:
        """Returns the factors of -H g: two-loop recursion (Nocedal and Wright, algorithm 7.4)."""
        factors = {_G: -1.0}
        factors |= {vector: 0.0 for step in self._steps for vector in (step, step + 1)}

        def times(vector: int) -> float:
            return math.fsum(by * self.product(vector, each) for each, by in factors.items())

        alphas = {}
        for s in reversed(self._steps):
            alphas[s] = times(s) / self.product(s, s + 1)
            factors[s + 1] -= alphas[s]
        if self._steps:
            s = self._steps[-1]
            by = self.product(s, s + 1) / self.product(s + 1, s + 1)
            factors = {each: by * factor for each, factor in factors.items()}
        for s in self._steps:
            factors[s] += alphas[s] - times(s + 1) / self.product(s, s + 1)
        return factors

    def slope(self, direction: dict[int, float]) -> float:
        """Returns the loss's derivative along the direction."""
        return math.fsum(by * self.product(_G, each) for each, by in direction.items())


def minimize(
    work: Work,
    evaluate: Callable[[], float],
    *,
    max_iter: int,
    history: int,
    tolerance_grad: float,
    tolerance_change: float,
) -> LbfgsResult:
    """Minimizes as lbfgs() does. It handles only a few numbers; the vectors stay elsewhere.

    `work` sums vectors, then returns dot products. `evaluate` returns the loss at vector 0 and adds
    its gradient to vector 1.
    """
    evaluations = 0

    def gradient_at(sums: list[Sum], dots: list[tuple[int, int]]) -> tuple[float, Sequence[float]]:
        nonlocal evaluations
        evaluations += 1
        work([*sums, (_G, [])], [])
        loss = evaluate()
        return loss, work([], dots)

    loss, (square,) = gradient_at([], [(_G, _G)])
    kept = _History(history)
    kept.set_gradient(square)
    iterations = 0
    while iterations < max_iter and math.sqrt(square) > tolerance_grad:
        direction = kept.direction()
        slope = kept.slope(direction)
        if not slope < 0:  # rounding, or a loss that is not smooth
            kept.forget()
            direction, slope = {_G: -1.0}, -square
        work(
            [
                (_D, list(direction.items())),
                (_X_BEFORE, [(_X, 1.0)]),
                (_G_BEFORE, [(_G, 1.0)]),
            ],
            [],
        )

        def at(t: float) -> tuple[float, float]:
            nonlocal square
            there, (along, square) = gradient_at(
                [(_X, [(_X_BEFORE, 1.0), (_D, t)])], [(_G, _D), (_G, _G)]
            )
            return there, along

        first = 1.0 if iterations else min(1.0, 1.0 / math.sqrt(square))
        before = loss
        loss = _search(at, loss, slope, first)
        iterations += 1
        step = kept.next_step()
        dots = kept.dots(step)
        differences: list[Sum] = [
            (step, [(_X, 1.0), (_X_BEFORE, -1.0)]),
            (step + 1, [(_G, 1.0), (_G_BEFORE, -1.0)]),
        ]
        kept.add(step, dots, work(differences, dots))
        if abs(loss - before) < tolerance_change:
            break
    return LbfgsResult(loss, math.sqrt(square), iterations, evaluations)


@dataclass(frozen=True)
class _Point:
    t: float
    loss: float
    slope: float


def _search(
    at: Callable[[float], tuple[float, float]], loss: float, slope: float, first: float
) -> float:
    """Returns the loss at a step that fulfils the strong Wolfe conditions, or at the best one.

    That step is evaluated last (Nocedal and Wright, algorithms 3.5 and 3.6).
    """
    start = _Point(0.0, loss, slope)

    def descends(point: _Point) -> bool:
        return point.loss <= loss + _C1 * point.t * slope  # false if the loss is NaN

    low, high, t = start, None, first
    latest = start
    for _ in range(_SEARCH_MAX):
        latest = _Point(t, *at(t))
        if not descends(latest) or (latest.loss >= low.loss and low is not start):
            high = latest
        elif abs(latest.slope) <= -_C2 * slope:
            return latest.loss
        elif high is None and latest.slope < 0:
            low, t = latest, min(10 * t, max(2 * t, _between(low, latest, widens=True)))
            continue
        else:
            if high is None or latest.slope * (high.t - low.t) >= 0:
                high = low
            low = latest
        t = _between(low, high)
        if abs(high.t - low.t) * -slope < 1e-12 * max(1.0, abs(loss)):
            break
    if latest is not low:
        at(low.t)
    return low.loss


def _between(one: _Point, other: _Point, *, widens: bool = False) -> float:
    """Returns the minimum of the cubic through both points if it is well inside, else the middle.

    With `widens` it may lie outside; the result is 0 if there is no minimum.
    """
    width = other.t - one.t
    if math.isfinite(other.loss) and math.isfinite(other.slope):
        theta = 3 * (one.loss - other.loss) / width + one.slope + other.slope
        root = theta * theta - one.slope * other.slope
        if root >= 0:
            gamma = math.copysign(math.sqrt(root), width)
            under = other.slope - one.slope + 2 * gamma
            if under != 0:
                t = other.t - width * (other.slope + gamma - theta) / under
                if widens:
                    return t
                inside = abs(t - one.t) / abs(width)
                if 0.1 <= inside <= 0.9 and (t - one.t) * width > 0:
                    return t
    return 0.0 if widens else one.t + width / 2
