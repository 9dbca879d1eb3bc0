"""Checkpoints of a training: one file that stock torch reads (docs/checkpoints.md)."""

from ciranda.torch.checkpoints.checkpoints import Checkpoints

__all__ = ["Checkpoints"]
