"""horovod.runner"""

from ciranda.compat.run import run

__all__ = ["run"]
