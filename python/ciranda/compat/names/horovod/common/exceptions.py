"""horovod.common.exceptions"""

from ciranda.errors import HorovodInternalError

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):
    """Belongs to elastic jobs; never raised."""


class HorovodVersionMismatchError(ImportError):
    """Never raised: the import of ciranda itself reports a version that does not fit."""
