"""Writes IDX files for tests, right ones and wrong ones."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np

UBYTE = 0x08


def header(shape: tuple[int, ...], zeros: int = 0, element: int = UBYTE) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", zeros, element, len(shape), *shape)


def write_idx(path: Path, shape: tuple[int, ...], values: bytes | None = None) -> Path:
    payload = bytes(math.prod(shape)) if values is None else values
    return write_gzip(path, header(shape) + payload)


def write_gzip(path: Path, content: bytes) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(content)
    return path


def write_small_data_set(folder: Path, train: int, test: int) -> Path:
    """Four files with Fashion-MNIST's names; a class is a bright row, so it can be learnt."""
    random = np.random.default_rng(3)
    for prefix, count in (("train", train), ("t10k", test)):
        labels = random.integers(0, 10, count, dtype=np.uint8)
        images = random.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        images[np.arange(count), 2 * labels + 4] = 255
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images.shape, images.tobytes())
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", labels.shape, labels.tobytes())
    return folder
