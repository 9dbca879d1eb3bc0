"""Layers with their parameters on the parameter servers; a worker fetches them when needed."""

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

# Maps a table to its layer, in the order in which they were made.
_all: weakref.WeakValueDictionary[int, Layer] = weakref.WeakValueDictionary()
_LAYER = "_ciranda_layer"  # attribute of a parameter: the name of its Layer


class Layer(torch.nn.Module):
    """A part of a model, with its parameters on the parameter servers.

    A worker has the part's parameters and gradients only while the part computes, so it needs
    memory for its largest part, not for the model.

    make: returns a new module at each call, with float32 parameters, on the device where it stays.
    Layer() calls it to learn the shapes. DistributedOptimizer() calls it again for the initial
    values, which are those of the first call as far as torch's CPU generator makes them; the first
    worker's values count.
    optimizer: "sgd" or "adagrad", as torch.optim's without momentum, decay and weight_decay, with
    `lr`, which may be changed at any time (`layer.lr = 0.1`), and Adagrad's
    initial_accumulator_value and eps.
    name: the same in all workers, and different for each table; by default from the order in which
    they are made.

    Make it on every worker, before DistributedOptimizer(..., ps=ps.Async()). That
    optimizer has the model's other parameters. In parameters(), `on_servers` stands for all
    parameters of the layer; freezing it freezes them.

    backward() pushes the gradients as soon as they are whole. So each step() has one backward(), no
    batch can be left out, and neither clipping nor GradScaler is possible. The backward pass
    fetches the parameters again, with what other workers have pushed meanwhile. state_dict()
    fetches them, under their names in `make()`. Not thread-safe. Raises InvalidArgumentError for
    whatever it refuses.
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
        self._gradients: torch.Tensor | None = None  # of all parameters, in this backward pass
        self._without_gradient: set[int] = set()  # parameters that still lack one in this pass
        self._ends_with_backward = False  # _end_backward() is queued for this pass
        self._uses: set[_Use] = set()  # those that the backward pass has begun and not ended
        self._forward_passes = 0  # those that are running, nested
        self._absent = torch.full((), torch.nan, device=self._device)
        self._pushes = 0
        self.on_servers = StandIn((1,))
        # The gradient of on_servers and its version, if there was a push since the latest step().
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
        """The module that `make` has made. Its parameters are NaN while they are not fetched."""
        inner: torch.nn.Module = vars(self)["_inner"]
        return inner

    def extra_repr(self) -> str:
        return f"{type(self.module).__name__} of {self._elements} parameters on servers"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the module's output. Blocks for the servers."""
        if not _in_backward():
            self._forget_backward()  # drops the rest of a backward pass that failed
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
    # Fetching and dropping the parameters

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

    # Queues _end_backward() for the end of this backward pass, once.
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
            # A part that is recomputed gives its gradients separately: these are added.
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
    # Checks, initial values, state and refusals

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
        """Does what torch's train() does, also for the module."""
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
    """One computation of a layer.

    Its backward pass needs the parameters from the first gradient of an output to the last gradient
    of an input. A part that is recomputed there (torch.utils.checkpoint) needs them too, and no
    saved tensor says so.
    """

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
    """A view of a layer's parameters that the backward pass needs."""

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
    """Raises InvalidArgumentError if there is a layer that no optimizer trains yet."""
    for each in _living():
        if each._make is not None:
            each._refuse(why)


def begin_all() -> None:
    """Gives the servers the initial values of this process's layers. Blocks."""
    for each in _living():
        each._begin()


def refuse_changes() -> None:
    """Raises InvalidArgumentError if a gradient was changed after its push."""
    for each in _living():
        each._refuse_changes()


def refuse_zeros() -> None:
    """Raises InvalidArgumentError if gradients were pushed since the latest step()."""
    for each in _living():
        if each._pushed is not None:
            each._refuse(
                "zero_grad() between backward(), which pushes its gradients, and step(); a batch "
                "cannot be left out"
            )


def refuse_scaled() -> None:
    """Raises InvalidArgumentError if there is a layer.

    Its gradients are pushed before GradScaler runs.
    """
    for each in _living():
        each._refuse(
            "backward() pushes its gradients before GradScaler can unscale them; leave GradScaler "
            "out, or the Layer"
        )


def end_step() -> None:
    """Ends the step: every layer may push again."""
    for each in _living():
        each._pushed = None
        each.on_servers.grad = None
