"""Runs scripts with `import horovod.torch as hvd` unchanged.

From the command line, under any starter: `python -m ciranda.compat.horovod train.py --lr 0.1`, or
`-m module` in place of the script. `horovodrun` does the same for all ranks. In code: install().
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ciranda.compat import NAMES, overridden, python_path

_USAGE = "usage: python -m ciranda.compat.horovod SCRIPT.py [ARGS]..., or: ... -m MODULE [ARGS]..."


def install() -> None:
    """Makes `horovod` mean ciranda from now on, here and in processes started from here.

    Raises ImportError if another `horovod` was imported before.
    """
    loaded = sys.modules.get("horovod")
    if loaded is not None and not _is_ours(loaded.__file__):
        raise ImportError(
            f"install() comes too late: horovod was imported already, from {loaded.__file__}"
        )
    _say_what_is_overridden()
    if NAMES not in sys.path:
        sys.path.insert(0, NAMES)
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH"))


def _is_ours(file: str | None) -> bool:
    return file is not None and file.startswith(NAMES + os.sep)


def _say_what_is_overridden() -> None:
    line = overridden()
    if line is not None and os.environ.get("CIRANDA_RANK", "0") == "0":
        print(f"ciranda: {line}", file=sys.stderr)


def main(arguments: Sequence[str]) -> None:
    """Replaces this process with a Python that runs the script or module unchanged."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        sys.exit(0 if arguments else 2)
    if sys.flags.ignore_environment:
        sys.exit("ciranda.compat.horovod: python -E and -I ignore PYTHONPATH; leave them out")
    _say_what_is_overridden()
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    options = sys.orig_argv[1 : sys.orig_argv.index("-m")] if "-m" in sys.orig_argv else []
    argv = [sys.executable, *options, *arguments]
    sys.stdout.flush()
    os.execve(sys.executable, argv, environment)  # noqa: S606 - an argv array, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
