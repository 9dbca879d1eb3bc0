"""horovod.torch.compression: its names are those of ciranda.torch."""

from ciranda.torch import *  # noqa: F403
from ciranda.torch import __all__  # noqa: F401
