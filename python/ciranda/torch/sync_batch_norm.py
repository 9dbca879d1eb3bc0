"""BatchNorm over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ciranda import _C
from ciranda.torch import ops
from ciranda.torch.process_sets import ProcessSet, global_process_set


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d, 2d and 3d over the joined batch of the ranks of `process_set`.

    Input: {N, C, ...}, floating, on the CPU or a GPU; N may differ by rank and be 0. In training a
    forward pass is one allgather of 2 C + 1 numbers, and a backward pass one allreduce of 2 C
    numbers. So all ranks of the set run the layer equally often and in the same order. Evaluation
    sends nothing. Outputs, gradients and running statistics are those of BatchNorm over the joined
    batch with the sum of the ranks' losses. Half precision is computed in float32. It is
    differentiable as often as torch's BatchNorm, if all ranks do the same: backward with
    create_graph=True is three allreduces. Raises ValueError on every rank if the joined batch has
    at most one value a channel in training.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.process_set = process_set
        self._number = (-1, 0)  # see _Numbers

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Replaces each BatchNorm of `module`, also torch's SyncBatchNorm, by a SyncBatchNorm.

        Parameters and buffers are the same tensors, so it may be called before or after an
        optimizer is made. Lazy layers must have seen an input, otherwise it raises ValueError.
        Changes `module` in place, and returns it, or its replacement if it is a BatchNorm itself.
        """
        if isinstance(module, cls):
            return module
        if isinstance(module, _BatchNorm):
            if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
                raise ValueError(
                    "convert_sync_batchnorm: a lazy layer has no shape yet; run the model on one "
                    "input before"
                )
            converted = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_set,
                device="meta",
            )
            converted._parameters = module._parameters
            converted._buffers = module._buffers
            converted.training = module.training
            return converted
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, process_set))
        return module

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: expected at least 2D input, got {input.dim()}D")
        if input.size(1) != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: expected {self.num_features} channels in dimension 1, got "
                f"{input.size(1)}"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or self.process_set.size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        self._number = _numbers.of(self._number)
        name = f"SyncBatchNorm.{self._number[1]}"
        output, mean, variance, count = _Normalize.apply(
            input, self.weight, self.bias, self.eps, name, self.process_set
        )
        if self.running_mean is not None and self.running_var is not None:
            self._update_running(mean, variance * (count / (count - 1)))
        return output  # type: ignore[no-any-return]

    @torch.no_grad()
    def _update_running(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        factor = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if factor is None:  # the average of all batches
                factor = 1.0 / float(self.num_batches_tracked)
        for running, of_batch in ((self.running_mean, mean), (self.running_var, variance)):
            running.lerp_(of_batch.to(running.dtype), factor or 0.0)  # type: ignore[union-attr]


class _Numbers:
    """Numbers layers in the order in which the ranks of a World first run them.

    In an elastic job each epoch begins anew: a rank that joins has run no layer before.
    """

    def __init__(self) -> None:
        self._next = (0, 0)  # epoch and number

    def of(self, number: tuple[int, int]) -> tuple[int, int]:
        """Returns the epoch and the number of a layer whose number was `number`."""
        epoch = _C.own_epoch()
        if number[0] == epoch:
            return number
        if self._next[0] != epoch:
            self._next = (epoch, 0)
        given, self._next = self._next, (epoch, self._next[1] + 1)
        return given


_numbers = _Numbers()


def _along_channels(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.view(1, -1, *[1] * (like.dim() - 2))


class _Normalize(torch.autograd.Function):
    """Returns (normalized, mean, biased variance, count) of the joined batch."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        name: str,
        process_set: ProcessSet,
    ) -> Any:
        channels = input.size(1)
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        dims = [dim for dim in range(input.dim()) if dim != 1]
        own_count = input.numel() // channels
        # On the CPU torch.var_mean() takes ten times as long as sums and norms. `centred` becomes
        # the output, because new memory of that size costs as much as a pass.
        own_mean = wide.sum(dims) / max(own_count, 1)
        centred = wide - _along_channels(own_mean, wide)
        variance = torch.linalg.vector_norm(centred, dim=dims).square() / max(own_count, 1)
        own = torch.cat([own_mean, variance, wide.new_full((1,), own_count)])
        handle = ops.allgather_async(own.unsqueeze(0), f"{name}.forward", process_set)
        all_ranks = ops.synchronize(handle)
        means, variances, counts = all_ranks.split([channels, channels, 1], dim=1)
        count = counts.sum()
        if float(count) <= 1:
            raise ValueError(
                "SyncBatchNorm: expected more than 1 value per channel when training, over all "
                f"ranks, got input of {list(input.shape)} here"
            )
        # T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm
        # for Computing Sample Variances", 1979.
        mean = (means * counts).sum(0) / count
        variance = ((variances + (means - mean) ** 2) * counts).sum(0) / count
        slope = inverse_deviation = torch.rsqrt(variance + eps)
        ctx.save_for_backward(input, weight, mean, inverse_deviation)
        ctx.count, ctx.eps, ctx.name, ctx.process_set = count, eps, name, process_set
        if weight is not None:
            slope = slope * weight
        offset = (own_mean - mean) * slope
        if bias is not None:
            offset = offset + bias
        output = centred.mul_(_along_channels(slope, wide)).add_(_along_channels(offset, wide))
        output = output.to(input.dtype)
        ctx.mark_non_differentiable(mean, variance, count)
        return output, mean, variance, count

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor, *_: Any) -> Any:
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            return *_differentiable_backward(ctx, grad_output), None, None, None
        input, weight, mean, inverse_deviation = ctx.saved_tensors
        wide = input.to(mean.dtype)
        grad = grad_output.to(mean.dtype)
        dims = [dim for dim in range(input.dim()) if dim != 1]
        centred = wide - _along_channels(mean, wide)
        memory = grad * centred
        own = torch.stack([grad.sum(dims), memory.sum(dims)])
        grad_input = None
        if ctx.needs_input_grad[0]:
            sums = ops.allreduce(
                own, name=f"{ctx.name}.backward", op=ops.Sum, process_set=ctx.process_set
            )
            mean_grad, mean_product = sums / ctx.count
            slope = inverse_deviation if weight is None else inverse_deviation * weight
            grad_input = torch.sub(grad, _along_channels(mean_grad, grad), out=memory)
            grad_input -= centred.mul_(_along_channels(mean_product * inverse_deviation**2, grad))
            grad_input = grad_input.mul_(_along_channels(slope, grad)).to(input.dtype)
        grad_weight = grad_bias = None
        if weight is not None:
            grad_weight = (own[1] * inverse_deviation).to(weight.dtype)
            grad_bias = own[0].to(weight.dtype)
        return grad_input, grad_weight, grad_bias, None, None, None


def _differentiable_backward(ctx: Any, grad_output: torch.Tensor) -> Any:
    """Computes the gradients of _Normalize.backward() with operations that autograd knows."""
    input, weight, mean, _ = ctx.saved_tensors
    dims = [dim for dim in range(input.dim()) if dim != 1]

    def mean_of_ranks(values: torch.Tensor, what: str) -> torch.Tensor:
        name = f"{ctx.name}.backward.{what}"
        return ops.allreduce(values, name=name, op=ops.Sum, process_set=ctx.process_set) / ctx.count  # type: ignore[no-any-return]

    wide, grad = input.to(mean.dtype), grad_output.to(mean.dtype)
    centred = wide - _along_channels(mean_of_ranks(wide.sum(dims), "mean"), wide)
    variance = mean_of_ranks(centred.square().sum(dims), "variance")
    inverse_deviation = torch.rsqrt(variance + ctx.eps)
    own = torch.stack([grad.sum(dims), (grad * centred).sum(dims)])
    mean_grad, mean_product = mean_of_ranks(own, "sums")
    slope = inverse_deviation if weight is None else inverse_deviation * weight
    centred_grad = grad - _along_channels(mean_grad, grad)
    along = centred * _along_channels(mean_product * inverse_deviation**2, grad)
    grad_input = ((centred_grad - along) * _along_channels(slope, grad)).to(input.dtype)
    if weight is None:
        return grad_input, None, None
    return grad_input, (own[1] * inverse_deviation).to(weight.dtype), own[0].to(weight.dtype)
