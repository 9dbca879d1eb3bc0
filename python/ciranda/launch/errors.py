"""The one error the launcher shows to its user: a sentence and an exit code."""

from __future__ import annotations

EXIT_USAGE = 2
EXIT_TIMEOUT = 124  # as timeout(1)
EXIT_NOT_EXECUTABLE = 126  # as a shell
EXIT_NOT_FOUND = 127  # as a shell
EXIT_SIGNAL_BASE = 128  # plus the signal's number, as a shell


class LaunchError(Exception):
    """Raised when a job cannot start. The message is for the user, one sentence a line."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
