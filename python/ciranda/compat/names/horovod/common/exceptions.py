"""horovod.common.exceptions"""

from ciranda.errors import HorovodInternalError

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):
    """Of elastic jobs; never raised."""


class HorovodVersionMismatchError(ImportError):
    """Never raised: ciranda's own import says what does not fit."""
