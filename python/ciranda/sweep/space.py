"""The search space: parameters as typed, their grid, their places in the command. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ciranda.launch.errors import LaunchError

Value = str | int | float  # a choice is text, as typed

TRIAL = "trial"  # {trial} in the command is the trial's number
RESULT_COLUMNS = (TRIAL, "value", "state", "seconds", "steps")  # of results.csv, with parameters
GRID_TRIALS_MAX = 100_000

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})((?::[^:]*)*)")
_INTEGER = re.compile(r"[+-]?\d+")
_PLACEHOLDER = re.compile(rf"\{{({_NAME})\}}")
_FORMS = "lr=1e-4..1e-1:log, layers=1..8, rate=0..0.5:step=0.1 or batch=32,64,128"


@dataclass(frozen=True)
class Choices:
    texts: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(self.texts)

    def count(self) -> int:
        return len(self.texts)

    def values(self) -> Sequence[Value]:
        return self.texts


@dataclass(frozen=True)
class Range:
    """A range that includes both ends. Its values are integers if both ends and the step are."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    def __str__(self) -> str:
        log = ":log" if self.log else ""
        step = "" if self.step is None else f":step={self.step}"
        return f"{self.low}..{self.high}{log}{step}"

    @property
    def is_integer(self) -> bool:
        return all(isinstance(each, int) for each in (self.low, self.high, self.step or 1))

    def count(self) -> int | None:
        """Returns the number of values; None if it is infinite."""
        if self.step is None and not self.is_integer:
            return None
        return int((_decimal(self.high) - _decimal(self.low)) / _decimal(self.step or 1)) + 1

    def values(self) -> Sequence[Value]:
        """Returns all values of a range with a finite count()."""
        low, step = _decimal(self.low), _decimal(self.step or 1)
        kind = int if self.is_integer else float
        return [kind(low + i * step) for i in range(self.count() or 0)]


Parameter = Choices | Range
Space = Mapping[str, Parameter]
Parameters = Mapping[str, Value]  # one point of the space


def _decimal(number: int | float) -> Decimal:
    return Decimal(str(number))  # 0.1 instead of the nearest binary fraction


def text_of(value: Value) -> str:
    """Returns the text for the command; seven digits are about float32's precision."""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def texts_of(parameters: Parameters) -> dict[str, str]:
    return {name: text_of(value) for name, value in parameters.items()}


# Parsing


def parse_space(given: Sequence[str]) -> dict[str, Parameter]:
    """Parses the texts of --param; keeps their order."""
    space: dict[str, Parameter] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals or not re.fullmatch(_NAME, name):
            raise LaunchError(f"--param {text}: write a name and its values, such as {_FORMS}")
        if name in RESULT_COLUMNS:
            raise LaunchError(
                f"--param {text}: '{name}' is a column of results.csv; choose another name"
            )
        if name in space:
            raise LaunchError(f"--param {name} is given twice")
        space[name] = parse_parameter(values, f"--param {text}")
    if not space:
        raise LaunchError(f"nothing to search; give --param, such as {_FORMS}")
    return space


def parse_parameter(text: str, what: str) -> Parameter:
    """Parses the values of one parameter; `what` begins the sentence of an error."""
    if "," not in text and ".." in text:
        return _parse_range(text, what)
    texts = tuple(text.split(","))
    if "" in texts:
        raise LaunchError(f"{what}: a choice is empty")
    if len(set(texts)) < len(texts):
        raise LaunchError(f"{what}: a choice is there twice")
    return Choices(texts)


def _parse_range(text: str, what: str) -> Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise LaunchError(f"{what}: a range goes from a number to a number, such as {_FORMS}")
    log, step = False, None
    for option in match[3].split(":")[1:]:
        name, equals, value = option.partition("=")
        if option == "log":
            log = True
        elif name == "step" and equals and re.fullmatch(_NUMBER, value):
            step = value
        else:
            raise LaunchError(f"{what}: ':{option}' is neither :log nor :step=NUMBER")
    numbers = [each for each in (match[1], match[2], step) if each is not None]
    kind = int if all(map(_INTEGER.fullmatch, numbers)) else float
    found = Range(kind(match[1]), kind(match[2]), log, None if step is None else kind(step))
    _check_range(found, what)
    return found


def _check_range(found: Range, what: str) -> None:
    if not all(map(math.isfinite, (found.low, found.high, found.step or 1))):
        raise LaunchError(f"{what}: a number is too large")
    if not found.low < found.high:
        raise LaunchError(f"{what}: the range ends at {found.high}, before it has begun")
    if found.log and found.low <= 0:
        raise LaunchError(f"{what}: a logarithmic range begins above 0")
    if found.log and found.step is not None:
        raise LaunchError(f"{what}: :log and :step do not go together")
    if found.step is not None and not 0 < found.step <= found.high - found.low:
        raise LaunchError(f"{what}: the step must be more than 0 and at most the range's length")


# The grid


def grid_size(space: Space) -> int:
    """Returns the number of grid points; raises LaunchError if the grid cannot be searched."""
    counts = {name: parameter.count() for name, parameter in space.items()}
    for name, count in counts.items():
        if count is None:
            raise LaunchError(
                f"--sampler grid: {name}={space[name]} has no end of values; give it :step=, or "
                "choices"
            )
    size = math.prod(count or 0 for count in counts.values())
    if size > GRID_TRIALS_MAX:
        raise LaunchError(
            f"--sampler grid: that are {size:,} combinations, and {GRID_TRIALS_MAX:,} at most; "
            "take larger steps, or --sampler random"
        )
    return size


def grid(space: Space) -> Iterator[dict[str, Value]]:
    """Yields each combination once; the last parameter changes fastest."""
    for values in itertools.product(*(parameter.values() for parameter in space.values())):
        yield dict(zip(space, values, strict=True))


# Placeholders


def check_placeholders(command: Sequence[str], space: Space) -> None:
    """Raises LaunchError if a parameter is not in the command, or a placeholder is no parameter."""
    found = [name for word in command for name in _PLACEHOLDER.findall(word)]
    for name in found:
        if name not in space and name != TRIAL:
            raise LaunchError(f"the command has {{{name}}}, and there is no --param {name}=")
    for name in space:
        if name not in found:
            raise LaunchError(
                f"--param {name} is used nowhere; write {{{name}}} where the command takes it"
            )


def has_placeholder(word: str) -> bool:
    return _PLACEHOLDER.search(word) is not None


def fill_in(command: Sequence[str], parameters: Parameters, trial: int) -> tuple[str, ...]:
    """Returns the command of one trial."""
    texts = {**texts_of(parameters), TRIAL: str(trial)}
    return tuple(
        _PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), word) for word in command
    )
