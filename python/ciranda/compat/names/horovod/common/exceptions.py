"""horovod.common.exceptions"""

from ciranda.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HorovodVersionMismatchError(ImportError):
    """Never raised: the import of ciranda itself reports a version that does not fit."""
