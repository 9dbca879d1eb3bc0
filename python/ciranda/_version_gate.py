"""Explains in one sentence why the compiled module cannot be loaded.

Torch's C++ interface changes between minor versions, so a build fits one `major.minor` only. A
build with Gloo also needs the libraries that Gloo was built with.
"""

from __future__ import annotations


def minor_version(version: str) -> tuple[int, int]:
    """Returns the first two numbers of a version: `"2.15.0+cu132"` -> `(2, 15)`."""
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def check(built_for: str, found: str) -> None:
    """Raises ImportError if a build for torch `built_for` cannot work with torch `found`."""
    wanted = minor_version(built_for)
    if minor_version(found) == wanted:
        return
    raise ImportError(
        f"ciranda was built for torch {built_for} but torch {found} is installed: rebuild it with "
        "`pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation .` in the "
        "folder of its source, "
        f'or go back with `pip install "torch=={wanted[0]}.{wanted[1]}.*"`'
    )


def explain_missing_library(error: ImportError) -> ImportError:
    """Returns an ImportError with a remedy if a library is missing, otherwise `error`."""
    if "cannot open shared object file" not in str(error):
        return error
    return ImportError(
        f"ciranda was built with a library that this machine lacks ({error}): install it (Debian's "
        "package libgloo0 brings libhiredis and libibverbs), or rebuild ciranda without Gloo, `pip "
        "install --force-reinstall --no-deps --no-cache-dir --no-build-isolation "
        "-C cmake.define.CIRANDA_GLOO=OFF .` in the folder of its source"
    )
