"""Reduction of gradients through a compressor that the user wrote in Python.

It behaves like GradientReducer in C++ (documented in gradient_reducer.h), but it copies, holds the
GIL and reduces everything at the end of backward().
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch import ops
from ciranda.torch.process_sets import ProcessSet

NamedParameters = list[tuple[str, torch.Tensor]]


class CompressedReducer:
    """The reducer of one optimizer. Densifies sparse gradients."""

    def __init__(
        self,
        name: str,
        op: int,
        predivide_factor: float,
        backward_passes_per_step: int,
        compression: Any,
        process_set: ProcessSet,
    ) -> None:
        self._process_set = process_set
        self._name = name
        self._op = op
        self._predivide_factor = predivide_factor
        self._passes = backward_passes_per_step
        self._compression = compression
        self._parameters: NamedParameters = []  # those with a hook
        self._frozen: NamedParameters = []
        self._graph_task = -1  # the latest that will call _graph_task_ended()
        # Maps the id of a parameter to the p.grad that the latest reduction left, and its version.
        self._reduced: dict[int, tuple[weakref.ref[torch.Tensor] | None, int]] = {}
        self._in_pass = False
        self._passes_done = 0  # of this step

    def add_parameters(self, named_parameters: NamedParameters) -> None:
        self._frozen += named_parameters
        self._hook_unfrozen()

    def _hook_unfrozen(self) -> None:
        unfrozen = [pair for pair in self._frozen if pair[1].requires_grad]
        if not unfrozen:
            return
        self._frozen = [pair for pair in self._frozen if not pair[1].requires_grad]
        self._parameters += unfrozen
        weak = weakref.ref(self)

        def on_gradient_ready(parameter: torch.Tensor) -> None:
            reducer = weak()
            if reducer is not None and not _C.in_forked_child():
                reducer._gradient_is_there(parameter)

        for _, parameter in unfrozen:
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                on_gradient_ready
            )

    def _is_reduced(self, parameter: torch.Tensor, edited: bool = False) -> bool:
        """Returns True if p.grad is what the latest reduction left.

        With `edited`, it may have been edited in place since.
        """
        if id(parameter) not in self._reduced:
            return parameter.grad is None
        left, version = self._reduced[id(parameter)]
        if left is None or parameter.grad is None:
            return left is None and parameter.grad is None
        return left() is parameter.grad and (edited or version == parameter.grad._version)

    def _gradient_is_there(self, parameter: torch.Tensor) -> None:
        if parameter.grad is None or self._is_reduced(parameter):
            return  # a hook of the user has stepped with it already
        if self._op != ops.Average and self._is_reduced(parameter, edited=True):
            raise InvalidArgumentError(
                "gradients were computed again after they had been summed over the ranks; set "
                "backward_passes_per_step to the number of backward passes, or call the "
                "optimizer's zero_grad() between them"
            )
        self._reduced.pop(id(parameter), None)
        self._in_pass = True
        current = torch._C._current_graph_task_id()
        if current != self._graph_task:
            self._graph_task = current
            queue = torch.autograd.Variable._execution_engine.queue_callback
            # Runs after callbacks that other code, such as DDP, has queued and that write
            # gradients.
            queue(lambda: queue(self._graph_task_ended))

    def _graph_task_ended(self) -> None:
        self._graph_task = -1
        nested = torch._C._current_autograd_node() is not None  # the outermost pass continues
        if self._in_pass and not nested:
            self._in_pass = False
            self._passes_done += 1
            if self._passes_done >= self._passes:
                self._reduce_now()

    def confirm_sharing(self) -> None:
        pass  # the step is not shared

    def synchronize(self) -> None:
        self._hook_unfrozen()
        edited = self._op != ops.Average
        fresh = not all(self._is_reduced(parameter, edited) for _, parameter in self._parameters)
        # A Sum, to which ranks that have joined add zeros.
        flag = torch.tensor([fresh], dtype=torch.int32, device="cpu")
        handle = ops.allreduce_async(
            flag, name=f"{self._name}/fresh", op=ops.Sum, process_set=self._process_set
        )
        flag = ops.synchronize_and(handle, self._join_backward)
        if flag.item():
            self._reduce_now()

    def _join_backward(self) -> None:
        """Reduces now if ranks that make more backward passes wait in backward() for this rank."""
        if _C.waits_crosswise(f"{self._name}/"):
            self._reduce_now()

    def _reduce_now(self) -> None:
        self._hook_unfrozen()
        with torch.no_grad():
            self._reduce()
        for _, parameter in self._parameters:
            grad = parameter.grad
            left = (None, 0) if grad is None else (weakref.ref(grad), grad._version)
            self._reduced[id(parameter)] = left
        self.finish_step()

    def _reduce(self) -> None:
        grads = [parameter.grad is not None for _, parameter in self._parameters]
        used = torch.tensor(grads, dtype=torch.int32, device="cpu")
        used = ops.allreduce(
            used, name=f"{self._name}/used", op=ops.Sum, process_set=self._process_set
        )
        pending = []
        for (name, parameter), used_anywhere in zip(self._parameters, used.tolist(), strict=True):
            if not used_anywhere:
                continue
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradient = gradient if gradient.layout == torch.strided else gradient.to_dense()
            if gradient is not parameter.grad:
                parameter.grad = gradient
            gradient = gradient.detach()  # keeps the graph of p.grad
            if self._op != ops.Average and self._is_reduced(parameter, edited=True):
                gradient.div_(self._process_set.size())  # it is the sum over the ranks already
            packed, context = self._compression.compress(gradient)
            handle = ops.allreduce_async(
                packed.contiguous(),
                name=f"{self._name}/{name}",
                op=self._op,
                prescale_factor=1.0 / self._predivide_factor,
                postscale_factor=self._predivide_factor,
                process_set=self._process_set,
            )
            pending.append((gradient, handle, context))
        for gradient, handle, context in pending:
            gradient.copy_(self._compression.decompress(ops.synchronize(handle), context))
        for name, parameter in self._parameters:
            if parameter.grad is not None and parameter.grad.requires_grad:
                _C.refuse_derivatives_in_step(parameter.grad, name)

    def finish_step(self) -> None:
        self._in_pass = False
        self._passes_done = 0

    def discard_step(self) -> None:
        self._hook_unfrozen()
        self._reduced.clear()
        self.finish_step()

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._passes = passes
