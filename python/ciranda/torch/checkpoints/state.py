"""Takes the state of a training into a dict, and puts it back: a TorchState, or objects by name."""

from __future__ import annotations

import random
import struct
import sys
from typing import Any

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch.checkpoints.content import (
    Content,
    Memory,
    check_module,
    check_names,
    check_optimizer,
    memory_of,
)
from ciranda.torch.elastic.progress import Progress
from ciranda.torch.elastic.state import TorchState, _copied_into, _Later, _settings

State = TorchState | dict[str, Any]


def check_state(state: Any) -> None:
    """Raises InvalidArgumentError for what cannot be saved at all."""
    if isinstance(state, TorchState):
        if state._handlers:
            _refuse(f"the handlers of {sorted(state._handlers)} keep their values to themselves")
        names = list(registered(state))
    elif type(state) is dict:
        if _C.in_elastic_job():
            _refuse("in an elastic job give the TorchState, which ranks that join get, not a dict")
        names = list(state)
    else:
        _refuse(
            f"the state is a {type(state).__name__}; give an elastic.TorchState, or a dict of "
            "objects by name: {'model': model, 'optimizer': optimizer, 'epoch': 3}"
        )
    for name in names:
        if not isinstance(name, str) or name == "ciranda":
            _refuse(f"{name!r} cannot be the name of a part of the state")


def _refuse(why: str) -> Any:
    raise InvalidArgumentError(f"Checkpoints: {why}")


def registered(state: State) -> dict[str, Any]:
    """Returns the objects and values by name."""
    if isinstance(state, dict):
        return state
    values = {name: getattr(state, name) for name in state._values}
    return {**state._modules, **state._optimizers, **state._others, **values}


def take(state: State, step: int, counted: int) -> Content:
    """Returns the state's content. The tensors are those of the training, not copies.

    `counted`: how often step() was called; it is how a state without numbers of its own is counted.
    """
    content: dict[str, Any] = {}
    replicated: set[Memory] = set()
    for name, each in registered(state).items():
        content[name] = each.state_dict() if _has_state(each) else each
        if isinstance(each, torch.nn.Module):
            replicated.update(memory_of(value.detach()) for value in each.parameters())
        elif isinstance(each, torch.optim.Optimizer) and not _is_by_adasum(each):
            for values in content[name]["state"].values():
                tensors = values.values() if isinstance(values, dict) else ()
                replicated.update(memory_of(v) for v in tensors if isinstance(v, torch.Tensor))
    own: dict[str, Any] = {"format": FORMAT, "step": step, "counted": counted}
    if isinstance(state, TorchState):
        own |= {"progress": vars(state.progress), "after_call": vars(state._after_call)}
    content["ciranda"] = own
    return Content(content, replicated)


FORMAT = 1


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _is_by_adasum(optimizer: Any) -> bool:
    """With Adasum each rank has its own optimizer state: the checkpoint has that of rank 0."""
    return bool(getattr(optimizer, "_ciranda_steps_by_itself", False))


def check_fits(state: State, saved: dict[str, Any]) -> None:
    """Raises InvalidArgumentError, before anything is changed, if the state is another one."""
    own = registered(state)
    check_names(saved, list(own))
    for name, each in own.items():
        if isinstance(each, torch.nn.Module):
            check_module(name, saved[name], each.state_dict())
        elif isinstance(each, torch.optim.Optimizer):
            check_optimizer(name, saved[name], each)
        elif isinstance(each, torch.Tensor) and each.shape != saved[name].shape:
            _refuse(
                f"'{name}' is {tuple(saved[name].shape)} in the checkpoint and "
                f"{tuple(each.shape)} in the training"
            )
    if isinstance(state, TorchState) and "progress" not in saved["ciranda"]:
        _refuse("the checkpoint was saved from a dict, and a TorchState needs one of a TorchState")


def put(state: State, saved: dict[str, Any]) -> None:
    """Puts a saved state back. check_fits() comes before."""
    check_fits(state, saved)
    if isinstance(state, TorchState):
        _put_torch_state(state, saved)
        return
    for name, each in list(state.items()):
        if isinstance(each, torch.Tensor):
            with torch.no_grad():
                each.copy_(saved[name])
        elif _has_state(each):
            # Optimizers keep the tensors that they load, and these are mapped from the file.
            each.load_state_dict(_copied_into(None, saved[name]))
        else:
            state[name] = saved[name]


def _put_torch_state(state: TorchState, saved: dict[str, Any]) -> None:
    """The process is then as one that has joined: it skips what has ended, and arrives."""
    if state.holds:
        _refuse("restore() comes before the first loop; this process trains already")
    told = saved["ciranda"]
    now = {
        "groups": [_settings(saved[name]["param_groups"]) for name in state._optimizers],
        "others": {name: saved[name] for name in state._others},
        "values": {name: saved[name] for name in state._values},
    }
    now, after_call = _copied_into(None, now), _copied_into(None, told["after_call"])
    whole = {
        "modules": {name: saved[name] for name in state._modules},
        "optimizers": [_copied_into(None, saved[name]["state"]) for name in state._optimizers],
        "now": now,
        "after_call": after_call,
        "after_block": now,
        "progress": vars(Progress(**told["progress"])),
    }
    state._take_over(whole)
    state._put_later(_Later(**now))


# --- random numbers -----------------------------------------------------------------------------


def take_random() -> dict[str, Any]:
    """Returns the state of this process's generators: torch's, Python's, and NumPy's if loaded."""
    _, words, gauss = random.getstate()
    taken: dict[str, Any] = {
        "torch": _bytes_of(torch.get_rng_state()),
        "python": [struct.pack(f"<{len(words)}I", *words), gauss],
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        taken["cuda"] = [_bytes_of(each) for each in torch.cuda.get_rng_state_all()]
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        taken["numpy"] = [kind, keys.tobytes(), *rest]
    return taken


def put_random(taken: dict[str, Any]) -> None:
    """Puts the generators back, as far as this process has them."""
    torch.set_rng_state(_tensor_of(taken["torch"]))
    words, gauss = taken["python"]
    random.setstate((3, struct.unpack(f"<{len(words) // 4}I", words), gauss))
    states = taken.get("cuda", [])
    if states and torch.cuda.is_available() and torch.cuda.device_count() == len(states):
        torch.cuda.set_rng_state_all([_tensor_of(each) for each in states])
    if "numpy" in taken and (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = taken["numpy"]
        numpy.random.set_state((kind, numpy.frombuffer(keys, numpy.uint32), *rest))


def _bytes_of(state: torch.Tensor) -> bytes:
    return bytes(state.tolist())


def _tensor_of(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
