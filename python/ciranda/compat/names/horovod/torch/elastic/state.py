"""horovod.torch.elastic.state: states and their handlers."""

from ciranda.torch.elastic import TorchState
from ciranda.torch.elastic.handlers import (
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)

__all__ = ["StateHandler", "TorchState", "get_handler_registry", "set_handler_registry"]
