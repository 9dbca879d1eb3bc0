"""Layers whose parameters are on parameter servers alone, and here while they are needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch.ps.stand_in import StandIn, next_number

_ROW = 1024  # elements that lie together on one server

# By table, in the order in which they were made.
_all: weakref.WeakValueDictionary[int, Layer] = weakref.WeakValueDictionary()
_LAYER = "_ciranda_layer"  # of a parameter that is in one


class Layer(torch.nn.Module):
    """A part of a model whose parameters the parameter servers hold: a worker has them, and their
    gradients, only while this part computes, so that it needs memory for its largest part and not
    for the model.

    make: returns the module, a new one whenever it is called, on the device where it stays, with
    parameters of float32. It is called here, which tells what there is, and once more when
    DistributedOptimizer is made, for the values to begin with (those of the first call, as far as
    torch's generator for CPUs makes them); the first worker's count. optimizer: "sgd" or "adagrad",
    as torch.optim's without momentum, decay and weight_decay, with `lr`, which may be changed at
    any time (`layer.lr = 0.1`), and Adagrad's initial_accumulator_value and eps. name: the same in
    all workers, another one for each table; by default from the order in which they are made.

    Made on every worker, before DistributedOptimizer(..., backend="ps", mode=ps.Async()), whose
    optimizer has the model's other parameters: parameters() has none of these, but `on_servers`,
    which stands for them: frozen, it freezes them. backward() pushes their gradients as soon as
    they are whole, so that there is one backward() for each step(), no batch can be left out, and
    neither clipping nor GradScaler is possible. The backward pass fetches the parameters again,
    with what other workers have pushed meanwhile. state_dict() fetches them, under their names in
    `make()`. Not thread-safe.
    """

    on_servers: StandIn

    def __init__(
        self,
        make: Callable[[], torch.nn.Module],
        *,
        lr: float,
        optimizer: Literal["sgd", "adagrad"] = "sgd",
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.lr = lr
        self.name = name or f"layer {next_number('layer')}"
        if optimizer not in ("sgd", "adagrad"):
            self._refuse(f"optimizer must be 'sgd' or 'adagrad', not {optimizer!r}")
        self._make: Callable[[], torch.nn.Module] | None = make
        self._random = torch.get_rng_state()
        inner = make()
        object.__setattr__(self, "_inner", inner)  # hidden from parameters() and modules()
        self._parameters_there = self._checked(inner)
        self._device = self._parameters_there[0].device
        self._elements = sum(each.numel() for each in self._parameters_there)
        columns = min(self._elements, _ROW)
        self._rows = torch.arange((self._elements + columns - 1) // columns)
        self._shape = (len(self._rows), columns)
        self._table = _C.add_row_table(
            name=self.name,
            rows=len(self._rows),
            columns=columns,
            adagrad=optimizer == "adagrad",
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            given=True,
        )
        self._values: torch.Tensor | None = None  # of all parameters, while they are here
        self._gradients: torch.Tensor | None = None  # the same of this backward pass
        self._without_gradient: set[int] = set()  # parameters in this backward pass
        self._ends_with_backward = False  # what is here for this backward pass
        self._uses: set[_Use] = set()  # that the backward pass has begun with, and not ended
        self._forward_passes = 0  # that are under way, within each other
        self._absent = torch.full((), torch.nan, device=self._device)
        self._pushes = 0
        self.on_servers = StandIn((1,))
        # Its gradient once there is a push since the latest step(), and that one's version.
        self._pushed: tuple[torch.Tensor, int] | None = None
        self._trainable = [each.requires_grad for each in self._parameters_there]
        self._frozen = False
        for number, parameter in enumerate(self._parameters_there):
            setattr(parameter, _LAYER, self.name)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda parameter, number=number: self._take_gradient(number, parameter)
                )
        self._drop()
        self._note_freed()
        _all[self._table] = self

    @property
    def module(self) -> torch.nn.Module:
        """What `make` has made. Its parameters are NaN while they are not here."""
        inner: torch.nn.Module = vars(self)["_inner"]
        return inner

    def extra_repr(self) -> str:
        return f"{type(self.module).__name__} of {self._elements} parameters on servers"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns. Blocks for the servers."""
        if not _in_backward():
            self._forget_backward()  # one that failed
        self._follow_freezing()
        self._fetch()
        self._forward_passes += 1
        inputs = _differentiable((args, kwargs))
        use = _Use(self, len(inputs))
        for each in inputs:
            each.register_hook(use.end)  # type: ignore[no-untyped-call]
        try:
            with saved_tensors_hooks(self._pack, _unpack):
                output = self.module(*args, **kwargs)
        finally:
            self._forward_passes -= 1
            self._drop_unused()
        for each in _differentiable(output):
            each.register_hook(use.begin)  # type: ignore[no-untyped-call]
        return output

    # ------------------------------------------------------------------------------------------
    # The parameters come and go

    def _fetch(self) -> torch.Tensor:
        if self._values is None:
            with torch.inference_mode(False):
                self._values = _C.pull_rows(self._table, self._rows).to(self._device).view(-1)
                for parameter, values in self._parts(self._values):
                    parameter.data = values
        return self._values

    def _follow_freezing(self) -> None:
        frozen = not self.on_servers.requires_grad
        if frozen == self._frozen:
            return
        self._frozen = frozen
        for parameter, trainable in zip(self._parameters_there, self._trainable, strict=True):
            parameter.requires_grad_(trainable and not frozen)

    def _drop(self) -> None:
        self._values = None
        for parameter in self._parameters_there:
            parameter.data = self._absent.expand(parameter.shape)

    def _drop_unused(self) -> None:
        if self._forward_passes == 0 and not self._uses:
            self._drop()

    def _note_freed(self) -> None:
        _C.note_freed(4 * self._elements)

    def _parts(self, flat: torch.Tensor) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
        sizes = [each.numel() for each in self._parameters_there]
        parts = torch.split(flat[: self._elements], sizes)
        return [
            (parameter, part.view(parameter.shape))
            for parameter, part in zip(self._parameters_there, parts, strict=True)
        ]

    def _pack(self, tensor: torch.Tensor) -> _Saved | torch.Tensor:
        if self._values is None or _storage(tensor) != _storage(self._values):
            return tensor
        place = (tensor.size(), tensor.stride(), tensor.storage_offset())
        return _Saved(self, self._pushes, place)

    # ------------------------------------------------------------------------------------------
    # The backward pass

    # At its end, what is here goes.
    def _join_backward(self) -> None:
        if not self._ends_with_backward:
            self._ends_with_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        if self._gradients is not None:
            self._push(self._gradients)
        self._forget_backward()
        self._drop_unused()

    def _forget_backward(self) -> None:
        self._ends_with_backward = False
        self._gradients = None
        self._uses.clear()

    def _take_gradient(self, number: int, parameter: torch.Tensor) -> None:
        self._join_backward()
        if self._gradients is None:
            self._gradients = _C.zero_rows(self._table).to(self._device).view(-1)
            self._without_gradient = {
                each
                for each, parameter in enumerate(self._parameters_there)
                if parameter.requires_grad
            }
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            part = self._parts(self._gradients)[number][1]
            gradient = gradient.detach().to_dense()
            # A part that is computed again by itself gives its gradients apart.
            (part.copy_ if number in self._without_gradient else part.add_)(gradient)
        self._without_gradient.discard(number)
        if not self._without_gradient:
            self._push(self._gradients)
            self._uses.clear()
            self._drop()
            del gradient
            self._note_freed()

    def _push(self, gradients: torch.Tensor) -> None:
        self._gradients = None
        if self._pushed is not None:
            self._refuse(
                "a second backward() before step(); the first one's gradients are pushed, since "
                "they do not stay here, so that gradients cannot be accumulated or left out"
            )
        self._pushes += 1
        _C.push_rows(self._table, self._rows, gradients.view(self._shape).cpu(), self.lr)
        gradient = torch.zeros(1)
        self.on_servers.grad = gradient
        self._pushed = gradient, gradient._version

    def _refuse_changes(self) -> None:
        if self._pushed is None:
            return
        gradient, version = self._pushed
        if self.on_servers.grad is not gradient or gradient._version != version:
            self._refuse(
                "its gradients were zeroed, clipped, unscaled or changed after backward(), which "
                "had pushed them already; a batch cannot be left out, nor its gradients changed"
            )

    # ------------------------------------------------------------------------------------------
    # What there is

    def _checked(self, inner: torch.nn.Module) -> list[torch.nn.Parameter]:
        if not isinstance(inner, torch.nn.Module):
            self._refuse(f"make() returned {inner!r} instead of a module")
        parameters = list(inner.parameters())
        if sum(each.numel() for each in parameters) == 0:
            self._refuse("the module has no parameters; leave Layer out")
        for name, each in inner.named_parameters():
            if each.dtype != torch.float32 or each.layout != torch.strided or each.is_meta:
                self._refuse(
                    f"parameter '{name}' is {each.dtype} on {each.device}; servers hold strided "
                    "ones of float32"
                )
            if each.device != parameters[0].device:
                self._refuse("its parameters are on several devices; make a Layer for each")
            if hasattr(each, _LAYER):
                self._refuse(f"parameter '{name}' is in another Layer, too; make() must make it")
        return parameters

    def _begin(self) -> None:
        make, self._make = self._make, None
        if make is None:
            return
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            made = list(make().parameters())
        shapes = [each.shape for each in self._parameters_there]
        if [each.shape for each in made] != shapes or any(hasattr(each, _LAYER) for each in made):
            self._refuse("make() must return a new module of the same shapes whenever it is called")
        values = _C.zero_rows(self._table)
        for (_, part), parameter in zip(self._parts(values.view(-1)), made, strict=True):
            part.copy_(parameter.detach())
        _C.begin_rows(self._table, self._rows, values)
        del made, parameter
        self._note_freed()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        self._fetch()
        self.module.state_dict(destination=destination, prefix=prefix)
        self._drop()

    def _load_from_state_dict(self, *_: Any) -> NoReturn:
        self._refuse("servers hold its parameters and take no others; load them in make()")

    def train(self, mode: bool = True) -> Layer:
        """As torch's, also of the module."""
        self.module.train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Layer:
        there = fn(torch.zeros(1, device=self._device))
        if (there.device, there.dtype) != (self._device, torch.float32):
            self._refuse(
                f"it stays float32 on {self._device}; for another device, make() makes the module "
                "there: Layer(lambda: nn.Linear(8, 8, device='cuda'), ...)"
            )
        return self

    def __reduce_ex__(self, _: Any) -> NoReturn:
        self._refuse("it cannot be copied or pickled; keep its state_dict()")

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidArgumentError(f"Layer '{self.name}': {why}")


class _Use:
    """One computation of a layer, whose backward pass needs its parameters between the gradients of
    what came out and those of what went in: also what is computed again there
    (torch.utils.checkpoint), which no saved tensor tells of."""

    def __init__(self, layer: Layer, inputs: int) -> None:
        self._layer = layer
        self._inputs = inputs

    def begin(self, _: torch.Tensor) -> None:
        self._layer._join_backward()
        self._layer._uses.add(self)
        self._layer._fetch()

    def end(self, _: torch.Tensor) -> None:
        self._inputs -= 1
        if self._inputs == 0:
            self._layer._uses.discard(self)
            self._layer._drop_unused()


class _Saved(NamedTuple):
    """A part of a layer's parameters that the backward pass needs."""

    layer: Layer
    pushes: int
    place: tuple[Any, ...]


def _unpack(saved: _Saved | torch.Tensor) -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    layer = saved.layer
    if layer._pushes != saved.pushes:
        layer._refuse(
            "its parameters have changed since the forward pass whose gradient is asked for"
        )
    layer._join_backward()
    return layer._fetch().as_strided(*saved.place)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _differentiable(values: Any) -> list[torch.Tensor]:
    leaves = _pytree.tree_leaves(values)
    return [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]


def _living() -> list[Layer]:
    return list(_all.values()) if _all else []  # each step asks, and iterating takes 2 us


def refuse_all(why: str) -> None:
    """Where there are any that are not trained yet."""
    for each in _living():
        if each._make is not None:
            each._refuse(why)


def begin_all() -> None:
    """Gives the servers what the layers of this process begin with."""
    for each in _living():
        each._begin()


def refuse_changes() -> None:
    """Of gradients that are pushed."""
    for each in _living():
        each._refuse_changes()


def refuse_zeros() -> None:
    """Of them, before step()."""
    for each in _living():
        if each._pushed is not None:
            each._refuse(
                "zero_grad() between backward(), which pushes its gradients, and step(); a batch "
                "cannot be left out"
            )


def refuse_scaled() -> None:
    """GradScaler, which comes when they are pushed."""
    for each in _living():
        each._refuse(
            "backward() pushes its gradients before GradScaler can unscale them; leave GradScaler "
            "out, or the Layer"
        )


def end_step() -> None:
    """All layers may push again."""
    for each in _living():
        each._pushed = None
        each.on_servers.grad = None
