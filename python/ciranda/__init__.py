"""ciranda: data-parallel training for PyTorch and LibTorch.

Importing this package costs nothing: no torch, no compiled code. The API for training scripts is
`ciranda.torch` (Horovod's names), the launcher is `ciranda.launch` (`ciranda run -np 4 train.py`),
and `ciranda.run(function, np=4)` calls a function on ranks that it starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

__all__ = ["__version__", "cmake_prefix_path", "include_dir", "run"]


def include_dir() -> str:
    """Returns the folder in which a C++ compiler finds `#include <ciranda/...>`."""
    return str(Path(__file__).parent / "include")


def cmake_prefix_path() -> str:
    """Returns the CMAKE_PREFIX_PATH for `find_package(ciranda)`: the folders of ciranda; torch."""
    from importlib.util import find_spec

    torch = find_spec("torch")  # does not import it
    folders = [__file__] + ([torch.origin] if torch and torch.origin else [])
    return ";".join(str(Path(file).parent) for file in folders)


if TYPE_CHECKING:
    from ciranda.launch.function import run

    __version__: str
else:

    def __getattr__(name: str) -> object:
        if name == "__version__":  # rarely asked for, and reading metadata takes milliseconds
            from importlib.metadata import version

            return version("ciranda")
        if name == "run":
            from ciranda.launch.function import run

            return run
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
