"""What training changes: registered once, copied to ranks that join, put back for a redone step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError, UnsupportedError
from ciranda.torch.elastic.handlers import StateHandler, handler_of
from ciranda.torch.elastic.horovod_state import State, sync_from
from ciranda.torch.elastic.progress import Progress
from ciranda.torch.elastic.sampler import ElasticSampler
from ciranda.torch.functions import _put_tensors, _take_tensors, broadcast_object
from ciranda.torch.optimizer_classes import Distributed

OnResize = Callable[[int, int], None]


@dataclass
class _Later:
    """What the program changes between blocks, too: it belongs to a point of the program."""

    groups: list[list[dict[str, Any]]]
    others: dict[str, Any]
    values: dict[str, Any]


class _Default:
    """A property that a value of the same name hides: programs for Horovod may register `step`."""

    def __init__(self, get: Callable[[Any], int]) -> None:
        self._get = get
        self.__doc__ = get.__doc__

    def __get__(self, state: Any, _: type) -> Any:
        return self if state is None else self._get(state)


class TorchState(State):
    """The state of a training that survives its ranks::

        state = elastic.TorchState(model, optimizer, scheduler=scheduler, epoch=0)

    Positional arguments are modules and optimizers (distributed or not). Keyword arguments are
    modules, optimizers, objects with state_dict() and load_state_dict() (schedulers, scalers), or
    plain values (numbers, strings, lists, dicts), which become attributes: state.epoch. The first
    module and the first optimizer are also state.model and state.optimizer.

    In an elastic job register whatever training changes. A rank that joins gets all of it; a block
    that is redone begins with the registered objects as they were at its beginning. One state a
    process: the newest is the one that steps() and agreed() use. Not thread-safe.

    As in Horovod, commit(), save(), restore() and sync() are for functions under elastic.run().
    """

    def __init__(self, *modules_and_optimizers: Any, **named: Any) -> None:
        super().__init__()
        self._modules: dict[str, torch.nn.Module] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._others: dict[str, Any] = {}
        self._values: list[str] = []
        self._handlers: dict[str, StateHandler] = {}
        self._callbacks: list[OnResize] = []
        self._kept: dict[str, Any] | None = None  # by save(), for restore()
        self._by_commits = False  # elastic.run() uses the state
        for number, each in enumerate(modules_and_optimizers):
            if each is None:
                continue
            if not isinstance(each, (torch.nn.Module, torch.optim.Optimizer)):
                raise InvalidArgumentError(
                    f"TorchState: argument {number + 1} is a {type(each).__name__}, not a module "
                    "or an optimizer; give other objects and values by name: scheduler=…, epoch=0"
                )
            name = "model" if isinstance(each, torch.nn.Module) else "optimizer"
            name = f"#{number}" if name in named or hasattr(self, name) else name
            self._register(name, each)
            setattr(self, name, each)
        for name, value in named.items():
            if _is_taken(type(self), name):
                raise InvalidArgumentError(f"TorchState: '{name}' cannot be the name of a value")
            self._register(name, value)
            setattr(self, name, value)
        self.progress = Progress(seed=torch.initial_seed() % (1 << 62), size=_C.size())
        # What a newcomer takes over beside parameters and their state: where its code has skipped
        # the last call, and where it arrives at the others.
        self._after_call = self._take_later()
        self._at_arrival: _Later | None = None
        self._after_block = self._after_call  # at the end of the latest block
        self._rest_of_block: dict[str, Any] | None = None  # what _catch_up() has left
        self.undo_block: Callable[[], None] | None = None  # while this rank is in a block
        global current
        current = self

    def _register(self, name: str, value: Any) -> None:
        if (handler := handler_of(value)) is not None:
            self._handlers[name] = handler
        elif isinstance(value, torch.nn.Module):
            self._modules[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizers[name] = value
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            self._others[name] = value
        else:
            self._values.append(name)

    def on_resize(self, callback: OnResize) -> OnResize:
        """Registers `callback(old, new)` for changes of the number of ranks; returns it.

        Every rank calls it before its next block, also a rank that joins: to change the learning
        rate, for example. It must change only what is registered.
        """
        self._callbacks.append(callback)
        return callback

    @_Default
    def step(self) -> int:
        """The number of blocks or commits that the training has done, on this rank."""
        return self.progress.blocks

    @property
    def skipping(self) -> bool:
        """True in a process that has joined, until it is where the others are.

        After a loop or agreed() it says that the others have made that call without this process:
        what a program prints about it is printed.
        """
        return self._at_arrival is not None

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; a registered object is replaced by the new one."""
        if not name.startswith("_") and name not in _OF_INSTANCES:  # each block sets some of those
            for registered in ("_modules", "_optimizers", "_others"):
                if name in vars(self).get(registered, ()):
                    vars(self)[registered][name] = value
            if name in vars(self) and name in self._handlers:
                self._handlers[name].set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        """Keeps a copy of what is registered for restore(). commit() calls it.

        A collective if an ElasticSampler is registered whose samples are counted by name.
        """
        for sampler in self._samplers():
            sampler.unite()
        for handler in self._handlers.values():
            handler.save()
        kept, whole = self._kept or {}, self._whole()
        self._kept = {
            "modules": _copied_into(kept.get("modules"), whole["modules"]),
            "optimizers": _copied_into(kept.get("optimizers"), whole["optimizers"]),
            "now": whole["now"],  # a copy
        }

    def restore(self) -> None:
        """Puts back what commit(), save() or sync() has kept, and drops gradients."""
        if self._kept is None:
            raise InvalidArgumentError(
                "TorchState.restore: nothing is kept yet; call commit() or sync() first"
            )
        # Optimizers keep the tensors that they load.
        self._put_whole({**self._kept, "optimizers": _copied_into(None, self._kept["optimizers"])})
        for handler in self._handlers.values():
            handler.restore()
        for parameter in self.parameters():
            parameter.grad = None

    def sync(self, root_rank: int = 0) -> None:
        """Gives every rank the state of `root_rank`, and keeps it for restore(). Collective."""
        if _C.size() > 1:
            whole = self._broadcast(root_rank)
            if _C.rank() != root_rank:
                self._put_whole(whole)
                self.progress = Progress(**whole["progress"])
            for handler in self._handlers.values():
                sync_from(handler, root_rank)
        self.reset()
        self.save()

    def reset(self) -> None:
        """Lets samplers deal the samples to the ranks of now."""
        for sampler in self._samplers():
            sampler.reset()

    def redo_from_commits(self) -> None:
        self._by_commits = True

    def _samplers(self) -> list[ElasticSampler]:
        return [each for each in self._others.values() if isinstance(each, ElasticSampler)]

    def _whole(self) -> dict[str, Any]:
        """Returns the state, but for the progress. The tensors are those of the training."""
        return {
            "modules": {name: each.state_dict() for name, each in self._modules.items()},
            "optimizers": [each.state_dict()["state"] for each in self._optimizers.values()],
            "now": vars(self._take_later()),
        }

    def _put_whole(self, whole: dict[str, Any]) -> None:
        """Takes over a state. Its tensors become those of the training."""
        self._load_modules(whole["modules"])
        self._put_later(_Later(**whole["now"]))
        self._load_optimizers(whole["optimizers"])

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return list(self._optimizers.values())

    # What belongs to this module and its neighbours

    def resize(self, size: int) -> None:
        """Calls the callbacks if the number of ranks is not the one that the settings go with."""
        old, self.progress.size = self.progress.size, size
        if old != size:
            for callback in self._callbacks:
                callback(old, size)

    def parameters(self) -> list[torch.Tensor]:
        """Returns each parameter of the modules and optimizers once."""
        found: dict[int, torch.Tensor] = {}
        for module in self._modules.values():
            found.update((id(each), each) for each in module.parameters())
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                found.update((id(each), each) for each in group["params"])
        return list(found.values())

    def buffers(self) -> list[torch.Tensor]:
        """Returns each buffer of the modules, as Module.buffers(), but fast: each block asks."""
        found: dict[int, torch.Tensor] = {}
        seen: set[torch.nn.Module] = set()
        waiting = list(self._modules.values())
        while waiting:
            module = waiting.pop()
            if module in seen:
                continue
            seen.add(module)
            for each in module._buffers.values():
                if each is not None:
                    found[id(each)] = each
            for child in module._modules.values():
                if child is not None and (child._buffers or child._modules):
                    waiting.append(child)
        return list(found.values())

    def trained(self) -> dict[str, Any]:
        """Returns parameters and optimizers' states by name, for ranks to compare.

        A DistributedOptimizer compares its parameters itself, in its first step of an epoch.
        """
        found: dict[str, Any] = {}
        compared: set[int] = set()
        for name, optimizer in self._optimizers.items():
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            names: dict[Any, str] = {}
            if isinstance(optimizer, Distributed):
                compared.update(map(id, parameters))
                names = optimizer._parameter_names
                if optimizer._ciranda_steps_by_itself or optimizer._shares_state():
                    continue
            for number, state in optimizer.state_dict()["state"].items():
                of = f"parameter '{names.get(parameters[number], number)}' in {name}.state"
                found.update({f"'{key}' of {of}": value for key, value in state.items()})
        for name, module in self._modules.items():
            for parameter_name, parameter in module.named_parameters():
                if id(parameter) not in compared:
                    found[f"parameter '{parameter_name}' of {name}"] = parameter
        return found

    def registered(self) -> dict[str, Any]:
        """Returns the registered objects' states and the values by name, for ranks to compare."""
        objects = {f"'{name}'": each.state_dict() for name, each in self._others.items()}
        return objects | {f"'{name}'": getattr(self, name) for name in self._values}

    def snapshot(self) -> Callable[[], None]:
        """Returns a function that puts back what a block changes beside parameters and their state.

        These are the buffers, the registered objects and values, and the optimizers' settings.
        """
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.buffers()]
        later = self._take_later()

        def put_back() -> None:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            self._put_later(later)

        return put_back

    def snapshot_steps(self) -> Callable[[], None]:
        """Returns a function that puts back what steps change: parameters and optimizers' state."""
        parameters = [(each, each.detach().clone()) for each in self.parameters()]
        states = [_copied_into(None, each.state_dict()["state"]) for each in self.optimizers()]

        def put_back() -> None:
            with torch.no_grad():
                for parameter, before in parameters:
                    parameter.copy_(before)
            self._load_optimizers(states)

        return put_back

    def _take_later(self) -> _Later:
        return _Later(
            groups=[_settings(each.param_groups) for each in self._optimizers.values()],
            others={name: _copied(each.state_dict()) for name, each in self._others.items()},
            values={name: _copied(getattr(self, name)) for name in self._values},
        )

    def _put_later(self, later: _Later) -> None:
        for optimizer, groups in zip(self._optimizers.values(), later.groups, strict=True):
            for group, settings in zip(optimizer.param_groups, groups, strict=True):
                group.update({name: _copied(value) for name, value in settings.items()})
        for name, each in self._others.items():
            each.load_state_dict(_copied(later.others[name]))
        for name, value in later.values.items():
            setattr(self, name, _copied(value))

    def end_call(self) -> None:
        """Notes the state at the end of a loop or agreed(), for newcomers that skip the call."""
        self._after_call = self._take_later()

    def end_block(self) -> None:
        """Notes the state at the end of a block, for ranks that an error has led out of it."""
        self._after_block = self._take_later()
        self._rest_of_block = None

    def skip_rest_of_block(self) -> None:
        """An error has led this rank out of a block that others have ended."""
        if self._rest_of_block is not None:
            self._copy_parameters(self._rest_of_block, are_trained=False)
            self._put_later(_Later(**self._rest_of_block["after_block"]))

    def skip_last_call(self) -> None:
        """A newcomer has skipped the last call that the others have ended."""
        if not self._by_commits:  # then it has everything already
            self._put_later(self._after_call)

    def arrive(self) -> None:
        """A newcomer is where the others were when it got their state."""
        if self._at_arrival is not None:
            later, self._at_arrival = self._at_arrival, None
            self._put_later(later)

    def transfer(self, plan: Any, rank: int) -> None:
        """Copies the state of rank plan.source to the ranks that lack it. Collective, blocking.

        Under elastic.run() it is sync(). A rank keeps what it has until it has received everything,
        so that the loss of the source meanwhile tears nothing.
        """
        if self._by_commits:
            self.sync(plan.source)
            if rank in plan.newcomers:
                self._at_arrival = self._take_later()
            return
        self._rest_of_block = None
        if not plan.behind and not plan.newcomers:
            return
        if self._handlers:
            raise UnsupportedError(
                f"elastic: the handlers of {sorted(self._handlers)} work under elastic.run() only"
            )
        if rank == plan.source and self.undo_block is not None:
            self.undo_block()  # it comes again, on newcomers too: they begin it as this rank has
        whole = self._broadcast(plan.source)
        if rank in plan.newcomers:
            self._take_over(whole)
        elif rank in plan.behind:
            self._catch_up(whole)

    def _broadcast(self, source: int) -> dict[str, Any]:
        """Returns the state and progress of rank `source`."""
        sent: list[torch.Tensor] = []
        whole: dict[str, Any] = {}
        structure: Any = None
        if source == _C.rank():
            whole = {
                **self._whole(),
                "after_call": vars(self._after_call),
                "after_block": vars(self._after_block),
                "progress": vars(self.progress),
            }
            if self._at_arrival is not None:  # a newcomer, not there yet, passes on what it has got
                whole["now"] = vars(self._at_arrival)
            structure = _take_tensors(whole, sent)
        # What only pickle can send costs a sentence between hosts that are not trusted.
        pickled = _C.hosts_are_trusted()
        structure = broadcast_object(structure, source, "elastic", allow_pickle=pickled)
        if source != _C.rank():
            whole = _put_tensors(structure, sent)
        if sent:
            _C.broadcast_tensors(sent, source, "elastic/state", 0)
        return whole

    def _take_over(self, whole: dict[str, Any]) -> None:
        self._load_modules(whole["modules"])
        self._after_call = _Later(**whole["after_call"])
        self._after_block = _Later(**whole["after_block"])
        self._at_arrival = _Later(**whole["now"])
        self._load_optimizers(whole["optimizers"])
        self.progress = Progress(**whole["progress"])

    def _catch_up(self, whole: dict[str, Any]) -> None:
        """Takes over what optimizers change.

        This rank's own code is about to do the rest, unless an error leads it out of its block.
        """
        self._copy_parameters(whole, are_trained=True)
        self._load_optimizers(whole["optimizers"])
        if self.undo_block is not None:
            self._rest_of_block = whole
        self._after_call = _Later(**whole["after_call"])  # the source may have ended the pass
        # Its settings still go with the size before: on_resize is called later.
        self.progress = Progress(**{**whole["progress"], "size": self.progress.size})

    def _copy_parameters(self, whole: dict[str, Any], *, are_trained: bool) -> None:
        """Takes over the parameters that optimizers train, or the others."""
        groups = [group for each in self._optimizers.values() for group in each.param_groups]
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        with torch.no_grad():
            for name, module in self._modules.items():
                values = whole["modules"][name]
                for parameter_name, parameter in module.named_parameters(remove_duplicate=False):
                    if parameter_name in values and (id(parameter) in trained) is are_trained:
                        parameter.copy_(values[parameter_name])

    def _load_modules(self, states: dict[str, Any]) -> None:
        for name, module in self._modules.items():
            module.load_state_dict(states[name])

    def _load_optimizers(self, states: list[Any]) -> None:
        for optimizer, state in zip(self._optimizers.values(), states, strict=True):
            optimizer._opt_called = True  # type: ignore[attr-defined] # schedulers check it
            optimizer.load_state_dict(
                {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
            )


_OF_INSTANCES = ("holds", "progress", "undo_block")


def _is_taken(state_class: type, name: str) -> bool:
    """Returns True for names that a program cannot give to a value."""
    if name.startswith("_") or name in _OF_INSTANCES:
        return True
    return hasattr(state_class, name) and not isinstance(getattr(state_class, name), _Default)


def _copied_into(kept: Any, value: Any) -> Any:
    """Returns a copy of `value`, in the memory of `kept`'s tensors where they fit.

    A commit after each batch would otherwise allocate as much memory each time.
    """
    if isinstance(value, torch.Tensor):
        fits = (
            isinstance(kept, torch.Tensor)
            and (kept.shape, kept.dtype) == (value.shape, value.dtype)
            and (kept.device, kept.layout) == (value.device, value.layout)
        )
        return kept.copy_(value.detach()) if fits else value.detach().clone()
    if isinstance(value, dict):
        old = kept if isinstance(kept, dict) else {}
        return {name: _copied_into(old.get(name), each) for name, each in value.items()}
    if type(value) in (list, tuple):
        olds = (
            kept if type(kept) is type(value) and len(kept) == len(value) else [None] * len(value)
        )
        return type(value)(map(_copied_into, olds, value))
    return _copied(value)


def _settings(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            name: value if type(value) in _PLAIN else _copied(value)
            for name, value in group.items()
            if name != "params"
        }
        for group in groups
    ]


_PLAIN = (int, float, bool, str, type(None))


def _copied(value: Any) -> Any:
    """Copies a value deeply. It is faster than copy.deepcopy(): each block calls it."""
    if type(value) in _PLAIN:
        return value
    if type(value) is dict:
        return {name: _copied(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_copied(each) for each in value])
    return copy.deepcopy(value)


current: State | None = None  # the newest of this process


def check_registered(optimizers: list[Any], state: State) -> None:
    """Raises InvalidArgumentError if a DistributedOptimizer of this process is not registered."""
    known = {id(each) for each in state.optimizers()}
    for optimizer in optimizers:
        if id(optimizer) not in known and isinstance(optimizer, Distributed):
            raise InvalidArgumentError(
                f"elastic: a DistributedOptimizer ({type(optimizer).__name__}) is not registered, "
                "so ranks that join would not get its state; pass it: TorchState(model, optimizer)"
            )
