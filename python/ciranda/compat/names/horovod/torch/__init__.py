"""horovod.torch: the names of ciranda.torch."""

from ciranda.torch import *  # noqa: F403
from ciranda.torch import __all__  # noqa: F401

__version__ = "0.28.1"
