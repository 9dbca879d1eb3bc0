"""The settings of one run. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

_EPOCH_S, _START_S = 20.0, 6.0  # guesses


@dataclass(frozen=True)
class Setting:
    """One cell of a study's grid. Sizes are in images; `batch` is the batch of one rank."""

    system: str = "one"
    model: str = "mlp"
    data: str = "fashion-mnist"
    times: int = 1  # passes through the data in an epoch
    image_px: int = 28
    batch: int = 64
    ranks: int = 1
    threads: int = 1  # of each rank
    servers: int = 1  # of a system with servers
    network: str = "host"  # of the ranks: one "host"; "hosts" without a limit, a "lan", a "vpn"
    slowness: float = 1.0  # factor by which the last rank computes longer
    optimizer: str = "adam"
    lr: float = 1e-3
    eps: float = 1e-8
    schedule: str = "constant"  # of the learning rate: "constant", "linear", "linear, warmed up"
    epochs: int = 2
    epoch_s: float = 0.0  # seconds after which an epoch is cut; 0: never
    curve_s: float = 0.0  # seconds between measurements of accuracy; 0: only after each epoch
    test_images: int = 10_000
    killed: str = ""  # "worker", "server", "coordinator": killed once, after the first epoch
    saver: str = ""  # "checkpoints", "resumed"
    trials: int = 0  # of a search
    parallel: int = 1  # trials side by side
    prune: str = "none"  # how bad trials are ended early: "none", "median"
    seed: int = 1

    def key(self) -> str:
        """Returns a key that is equal for equal settings."""
        return json.dumps(asdict(self), sort_keys=True)

    def but(self, **changed: Any) -> Setting:
        return replace(self, **changed)

    def limit_s(self) -> float:
        """Returns the total seconds of the epochs: their limit, or a guess."""
        return self.epochs * (self.epoch_s or _EPOCH_S)

    def expected_s(self) -> float:
        """Returns a guess of the run's seconds, good enough to tell long runs from short ones."""
        return _START_S + self.limit_s() * max(1, self.trials)


FIELDS: dict[str, type[Any]] = {each.name: type(each.default) for each in fields(Setting)}
CHOICES: dict[str, tuple[str, ...]] = {
    "model": ("mlp", "small-mlp", "small-cnn", "large-cnn", "mobilenetv2"),
    "data": ("fashion-mnist", "flowers"),
    "network": ("host", "hosts", "lan", "vpn"),
    "optimizer": ("adam", "adagrad", "sgd"),
    "schedule": ("constant", "linear", "linear, warmed up"),
    "killed": ("", "worker", "server", "coordinator"),
    "saver": ("", "checkpoints", "resumed"),
    "prune": ("none", "median"),
}
_MAY_BE_0 = ("eps", "epoch_s", "curve_s", "trials", "seed")


def setting_of(values: dict[str, Any], where: str) -> Setting:
    """Makes a Setting of a file's values; ValueError names an unknown field or wrong value."""
    for name, value in values.items():
        if why := _wrong(name, value):
            raise ValueError(f"{where}: {why}")
    return Setting(**{name: FIELDS[name](value) for name, value in values.items()})


def _wrong(name: str, value: Any) -> str | None:
    if name not in FIELDS:
        return f"there is no setting {name!r}; there are {sorted(FIELDS)}"
    kind, choices = FIELDS[name], CHOICES.get(name)
    if not isinstance(value, (int, float) if kind is float else kind) or value is True:
        return f"{name} must be {kind.__name__}, not {value!r}"
    if choices and value not in choices:
        return f"there is no {name} {value!r}; there are {', '.join(map(repr, choices))}"
    if kind is not str and (value < 0 or (value == 0 and name not in _MAY_BE_0)):
        least = "0 or more" if name in _MAY_BE_0 else "more than 0"
        return f"{name} must be {least}, not {value!r}"
    return None
