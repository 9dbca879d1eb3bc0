"""What a checkpoint holds: the state of a training as plain values, with places for its tensors."""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ciranda.errors import InvalidArgumentError

_ATOMS = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor in a skeleton."""

    number: int


@dataclass(frozen=True)
class Entry:
    """A tensor of a checkpoint. `name` is where it was found first: 'model.0.weight'."""

    name: str
    tensor: torch.Tensor

    @property
    def size(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    def described(self) -> str:
        return f"'{self.name}' ({self.tensor.dtype}, {tuple(self.tensor.shape)})"


class Content:
    """The values and tensors of a state, with the tensors that only rank 0 writes in front.

    `replicated`: where the tensors lie that are the same on every rank. Others, such as buffers,
    are those of rank 0. Raises InvalidArgumentError for a value that a program without ciranda
    could not load, and names it.
    """

    def __init__(self, state: dict[str, Any], replicated: set[Memory]) -> None:
        self._found: dict[Any, int] = {}
        self._entries: list[Entry] = []
        self._skeleton = self._walk(state, "")
        mine = [memory_of(each.tensor) not in replicated for each in self._entries]
        order = sorted(range(len(mine)), key=lambda number: not mine[number])
        self._number = {before: now for now, before in enumerate(order)}
        self.entries = [self._entries[before] for before in order]
        self.own = sum(mine)  # entries that only rank 0 writes

    def digest(self) -> str:
        """Returns what must be the same on all ranks: names, dtypes and shapes."""
        said = "\n".join(each.described() for each in self.entries)
        return hashlib.sha256(f"{self.own}\n{said}".encode()).hexdigest()

    def pickled(self, extra: dict[str, Any]) -> bytes:
        """Returns the `data.pkl` of the file: the values and `extra`, as torch.save() has them."""
        buffer, memory = io.BytesIO(), {}
        skeleton = {**self._skeleton, "ciranda": {**self._skeleton["ciranda"], **extra}}
        stubs: dict[int, torch.Tensor] = {}

        def filled(value: Any) -> Any:
            if isinstance(value, _Place):
                number = self._number[value.number]
                if number not in stubs:
                    stubs[number] = _without_memory(self.entries[number].tensor)
                    memory[stubs[number].untyped_storage()._cdata] = number
                return stubs[number]
            return _mapped(value, lambda each, _: filled(each))

        _Pickler(buffer, self.entries, memory).dump(filled(skeleton))
        return buffer.getvalue()

    def _walk(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._place_of(value.detach(), name)
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind.__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__len__"):
            return value.item()
        if kind in (dict, OrderedDict, list, tuple):
            return _mapped(
                value, lambda each, key: self._walk(each, f"{name}.{key}" if name else str(key))
            )
        if kind is set and all(type(each) in _ATOMS for each in value):
            return value
        what = "a function" if callable(value) else f"a {kind.__name__}"
        _refuse(
            f"'{name}' is {what}; a checkpoint holds tensors, numbers, strings, lists, tuples and "
            "dicts, which torch.load(weights_only=True) can read: leave it out, or give an object "
            "with state_dict() and load_state_dict()"
        )

    def _place_of(self, tensor: torch.Tensor, name: str) -> _Place:
        if is_traceable_wrapper_subclass(tensor):
            _refuse(f"'{name}' is a {type(tensor).__name__}, whose values lie in other tensors")
        if is_lazy(tensor) or tensor.device.type == "meta":
            _refuse(f"'{name}' has no values yet; run the lazy module once before")
        if tensor.layout != torch.strided or tensor.is_quantized:
            _refuse(f"'{name}' is sparse or quantized; convert it with to_dense() or dequantize()")
        seen = (memory_of(tensor), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or seen not in self._found:
            self._found[seen] = len(self._entries)
            self._entries.append(Entry(name, tensor))
        return _Place(self._found[seen])


Memory = tuple[int, int]


def memory_of(tensor: torch.Tensor) -> Memory:
    """Returns where the tensor lies, by which two names of one tensor are found while it lives."""
    return (tensor.untyped_storage()._cdata, int(tensor.storage_offset()))


def copy_bytes(source: Entry, skip: int, target: torch.Tensor) -> None:
    """Copies bytes of the tensor, from `skip` on, to `target`, which is uint8. May be queued."""
    flat = source.tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    target.copy_(flat[skip : skip + target.numel()], non_blocking=True)


def _mapped(value: Any, function: Any) -> Any:
    """Returns a container like `value` with function(item, key) in place of each item."""
    if type(value) is OrderedDict:
        new: Any = OrderedDict((key, function(each, key)) for key, each in value.items())
        if hasattr(value, "_metadata"):  # versions of modules, for load_state_dict()
            new._metadata = value._metadata
        return new
    if type(value) is dict:
        return {key: function(each, key) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(function(each, number) for number, each in enumerate(value))
    return value


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same shape and dtype whose memory is given back."""
    stub = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    stub.untyped_storage().resize_(0)
    return stub


