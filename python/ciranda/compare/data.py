"""Images to train on: Fashion-MNIST if it is installed, otherwise synthetic images. Imports torch.

Nothing is downloaded here, because all ranks would do so at the same time. A note in the table says
which images are synthetic.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FOLDERS = ("/usr/share/datasets/fashion-mnist", "data/FashionMNIST/raw")
_FILES = {"train": "train", "test": "t10k"}
_MEAN, _STD = 0.2860, 0.3530  # of the training images, with pixels in 0..1
_CLASSES, _FLOWER_CLASSES = 10, 5
_FLOWERS = {"train": 3670, "test": 500}  # as in TensorFlow's set of flowers
_NOISES = 97  # a prime, so that each class is combined with each noise
_SEED = 20


class Images:
    """Images (N, C, H, W) as float32, and their classes."""

    def __init__(self, images: Tensor, labels: Tensor, notes: list[str] | None = None) -> None:
        self._images = images
        self._labels = labels
        self.notes = notes or []

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._images[indices], self._labels[indices]


class MadeImages(Images):
    """Large images that are computed when they are asked for.

    An image is the pattern of its class plus one of a few noises. Patterns and noises come from one
    seed.
    """

    def __init__(self, count: int, classes: int, channels: int, px: int, notes: list[str]) -> None:
        made = torch.Generator().manual_seed(_SEED)
        coarse = torch.randn(classes, channels, 7, 7, generator=made)
        self._patterns = F.interpolate(coarse, size=(px, px), mode="bilinear")
        self._noises = 2.0 * torch.randn(_NOISES, channels, px, px, generator=made)
        super().__init__(torch.empty(0), torch.arange(count) % classes, notes)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        labels = self._labels[indices]
        return self._patterns[labels] + self._noises[indices % _NOISES], labels


def load(name: str, which: str, px: int, folder: str | None, most: int | None) -> Images:
    """Returns the "train" or "test" images (`which`), at most the first `most`; None means all."""
    if name == "flowers":
        return _flowers(which, px, folder, most)
    places = [Path(each) for each in ([folder] if folder else FOLDERS)]
    found = next((p for p in places if (p / "train-images-idx3-ubyte.gz").is_file()), None)
    if found is None:
        count = min(most or 60_000, 60_000 if which == "train" else 10_000)
        where = " or ".join(map(str, places))
        note = f"images are made: Fashion-MNIST is not in {where} (apt install {_PACKAGE})"
        return MadeImages(count, _CLASSES, 1, 28, [note])
    pixels = _read(found / f"{_FILES[which]}-images-idx3-ubyte.gz", 16)[: most and most * 784]
    labels = _read(found / f"{_FILES[which]}-labels-idx1-ubyte.gz", 8)[:most]
    images = pixels.view(-1, 1, 28, 28).float().div_(255).sub_(_MEAN).div_(_STD)
    return Images(images, labels.long())


_PACKAGE = "dataset-fashion-mnist"


def _read(path: Path, header_bytes: int) -> Tensor:
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()[header_bytes:]), dtype=torch.uint8)


def _flowers(which: str, px: int, folder: str | None, most: int | None) -> Images:
    try:
        from torchvision import datasets, transforms

        shape = transforms.Compose([transforms.Resize((px, px)), transforms.ToTensor()])
        found = datasets.Flowers102(folder or "data", which, transform=shape)
        return _Read(found, most)
    except (ImportError, RuntimeError):  # torchvision or its files are missing
        count = min(most or _FLOWERS[which], _FLOWERS[which])
        return MadeImages(count, _FLOWER_CLASSES, 3, px, ["images are made, from one seed"])


class _Read(Images):
    """Images of torchvision, which are read when they are asked for."""

    def __init__(self, found: Any, most: int | None) -> None:
        self._found = found
        super().__init__(torch.empty(0), torch.zeros(min(most or len(found), len(found))))

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        read = [self._found[int(index)] for index in indices]
        labels = torch.tensor([label for _, label in read])
        return torch.stack([image for image, _ in read]), labels
