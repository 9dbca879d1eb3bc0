"""Training that goes on when ranks die, come back or join: docs/elastic.md."""

from __future__ import annotations

from ciranda.torch.elastic.horovod_run import run, run_fn
from ciranda.torch.elastic.horovod_state import ObjectState, State
from ciranda.torch.elastic.sampler import ElasticSampler
from ciranda.torch.elastic.state import TorchState
from ciranda.torch.elastic.steps import agreed, finish, steps

__all__ = [
    "ElasticSampler",
    "ObjectState",
    "State",
    "TorchState",
    "agreed",
    "finish",
    "run",
    "run_fn",
    "steps",
]
