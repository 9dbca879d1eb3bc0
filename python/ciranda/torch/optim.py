"""Optimizers that torch does not have. They can share their step, as torch's can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

__all__ = ["Lion"]


class Lion(torch.optim.Optimizer):
    """Lion: each parameter moves by lr, in the direction of the sign of a moving average.

    The formula is algorithm 2 of Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms".
    It keeps one array of state, `exp_avg`, where Adam keeps two. Choose lr 3 to 10 times smaller
    than Adam's, and weight_decay as many times larger.

    Parameters may have any floating dtype and device. Raises ValueError for hyper-parameters out of
    range, and RuntimeError for sparse gradients and complex parameters. Not thread-safe.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        if not lr >= 0.0:
            raise ValueError(f"Lion: lr must be at least 0, not {lr}")
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Lion: betas must be at least 0 and below 1, not {betas}")
        if not weight_decay >= 0.0:
            raise ValueError(f"Lion: weight_decay must be at least 0, not {weight_decay}")
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step. `closure` computes the loss and its gradients again; returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, (beta1, beta2) = float(group["lr"]), group["betas"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if gradient.is_sparse or gradient.is_complex():
                    raise RuntimeError("Lion: sparse gradients and complex parameters have no sign")
                if group["maximize"]:
                    gradient = -gradient
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(
                        parameter, memory_format=torch.preserve_format
                    )
                exp_avg = state["exp_avg"]
                direction = torch.lerp(exp_avg, gradient, 1 - beta1).sign_()
                parameter.mul_(1 - lr * group["weight_decay"]).add_(direction, alpha=-lr)
                exp_avg.lerp_(gradient, 1 - beta2)
        return loss
