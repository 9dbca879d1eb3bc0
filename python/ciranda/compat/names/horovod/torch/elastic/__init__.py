"""horovod.torch.elastic: its names are those of ciranda.torch.elastic."""

from ciranda.torch.elastic import *  # noqa: F403
from ciranda.torch.elastic import __all__  # noqa: F401