class _Pickler(pickle.Pickler):
    """Writes tensors as torch.save() does: by the number of the record that has their bytes."""

    def __init__(self, file: Any, entries: list[Entry], memory: dict[int, int]) -> None:
        super().__init__(file, protocol=2)
        self._entries, self._memory = entries, memory

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage):
            number = self._memory[obj._untyped_storage._cdata]
            kind = getattr(torch, obj._pickle_storage_type())  # type: ignore[no-untyped-call]
            return ("storage", kind, str(number), "cpu", self._entries[number].tensor.numel())
        if torch.is_storage(obj):  # of a dtype without a class of storages, such as float8
            number = self._memory[obj._cdata]
            return ("storage", torch.UntypedStorage, str(number), "cpu", self._entries[number].size)
        return None


def _refuse(why: str) -> NoReturn:
    raise InvalidArgumentError(f"Checkpoints: {why}")


# --- does a saved state fit --------------------------------------------------------------------


def check_module(name: str, saved: Any, own: dict[str, Any]) -> None:
    """Raises InvalidArgumentError that names the first value that does not fit the module."""
    for key, value in own.items():
        if key not in saved:
            _refuse(f"the checkpoint has no '{key}' of '{name}', which the training has")
        if not isinstance(value, torch.Tensor) or not isinstance(saved[key], torch.Tensor):
            continue
        if not is_lazy(value) and saved[key].shape != value.shape:
            _refuse(
                f"'{key}' of '{name}' is {tuple(saved[key].shape)} in the checkpoint and "
                f"{tuple(value.shape)} in the training"
            )
    for key in saved:
        if key not in own:
            _refuse(f"the checkpoint has '{key}' of '{name}', which the training has not")


def check_optimizer(name: str, saved: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidArgumentError if the parameter groups are others."""
    theirs = [len(group["params"]) for group in saved["param_groups"]]
    own = [len(group["params"]) for group in optimizer.param_groups]
    if theirs != own:
        _refuse(
            f"'{name}' has groups of {own} parameters in the training and of {theirs} in the "
            "checkpoint"
        )


def check_names(saved: dict[str, Any], own: list[str]) -> None:
    """Raises InvalidArgumentError if the checkpoint has not what the training registers."""
    theirs = set(saved) - {"ciranda"}
    if lacks := sorted(set(own) - theirs):
        _refuse(f"the checkpoint has no '{lacks[0]}'; it has {sorted(theirs)}")
    if more := sorted(theirs - set(own)):
        _refuse(f"the checkpoint has '{more[0]}', which the training does not register")


def small_records(pickled: bytes, described: str) -> list[tuple[str, bytes]]:
    """Returns the records behind the tensors."""
    return [
        ("data.pkl", pickled),
        ("version", b"3\n"),
        ("byteorder", sys.byteorder.encode()),
        ("ciranda.json", described.encode()),
    ]


def gibibytes(size: int) -> str:
    """Returns a size in words."""
    unit = min(int(math.log(max(size, 1), 1024)), 4)
    return f"{size / 1024**unit:.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
