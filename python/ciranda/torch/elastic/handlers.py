"""Horovod's handlers: how a TorchState treats objects of types that only the program knows."""

from __future__ import annotations

from typing import Any


class StateHandler:
    """Saves, restores and synchronizes one value of a TorchState. A base class for programs.

    sync() broadcasts from rank 0, or with an argument root_rank from that rank.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        self.value = value
        self.save()


Registry = list[tuple[type, type[StateHandler]]]
_registry: Registry = []


def get_handler_registry() -> Registry:
    """Returns the pairs of a type and its handler.

    It is empty at first: modules, optimizers and objects with state_dict() need no handler.
    """
    return _registry


def set_handler_registry(registry: Registry) -> None:
    global _registry
    _registry = registry


def handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
